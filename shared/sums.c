/*
 * See sums.h. Where each number stands follows from the config alone; sums_file.c reads and writes
 * the file. Hashing and checking are one walk, so that both mean the same bytes.
 */
#include "shared/sums.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/attr.h"
#include "shared/must.h"
#include "shared/sums_make.h"

struct sums *sums_free(struct sums *m)
{
	if (!m)
		return NULL;
	free(m->first_block);
	free(m->tables);
	free(m);
	return NULL;
}

void sums_freep(struct sums **m)
{
	*m = sums_free(*m);
}

/* Rows of a block of this role: cuts of kv_b fall between heads. */
static uint32_t block_rows(enum role role, const struct config *c)
{
	uint32_t rows, cols;

	if (role_is_vector(role)) {
		role_shape(role, c, &rows, &cols);
		return rows;
	}
	return role == ROLE_MLA_KV_B ? c->qk_nope_dim + c->v_dim : SUMS_BLOCK_ROWS;
}

static bool is_in(enum role role, const struct config *c, uint32_t layer, uint32_t n_layers)
{
	return layer == n_layers ? role_layer_kind(role) == LAYER_HEAD
				 : role_in_layer(role, c, layer);
}

/* Number the blocks. */
static int lay_out(struct sums *m, const struct source *s, uint32_t n_layers)
{
	const struct config *c = &s->config;
	uint64_t n_moe = 0, n = 0;

	m->first_block = calloc((n_layers + 1) * (size_t)ROLE_N_, sizeof(*m->first_block));
	if (!m->first_block)
		return -1;
	for (uint32_t layer = 0; layer <= n_layers; layer++)
		for (unsigned i = 0; i < ROLE_N_; i++) {
			enum role role = (enum role)i;
			uint32_t rows, cols, unit = block_rows(role, c);

			m->first_block[layer * ROLE_N_ + i] = UINT32_MAX;
			if (!is_in(role, c, layer, n_layers))
				continue;
			role_shape(role, c, &rows, &cols);
			m->first_block[layer * ROLE_N_ + i] = (uint32_t)n;
			n += ((uint64_t)rows + unit - 1) / unit;
			if (n > UINT32_MAX / 2)
				return -1;
		}
	for (uint32_t layer = 0; layer < n_layers; layer++)
		n_moe += config_layer_is_moe(c, layer);
	m->header.n_layers = n_layers;
	m->header.n_blocks = n;
	m->header.n_experts = n_moe * c->n_experts * EXPERT_PARTS;
	m->header.n_rows = c->vocab_size;
	m->header.file_size = 4096 + 8 * (n + m->header.n_experts + m->header.n_rows);
	return 0;
}

int sums_make(const struct source *s, uint32_t n_layers, struct sums **ret)
{
	CLEANUP(sums_freep) struct sums *m = calloc(1, sizeof(*m));

	if (!m || lay_out(m, s, n_layers) < 0)
		return -1;
	m->tables = calloc(1, m->header.file_size - 4096);
	if (!m->tables)
		return -1;
	m->blocks = m->tables;
	m->experts = m->blocks + m->header.n_blocks;
	m->rows = m->experts + m->header.n_experts;
	m->header.version = SUMS_VERSION;
	m->header.header_size = sizeof(m->header);
	memcpy(m->header.model_digest, s->model_digest, sizeof(m->header.model_digest));
	*ret = TAKE(m);
	return 0;
}

int sums_new(const struct source *s, struct sums **ret, struct err *err)
{
	if (sums_make(s, s->catalog.header->n_layers, ret) < 0)
		return err_set(err, ERR_NO_MEMORY, "no memory for the table of checksums");
	if (!sums_can_check(s)) {
		*ret = sums_free(*ret);
		return err_set(err, ERR_UNSUPPORTED, "rows of this model are too long for a tile");
	}
	return 0;
}

/* ---- hashing ----------------------------------------------------------------------------- */

/* Set *sum, or compare with it: false for the fault that is looked for. */
static bool settle(uint64_t *sum, bool sets, const uint8_t *bytes, uint64_t size,
		   struct sums_fault *f)
{
	uint64_t hash = XXH3_64bits(bytes, size);

	if (sets)
		*sum = hash;
	return *sum == hash || f->nth-- > 0;
}

/* Where byte slab_off of a tile or slot came from. */
static void find_origin(const struct source *s, uint32_t first_segment, uint32_t n_segments,
			uint64_t slab_off, struct sums_fault *ret)
{
	const struct source_segment *seg =
		source_find_origin(s, first_segment, n_segments, slab_off, &ret->file_off);

	ret->file = seg ? seg->file : UINT32_MAX;
}

/* The head is another layer in a source with fewer layers. */
static uint32_t layer_of(const struct sums *m, const struct source *s, const struct catalog_tile *t)
{
	return t->layer == s->catalog.header->n_layers ? m->header.n_layers : t->layer;
}

