#pragma once
/*
 * The engine's inside, shared by its files: the step under way, and the parts of a layer as
 * functions of it. step.c calls them top to bottom; nobody outside the engine includes this.
 *
 * A part reads its input rows in scratch.x (normed) and leaves its result in scratch.out; the
 * residual stream is touched by attn_res.c only.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/bind.h"
#include "compute/engine.h"
#include "compute/scratch.h"
#include "compute/state.h"
#include "shared/timeline.h"

/* Consecutive rows of the step that belong to one sequence. */
struct k3_group {
	struct k3_sequence *sequence;
	uint32_t first_row, n;
	uint32_t position; /* of the first row in its sequence */
	uint32_t n_logits;
	float *logits; /* [n_logits][vocab_size], caller's */
};

/* Rows that meet a matrix. They are packed when the first tile's format is known. */
struct k3_input {
	const float *x; /* [n_rows][n_cols] */
	size_t n_rows, n_cols;
	float *packed; /* where to pack */
	size_t packed_stride;
	bool by_rows; /* never turned: parts of the rows meet the matrix by themselves */
	bool is_packed, is_turned;
	enum kern_format format; /* when packed */
};

struct k3_engine {
	const struct config *config;     /* borrowed, as in the settings */
	struct k3_iod *iod;              /* borrowed */
	struct k3_team *team;            /* borrowed */
	const struct kern_table *kernel; /* borrowed */
	uint32_t n_layers, max_rows, max_positions;
	struct timeline *timeline; /* borrowed; NULL: off */
	struct k3_bind bind;
	struct k3_scratch scratch;
	k3_routing_fn *on_routing;
	void *routing_data;
	k3_value_fn *on_value;
	void *value_data;

	/* the step under way */
	struct k3_group *groups; /* [max_rows], owned */
	uint32_t n_groups, n_rows;
	uint32_t *head_rows; /* [max_rows], owned: rows that get logits, in order */
	uint32_t n_head_rows;
	uint32_t n_snapshots;       /* scratch.residual[0 ... n_snapshots - 1] */
	bool residual_is_empty;     /* P was cleared by a snapshot */
	uint32_t first_bad_layer;   /* whose P was not finite; UINT32_MAX: none */
	uint32_t moe_layer;         /* whose experts are asked for */
	uint32_t n_experts_pending; /* asked for and not yet computed */
};

/* ---- matrix.c: products with tiles ---- */

/* A run of rows of a matrix, readable until the tile function returns. */
struct k3_weights {
	const uint8_t *bytes;
	enum kern_format format;
	uint32_t first_row, n_rows, n_cols;
};
/* Computes from a tile; may run again with the same tile when its bytes were replaced meanwhile, so
 * it overwrites its results and changes nothing that it reads. */
typedef void k3_tile_fn(struct k3_engine *e, const struct k3_weights *w, void *data);

int k3_each_tile(struct k3_engine *e, const struct k3_matrix *m, k3_tile_fn *fn, void *data,
		 struct err *err);
const struct k3_matrix *k3_matrix_of(const struct k3_engine *e, uint32_t layer, enum role role);

/* Are n rows of x turned before they meet weights of this format? */
static inline bool k3_is_turned(const struct k3_engine *e, enum kern_format format, size_t n)
{
	return n >= e->kernel->turned_from[format];
}
/* The grain for a product of n_rows rows of weights with n_x of x; least: that of one row of x. */
size_t k3_grain(const struct k3_engine *e, size_t n_rows, size_t n_x, bool is_turned, size_t least);

void k3_input_set(struct k3_input *in, const float *x, size_t n_rows, size_t n_cols, float *packed);
void k3_input_pack(struct k3_engine *e, struct k3_input *in, enum kern_format format);
/* y[row * y_stride + i] = (matrix x)[i] for all rows of in. */
int k3_multiply(struct k3_engine *e, uint32_t layer, enum role role, struct k3_input *in, float *y,
		struct err *err);
/* Size in bytes of a weight. */
static inline size_t k3_format_size(enum kern_format f)
{
	return f == KERN_F32 ? 4 : 2;
}

/* The small vectors of a layer (n_layers of the bind: the head) into scratch.vector, fp32. */
int k3_load_vectors(struct k3_engine *e, uint32_t layer, struct err *err);

/* ---- attn_res.c: the residual stream ---- */

/* The running sum P. */
static inline float *k3_residual(const struct k3_engine *e)
{
	return e->scratch.residual[e->n_snapshots];
}
/* Tell whoever watches. */
static inline void k3_show(const struct k3_engine *e, enum k3_value value, uint32_t layer,
			   const float *x)
{
	if (e->on_value)
		e->on_value(e->value_data, value, layer, e->groups[0].position, x, e->n_rows);
}
/* scratch.x = RMSNorm(MIX(B, P; mix), norm), or of P alone while B is empty. */
void k3_mix(struct k3_engine *e, const float *mix, const float *norm);
/* The same for the rows that get logits, densely. */
void k3_mix_head(struct k3_engine *e, const float *mix, const float *norm);
/* P becomes the next snapshot; a new, empty P begins. */
void k3_snapshot(struct k3_engine *e);
/* P += scratch.out (P = out after a snapshot). */
void k3_residual_add(struct k3_engine *e, uint32_t layer);
bool k3_is_finite(const float *x, size_t n);

/* ---- the parts of a layer; in: scratch.x through in, out: scratch.out ---- */

int k3_layer_kda(struct k3_engine *e, uint32_t layer, struct k3_input *in, struct err *err);
int k3_layer_mla(struct k3_engine *e, uint32_t layer, struct k3_input *in, struct err *err);
int k3_layer_dense(struct k3_engine *e, uint32_t layer, struct k3_input *in, struct err *err);
/* The shared experts: as a dense MLP, into scratch.out. */
int k3_layer_shared(struct k3_engine *e, uint32_t layer, struct k3_input *in, struct err *err);
int k3_layer_moe(struct k3_engine *e, uint32_t layer, struct k3_input *in, struct err *err);
/* Scores, ids, weights and the table of pairs of all rows, from the logits in scratch.router.
 * ERR_NOT_FINITE when the residual is and they are not. */
int k3_route(struct k3_engine *e, uint32_t layer, struct err *err);
/* Compute the experts that have landed (wait: all that are outstanding). */
int k3_moe_take_experts(struct k3_engine *e, bool wait, struct err *err);
int k3_head(struct k3_engine *e, struct err *err);
