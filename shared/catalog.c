/*
 * The two checks every catalog passes before a number of it is used: that its tables are sound in
 * themselves (catalog_open), and that they describe the model of a config (catalog_check). The
 * builder is source_tiles.c. Called by the daemon on its own catalog and by every client on what it
 * received.
 */
#include "shared/catalog.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/missing.h"

enum { PAGE = 4096, SIDE_MAX = 1 << 28 };

static const uint32_t dtype_sizes[] = { [CATALOG_F32] = 4, [CATALOG_BF16] = 2, [CATALOG_U8] = 1 };

/* Arguments of err_set, the sentence begun. */
#define fail(err, ...) err_set(err, ERR_PROTOCOL, "catalog: " __VA_ARGS__)

/* A table of n rows at off must lie inside the catalog, after the header, aligned to 8. */
static bool is_table_inside(uint64_t off, uint64_t n, uint64_t row_size, uint64_t total)
{
	return off % 8 == 0 && off >= sizeof(struct catalog_header) && off <= total &&
	       n * row_size <= total - off;
}

static int check_header(const struct catalog_header *h, uint64_t size, struct err *err)
{
	uint64_t slot = 0;

	if (h->magic != CATALOG_MAGIC)
		return fail(err, "the magic is wrong");
	if (h->version != CATALOG_VERSION || h->header_size != sizeof(*h))
		return fail(err, "version %u with a header of %u bytes is not known", h->version,
			    h->header_size);
	if (h->incompat)
		return fail(err, "feature bits 0x%llx are not known",
			    (unsigned long long)h->incompat);
	if (h->total_size != size)
		return fail(err, "total_size is %llu, %llu bytes are there",
			    (unsigned long long)h->total_size, (unsigned long long)size);
	if (h->n_layers == 0 || h->n_layers > CONFIG_LAYERS_MAX)
		return fail(err, "n_layers %u is out of range", h->n_layers);
	if (h->n_tiles == 0 ||
	    !is_table_inside(h->tiles_off, h->n_tiles, sizeof(struct catalog_tile), size))
		return fail(err, "the table of %u tiles is outside", h->n_tiles);
	if (!is_table_inside(h->parts_off, h->n_parts, sizeof(struct catalog_part), size))
		return fail(err, "the table of %u parts is outside", h->n_parts);
	if (h->embed_dtype > CATALOG_BF16 || h->embed_cols == 0 || h->embed_rows == 0 ||
	    h->embed_rows > UINT32_MAX)
		return fail(err, "the embedding's shape is out of range");
	for (unsigned i = 0; i < EXPERT_PARTS; i++) {
		if (h->expert_rows[i] > SIDE_MAX || h->expert_cols[i] > SIDE_MAX)
			return fail(err, "the experts' shapes are out of range");
		slot += (uint64_t)h->expert_rows[i] * h->expert_cols[i];
	}
	if (h->n_experts == 0 || h->expert_size % PAGE != 0 || h->expert_size < slot || slot == 0)
		return fail(err, "expert_size %llu does not hold an expert",
			    (unsigned long long)h->expert_size);
	for (unsigned i = 0; i < N_ELEMENTS(h->reserved); i++)
		if (h->reserved[i])
			return fail(err, "reserved[%u] is not zero", i);
	return 0;
}

static int check_part(const struct catalog_tile *t, const struct catalog_part *p, uint32_t index,
		      struct err *err)
{
	uint64_t size;

	if (p->role >= ROLE_N_ || p->dtype > CATALOG_BF16 || p->reserved)
		return fail(err, "part %u: role %u, dtype %u or a reserved word is not known",
			    index, p->role, p->dtype);
	size = (uint64_t)p->rows * p->cols; /* below 2^64; times 4 may not be */
	if (p->rows == 0 || p->cols == 0 || size > UINT64_MAX / 8 ||
	    size * dtype_sizes[p->dtype] != p->size)
		return fail(err, "part %u: %u x %u does not make %llu bytes", index, p->rows,
			    p->cols, (unsigned long long)p->size);
	if (p->offset > t->slab_size || p->size > t->slab_size - p->offset)
		return fail(err, "part %u lies outside its tile", index);
	if (t->role == ROLE_BUNDLE ? !role_is_vector((enum role)p->role) : p->role != t->role)
		return fail(err, "part %u: %s does not belong into a tile of %s", index,
			    role_name(p->role), role_name(t->role));
	return 0;
}

