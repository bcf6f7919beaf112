/*
 * Checkpoint names, from the one table in roles.def. Parsing compares lengths first and never
 * allocates: a checkpoint has half a million names, nearly all of them experts. Called by
 * source.c for every header entry, and by both sides to print a tensor's full name.
 */
#include "shared/names.h"

#include <stdio.h>
#include <string.h>

#include "shared/attr.h"
#include "shared/must.h"

#define TEXT_PREFIX   "language_model."
#define LAYER_PREFIX  "language_model.model.layers."
#define EXPERT_PREFIX "block_sparse_moe.experts."

enum { KIND_M = 0, KIND_V = 1 };

struct role_row {
	const char *name;
	const char *suffix;
	uint8_t suffix_len;
	uint8_t layer_kind;
	uint8_t is_vector;
};

#define ROLE(name_, layer_, kind_, suffix_, rows_, cols_) \
	[ROLE_##name_] = { #name_, suffix_, sizeof(suffix_) - 1, LAYER_##layer_, KIND_##kind_ },
static const struct role_row roles[ROLE_N_] = {
#include "shared/roles.def"
};
#undef ROLE

/* What follows "experts.{e}." */
static const char *const expert_suffixes[EXPERT_PARTS] = {
	[EXPERT_GATE_PACKED] = "w1.weight_packed", [EXPERT_GATE_SCALE] = "w1.weight_scale",
	[EXPERT_DOWN_PACKED] = "w2.weight_packed", [EXPERT_DOWN_SCALE] = "w2.weight_scale",
	[EXPERT_UP_PACKED] = "w3.weight_packed",   [EXPERT_UP_SCALE] = "w3.weight_scale",
};

const char *role_name(uint32_t role)
{
	if (role == ROLE_BUNDLE)
		return "BUNDLE";
	return role < ROLE_N_ ? roles[role].name : "?";
}

bool role_is_vector(enum role role)
{
	must((unsigned)role < ROLE_N_);
	return roles[role].is_vector != 0;
}

enum layer_kind role_layer_kind(enum role role)
{
	must((unsigned)role < ROLE_N_);
	return (enum layer_kind)roles[role].layer_kind;
}

bool role_in_layer(enum role role, const struct config *c, uint32_t layer)
{
	if (layer >= c->n_layers || (role == ROLE_LATENT_NORM && !c->has_latent_norm))
		return false;
	switch (role_layer_kind(role)) {
	case LAYER_ANY:
		return true;
	case LAYER_KDA:
		return !c->is_mla[layer];
	case LAYER_MLA:
		return c->is_mla[layer];
	case LAYER_DENSE:
		return !config_layer_is_moe(c, layer);
	case LAYER_MOE:
		return config_layer_is_moe(c, layer);
	case LAYER_HEAD:
	case LAYER_EMBED:
		break;
	}
	return false;
}

void role_shape(enum role role, const struct config *c, uint32_t *ret_rows, uint32_t *ret_cols)
{
	const uint32_t shapes[ROLE_N_][2] = {
#define ROLE(name, layer, kind, suffix, rows, cols) [ROLE_##name] = { rows, cols },
#include "shared/roles.def"
#undef ROLE
	};

	must((unsigned)role < ROLE_N_);
	*ret_rows = shapes[role][0];
	*ret_cols = shapes[role][1];
}

void expert_part_shape(enum expert_part part, const struct config *c, uint32_t *ret_rows,
		       uint32_t *ret_cols)
{
	bool is_down = part == EXPERT_DOWN_PACKED || part == EXPERT_DOWN_SCALE;
	bool is_scale =
		part == EXPERT_GATE_SCALE || part == EXPERT_DOWN_SCALE || part == EXPERT_UP_SCALE;
	uint32_t in = is_down ? c->expert_size : c->latent_size;

	*ret_rows = is_down ? c->latent_size : c->expert_size;
	*ret_cols = is_scale ? in / 32 : in / 2;
}

/* A decimal number without sign, leading zeros or more than nine digits, then a dot; returns what
 * follows the dot, or NULL. */
static const char *parse_index(const char *at, const char *end, uint32_t *ret)
{
	const char *start = at;
	uint32_t v = 0;

	while (at < end && *at >= '0' && *at <= '9' && at - start < 9)
		v = v * 10 + (uint32_t)(*at++ - '0');
	if (at == start || at == end || *at != '.' || (*start == '0' && at - start > 1))
		return NULL;
	*ret = v;
	return at + 1;
}

static bool parse_expert(const char *at, const char *end, struct names_id *ret)
{
	const char *suffix = parse_index(at, end, &ret->expert);
	size_t len;

	if (!suffix)
		return false;
	/* "w1.weight_packed": the digit and the length tell the six apart; then compare. */
	len = (size_t)(end - suffix);
	if (len < 3 || suffix[1] < '1' || suffix[1] > '3')
		return false;
	ret->part = (enum expert_part)((suffix[1] - '1') * 2 + (suffix[len - 1] == 'e' ? 1 : 0));
	return strlen(expert_suffixes[ret->part]) == len &&
	       memcmp(expert_suffixes[ret->part], suffix, len) == 0;
}

/* The role with this suffix among the layers' (is_global false) or the others. */
static bool find_role(const char *suffix, size_t len, bool is_global, enum role *ret)
{
	for (unsigned i = 0; i < ROLE_N_; i++) {
		bool global =
			roles[i].layer_kind == LAYER_HEAD || roles[i].layer_kind == LAYER_EMBED;

		if (roles[i].suffix_len == len && global == is_global &&
		    memcmp(roles[i].suffix, suffix, len) == 0) {
			*ret = (enum role)i;
			return true;
		}
	}
	return false;
}

/* The two gates and the two output projections have one name; the layer's kind decides. */
static enum role pick_by_layer(enum role role, const struct config *c, uint32_t layer)
{
	bool is_mla = layer < c->n_layers && c->is_mla[layer];

	if (is_mla && role == ROLE_KDA_G)
		return ROLE_MLA_G;
	if (is_mla && role == ROLE_KDA_O)
		return ROLE_MLA_O;
	return role;
}

void names_parse(const char *name, size_t name_len, const struct config *c, struct names_id *ret)
{
	const char *end = name + name_len, *at;
	size_t len;

	memset(ret, 0, sizeof(*ret));
	ret->kind = NAMES_OTHER;
	len = sizeof(LAYER_PREFIX) - 1;
	if (name_len > len && memcmp(name, LAYER_PREFIX, len) == 0) {
		at = parse_index(name + len, end, &ret->layer);
		if (!at)
			return;
		len = sizeof(EXPERT_PREFIX) - 1;
		if ((size_t)(end - at) > len && memcmp(at, EXPERT_PREFIX, len) == 0) {
			if (parse_expert(at + len, end, ret))
				ret->kind = NAMES_EXPERT;
			return;
		}
		if (!find_role(at, (size_t)(end - at), false, &ret->role))
			return;
		ret->role = pick_by_layer(ret->role, c, ret->layer);
		ret->kind = NAMES_TRUNK;
		return;
	}
	len = sizeof(TEXT_PREFIX) - 1;
	if (name_len > len && memcmp(name, TEXT_PREFIX, len) == 0 &&
	    find_role(name + len, name_len - len, true, &ret->role))
		ret->kind = NAMES_TRUNK;
}

int names_format(enum role role, uint32_t layer, char *buf, size_t size)
{
	must((unsigned)role < ROLE_N_);
	if (roles[role].layer_kind == LAYER_HEAD || roles[role].layer_kind == LAYER_EMBED)
		return snprintf(buf, size, TEXT_PREFIX "%s", roles[role].suffix);
	return snprintf(buf, size, LAYER_PREFIX "%u.%s", layer, roles[role].suffix);
}

int names_format_expert(uint32_t layer, uint32_t expert, enum expert_part part, char *buf,
			size_t size)
{
	must((unsigned)part < EXPERT_PARTS);
	return snprintf(buf, size, LAYER_PREFIX "%u." EXPERT_PREFIX "%u.%s", layer, expert,
			expert_suffixes[part]);
}
