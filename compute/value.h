#pragma once
/*
 * The values inside a layer, for conformance: VALUE(name, columns, sentence), in the order of a
 * step. Rows are those of the step, positions of its first sequence.
 */
#include <stdint.h>

#define K3_VALUES(VALUE)                                                         \
	VALUE(attn_in, hidden_size, "normed mix that attention gets")            \
	VALUE(attn_out, hidden_size, "output of attention, before it is added")  \
	VALUE(ffn_in, hidden_size, "normed mix that the feed-forward part gets") \
	VALUE(ffn_out, hidden_size, "output of the feed-forward part, likewise") \
	VALUE(residual, hidden_size, "running sum after the layer")
enum k3_value {
#define VALUE(name, columns, sentence) K3_VALUE_##name,
	K3_VALUES(VALUE)
#undef VALUE
		K3_VALUE_N_
};
/* position: of the first of the n_rows rows in x, which stays the engine's. */
typedef void k3_value_fn(void *data, enum k3_value value, uint32_t layer, uint32_t position,
			 const float *x, uint32_t n_rows);
