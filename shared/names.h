#pragma once
/* Checkpoint names <-> (layer, role) and (layer, expert, part). k3-architecture section 2.2. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/config.h"

#define ROLE(name, layer, kind, suffix, rows, cols) ROLE_##name,
enum role {
#include "shared/roles.def"
	ROLE_N_
};
#undef ROLE
enum { ROLE_BUNDLE = 0xffff }; /* as a tile's role: all small vectors of the layer */

enum layer_kind {
	LAYER_ANY,
	LAYER_KDA,
	LAYER_MLA,
	LAYER_DENSE,
	LAYER_MOE,
	LAYER_HEAD,
	LAYER_EMBED
};

/* The six tensors of one routed expert, in released order: w1 = gate, w2 = down, w3 = up. */
enum expert_part {
	EXPERT_GATE_PACKED,
	EXPERT_GATE_SCALE,
	EXPERT_DOWN_PACKED,
	EXPERT_DOWN_SCALE,
	EXPERT_UP_PACKED,
	EXPERT_UP_SCALE,
	EXPERT_PARTS
};

enum names_kind { NAMES_TRUNK, NAMES_EXPERT, NAMES_OTHER /* vision and the like: skipped */ };
struct names_id {
	enum names_kind kind;
	uint32_t layer;  /* zero-based; n_layers of the caller's config for HEAD and EMBED is up to
			    him: 0 here */
	enum role role;  /* NAMES_TRUNK */
	uint32_t expert; /* NAMES_EXPERT */
	enum expert_part part; /* NAMES_EXPERT */
};

const char *role_name(uint32_t role); /* "KDA_Q"; "BUNDLE" */
bool role_is_vector(enum role role);
enum layer_kind role_layer_kind(enum role role);
/* Does a layer of this config have this role (HEAD/EMBED roles: never a layer's). */
bool role_in_layer(enum role role, const struct config *c, uint32_t layer);
/* Expected shape; A_log may be longer on disk than cols (padding). */
void role_shape(enum role role, const struct config *c, uint32_t *ret_rows, uint32_t *ret_cols);
/* Expected rows and byte columns of an expert's part. */
void expert_part_shape(enum expert_part part, const struct config *c, uint32_t *ret_rows,
		       uint32_t *ret_cols);

/* Parse a tensor name of name_len bytes (not NUL-terminated). self_attn.g_proj is KDA_G or MLA_G by
 * c->is_mla. A name outside the table is NAMES_OTHER. No allocation, no regex: called 497,220
 * times. */
void names_parse(const char *name, size_t name_len, const struct config *c, struct names_id *ret);
/* Write the full tensor name into buf; returns its length (as snprintf). */
int names_format(enum role role, uint32_t layer, char *buf, size_t size);
int names_format_expert(uint32_t layer, uint32_t expert, enum expert_part part, char *buf,
			size_t size);