/* One part of a tile. */
static int walk_part(const struct sums *m, const struct source *s, uint32_t tile, uint32_t part,
		     const uint8_t *bytes, bool sets, struct sums_fault *ret)
{
	const struct catalog_tile *t = &s->catalog.tiles[tile];
	const struct catalog_part *p = &s->catalog.parts[part];
	enum role role = (enum role)p->role;
	uint32_t unit = block_rows(role, &s->config);
	uint32_t base = m->first_block[layer_of(m, s, t) * ROLE_N_ + role];
	uint64_t row_size = p->size / p->rows;
	uint32_t n_matrix_rows, cols;

	must(base != UINT32_MAX);
	role_shape(role, &s->config, &n_matrix_rows, &cols);
	if (t->first_row % unit != 0)
		return 0; /* see sums_can_check */
	base += t->first_row / unit;
	for (uint32_t row = 0; row < p->rows; row += unit, base++) {
		uint32_t n = p->rows - row < unit ? p->rows - row : unit;
		uint64_t off = p->offset + row * row_size;

		if (n < unit && t->first_row + p->rows < n_matrix_rows)
			return 0; /* the block goes on in the next tile: sums_can_check */
		if (settle(&m->blocks[base], sets, bytes + off, n * row_size, ret))
			continue;
		(void)names_format(role, t->layer, ret->name, sizeof(ret->name));
		ret->first_row = t->first_row + row;
		ret->n_rows = role_is_vector(role) ? 0 : n;
		ret->size = n * row_size;
		find_origin(s, s->tile_segment[tile],
			    s->tile_segment[tile + 1] - s->tile_segment[tile], off, ret);
		return 1;
	}
	return 0;
}

static int walk_tile(const struct sums *m, const struct source *s, uint32_t tile,
		     const uint8_t *bytes, bool sets, struct sums_fault *ret)
{
	const struct catalog_tile *t = &s->catalog.tiles[tile];
	int r = 0;

	for (uint32_t i = t->first_part; r == 0 && i < t->first_part + t->n_parts; i++)
		r = walk_part(m, s, tile, i, bytes, sets, ret);
	return r;
}

static int walk_expert(const struct sums *m, const struct source *s, uint32_t layer,
		       uint32_t expert, const uint8_t *bytes, bool sets, struct sums_fault *ret)
{
	const struct source_expert *e = source_expert(s, layer, expert);
	const struct catalog_header *h = s->catalog.header;
	uint64_t *sums;

	must(e);
	sums = m->experts + ((uint64_t)s->expert_base[layer] + expert) * EXPERT_PARTS;
	for (unsigned i = 0; i < EXPERT_PARTS; i++) {
		uint64_t size = (uint64_t)h->expert_rows[i] * h->expert_cols[i];

		if (settle(&sums[i], sets, bytes + e->part_off[i], size, ret))
			continue;
		(void)names_format_expert(layer, expert, (enum expert_part)i, ret->name,
					  sizeof(ret->name));
		ret->first_row = ret->n_rows = 0;
		ret->size = size;
		find_origin(s, e->first_segment, e->n_segments, e->part_off[i], ret);
		return 1;
	}
	return 0;
}

static int walk_rows(const struct sums *m, const struct source *s, uint32_t first, uint32_t n,
		     const uint8_t *rows, bool sets, struct sums_fault *ret)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t size = s->embed_row_size;

		if (settle(&m->rows[first + i], sets, rows + i * size, size, ret))
			continue;
		(void)names_format(ROLE_EMBED, 0, ret->name, sizeof(ret->name));
		ret->first_row = first + i;
		ret->n_rows = 1;
		ret->size = size;
		ret->file = s->embed_file;
		ret->file_off = s->embed_off + (first + i) * size;
		return 1;
	}
	return 0;
}

bool sums_can_check(const struct source *s)
{
	for (uint32_t i = 0; i < s->catalog.header->n_tiles; i++) {
		const struct catalog_tile *t = &s->catalog.tiles[i];

		if (t->role != ROLE_BUNDLE &&
		    t->first_row % block_rows((enum role)t->role, &s->config) != 0)
			return false;
	}
	return true;
}

int sums_check_tile(const struct sums *m, const struct source *s, uint32_t tile,
		    const uint8_t *bytes, struct sums_fault *ret)
{
	return walk_tile(m, s, tile, bytes, false, ret);
}

int sums_check_expert(const struct sums *m, const struct source *s, uint32_t layer, uint32_t expert,
		      const uint8_t *bytes, struct sums_fault *ret)
{
	return walk_expert(m, s, layer, expert, bytes, false, ret);
}

int sums_check_rows(const struct sums *m, const struct source *s, uint32_t first, uint32_t n,
		    const uint8_t *rows, struct sums_fault *ret)
{
	return walk_rows(m, s, first, n, rows, false, ret);
}

void sums_set_tile(struct sums *m, const struct source *s, uint32_t tile, const uint8_t *bytes)
{
	(void)walk_tile(m, s, tile, bytes, true, NULL);
}

void sums_set_expert(struct sums *m, const struct source *s, uint32_t layer, uint32_t expert,
		     const uint8_t *bytes)
{
	(void)walk_expert(m, s, layer, expert, bytes, true, NULL);
}

void sums_set_rows(struct sums *m, const struct source *s, uint32_t first, uint32_t n,
		   const uint8_t *rows)
{
	(void)walk_rows(m, s, first, n, rows, true, NULL);
}

int sums_fail(const struct source *s, const struct sums_fault *f, struct err *err)
{
	bool is_trunk = f->file < s->n_files && f->file >= s->n_files - s->n_trunk_files;
	char rows[64] = "";

	if (f->n_rows == 1)
		(void)snprintf(rows, sizeof(rows), "row %u of ", f->first_row);
	else if (f->n_rows > 1)
		(void)snprintf(rows, sizeof(rows), "rows %u to %u of ", f->first_row,
			       f->first_row + f->n_rows - 1);
	return err_set(err, is_trunk ? ERR_TRUNK : ERR_CHECKPOINT,
		       "%s: %s%s, bytes %" PRIu64 " to %" PRIu64
		       " of the file, does not have its checksum: the file is damaged, %s",
		       f->file < s->n_files ? s->files[f->file].path : "?", rows, f->name,
		       f->file_off, f->file_off + f->size - 1,
		       is_trunk ? "make it again with k3-store pack" : "fetch it again");
}