static int check_tile(const struct catalog *cat, uint32_t index, uint32_t first_part,
		      struct err *err)
{
	const struct catalog_header *h = cat->header;
	const struct catalog_tile *t = &cat->tiles[index];
	bool is_matrix = t->role < ROLE_N_ && !role_is_vector((enum role)t->role);
	uint64_t data_size = 0;

	if (t->layer > h->n_layers || (index > 0 && t->layer < t[-1].layer))
		return fail(err, "tile %u: layer %u is out of order", index, t->layer);
	if ((t->role != ROLE_BUNDLE && !is_matrix) || t->role == ROLE_EMBED || t->reserved0 ||
	    t->reserved1)
		return fail(err, "tile %u: role %u or a reserved word is not known", index,
			    t->role);
	if (t->slab_size == 0 || t->slab_size % PAGE != 0 || t->slab_size > h->max_tile_size)
		return fail(err, "tile %u: slab_size %llu is out of range", index,
			    (unsigned long long)t->slab_size);
	if (t->first_part != first_part || t->n_parts == 0 || t->n_parts > h->n_parts - first_part)
		return fail(err, "tile %u: its parts are out of order", index);
	if (is_matrix &&
	    (t->n_parts != 1 || t->n_rows == 0 || cat->parts[first_part].rows != t->n_rows ||
	     t->first_row > UINT32_MAX - t->n_rows))
		return fail(err, "tile %u: its rows are out of range", index);
	for (uint32_t i = first_part; i < first_part + t->n_parts; i++) {
		int r = check_part(t, &cat->parts[i], i, err);

		if (r < 0)
			return r;
		data_size += cat->parts[i].size;
	}
	if (data_size != t->data_size || data_size > t->slab_size)
		return fail(err, "tile %u: data_size %llu is not what its parts take", index,
			    (unsigned long long)t->data_size);
	return 0;
}

int catalog_open(const void *bytes, uint64_t size, struct catalog *ret, struct err *err)
{
	uint64_t trunk_size = 0, max_tile_size = 0;
	uint32_t n_parts = 0;
	struct catalog cat;
	int r;

	if (size < sizeof(struct catalog_header))
		return fail(err, "%llu bytes are too few", (unsigned long long)size);
	if ((uintptr_t)bytes % 8 != 0)
		return fail(err, "the bytes are not aligned to 8");
	cat.header = bytes;
	r = check_header(cat.header, size, err);
	if (r < 0)
		return r;
	cat.tiles = (const void *)((const char *)bytes + cat.header->tiles_off);
	cat.parts = (const void *)((const char *)bytes + cat.header->parts_off);
	for (uint32_t i = 0; i < cat.header->n_tiles; i++) {
		r = check_tile(&cat, i, n_parts, err);
		if (r < 0)
			return r;
		n_parts += cat.tiles[i].n_parts;
		if (__builtin_add_overflow(trunk_size, cat.tiles[i].slab_size, &trunk_size))
			return fail(err, "the sizes of the tiles overflow");
		if (cat.tiles[i].slab_size > max_tile_size)
			max_tile_size = cat.tiles[i].slab_size;
	}
	if (n_parts != cat.header->n_parts)
		return fail(err, "%u of %u parts belong to a tile", n_parts, cat.header->n_parts);
	if (trunk_size != cat.header->trunk_size || max_tile_size != cat.header->max_tile_size)
		return fail(err, "trunk_size or max_tile_size is not what the tiles make");
	*ret = cat;
	return 0;
}

/* ---- against a config -------------------------------------------------------------------- */

/* Rows of each tensor found so far; a layer's tensors, then the head's under layer n_layers. */
struct coverage {
	const struct catalog *cat;
	const struct config *c;
	uint32_t *rows; /* [(n_layers + 1) * ROLE_N_] */
	struct err *err;
};

static int fail_shape(struct coverage *v, uint32_t layer, uint32_t role, const char *what)
{
	return err_set(v->err, ERR_BIND, "catalog: layer %u, %s: %s", layer, role_name(role), what);
}

static bool is_wanted(const struct coverage *v, enum role role, uint32_t layer)
{
	if (layer == v->cat->header->n_layers)
		return role_layer_kind(role) == LAYER_HEAD;
	return role_in_layer(role, v->c, layer);
}

static int cover_part(struct coverage *v, const struct catalog_tile *t,
		      const struct catalog_part *p)
{
	enum role role = (enum role)p->role;
	uint32_t *done = &v->rows[t->layer * ROLE_N_ + role];
	uint32_t rows, cols, head_rows = v->c->qk_nope_dim + v->c->v_dim;

	if (!is_wanted(v, role, t->layer))
		return fail_shape(v, t->layer, role, "the config does not know it here");
	role_shape(role, v->c, &rows, &cols);
	if (p->cols != cols)
		return fail_shape(v, t->layer, role, "another width than the config says");
	if (t->role == ROLE_BUNDLE ? (*done != 0 || p->rows != rows) : t->first_row != *done)
		return fail_shape(v, t->layer, role, "its rows are out of order or doubled");
	if (p->rows > rows - *done)
		return fail_shape(v, t->layer, role, "more rows than the config says");
	*done += p->rows;
	if (role == ROLE_MLA_KV_B && *done % head_rows != 0)
		return fail_shape(v, t->layer, role, "a tile does not end at a head");
	return 0;
}

/* Bundle first, then matrices in the order of roles.def. */
static int check_order(struct coverage *v)
{
	const struct catalog *cat = v->cat;

	for (uint32_t i = 0; i < cat->header->n_tiles; i++) {
		const struct catalog_tile *t = &cat->tiles[i];
		bool starts = i == 0 || t[-1].layer != t->layer;
		bool in_order = starts ? t->role == ROLE_BUNDLE
				       : t->role != ROLE_BUNDLE && (t[-1].role == ROLE_BUNDLE ||
								    t[-1].role <= t->role);

		if (!in_order)
			return fail_shape(v, t->layer, t->role, "its tiles are out of order");
		for (uint32_t p = t->first_part; p < t->first_part + t->n_parts; p++) {
			int r = cover_part(v, t, &cat->parts[p]);

			if (r < 0)
				return r;
		}
	}
	return 0;
}

static int check_header_shapes(const struct catalog_header *h, const struct config *c,
			       struct err *err)
{
	if (h->n_layers > c->n_layers)
		return err_set(err, ERR_BIND, "catalog: %u layers, the config has %u", h->n_layers,
			       c->n_layers);
	if (h->n_experts != c->n_experts)
		return err_set(err, ERR_BIND, "catalog: %u experts, the config has %u",
			       h->n_experts, c->n_experts);
	if (h->embed_rows != c->vocab_size || h->embed_cols != c->hidden_size)
		return err_set(err, ERR_BIND,
			       "catalog: the embedding has another shape than the "
			       "config says");
	for (unsigned i = 0; i < EXPERT_PARTS; i++) {
		uint32_t rows, cols;

		expert_part_shape((enum expert_part)i, c, &rows, &cols);
		if (h->expert_rows[i] != rows || h->expert_cols[i] != cols)
			return err_set(err, ERR_BIND,
				       "catalog: the experts have another shape than the config "
				       "says");
	}
	return 0;
}

int catalog_check(const struct catalog *cat, const struct config *c, struct err *err)
{
	uint32_t n_layers = cat->header->n_layers;
	CLEANUP(freep) uint32_t *rows = NULL;
	CLEANUP(freep) struct missing *missing = NULL;
	struct coverage v = { .cat = cat, .c = c, .err = err };
	int r = check_header_shapes(cat->header, c, err);

	if (r < 0)
		return r;
	rows = calloc((n_layers + 1) * (size_t)ROLE_N_, sizeof(*rows));
	missing = calloc(1, sizeof(*missing));
	if (!rows || !missing)
		return err_set(err, ERR_NO_MEMORY, "catalog: out of memory");
	v.rows = rows;
	r = check_order(&v);
	if (r < 0)
		return r;
	for (uint32_t layer = 0; layer <= n_layers; layer++) {
		for (unsigned role = 0; role < ROLE_N_; role++) {
			uint32_t want_rows, cols;

			if (!is_wanted(&v, (enum role)role, layer))
				continue;
			role_shape((enum role)role, c, &want_rows, &cols);
			if (rows[layer * ROLE_N_ + role] != want_rows)
				missing_add(missing, (enum role)role, layer);
		}
	}
	return missing_report(missing, "catalog", "", MISSING_CLASSES, err);
}
