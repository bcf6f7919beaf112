/*
 * From bound tensors to catalog rows and segments. A matrix is cut into tiles of nearly equal size,
 * at most tile_bytes each; cuts fall at multiples of CUT_ROWS rows (kv_b: of a head), so that
 * kernels meet whole blocks. Where a tile or slot has several segments, each starts at a page of
 * its own, since each is read as the pages around it.
 */
#include "shared/source_build.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shared/attr.h"
#include "shared/must.h"

enum { CUT_ROWS = 16, SEGMENTS_MAX = 64 };

/* ---- growing tables ---------------------------------------------------------------------- */

static int grow(struct source_build *b, void **table, uint32_t n, uint32_t *n_allocated,
		size_t row_size)
{
	uint32_t wanted = *n_allocated ? 2 * *n_allocated : 1024;
	void *grown;

	if (n < *n_allocated)
		return 0;
	if (wanted < n || wanted > UINT32_MAX / 4)
		return err_set(b->err, ERR_UNSUPPORTED, "too many tiles or segments");
	grown = reallocarray(*table, wanted, row_size);
	if (!grown)
		return err_set(b->err, ERR_NO_MEMORY, "no memory for %u table rows", wanted);
	*table = grown;
	*n_allocated = wanted;
	return 0;
}

/* The tile's first segment is the next one added; its parts likewise. */
int source_add_tile(struct source_build *b, const struct catalog_tile *tile)
{
	void *tiles = b->tiles, *firsts = b->s->tile_segment;
	int r = grow(b, &tiles, b->n_tiles, &b->n_tiles_allocated, sizeof(*tile));

	b->tiles = tiles;
	if (r == 0) /* one more row: the end of the last tile's segments */
		r = grow(b, &firsts, b->n_tiles + 1, &b->n_firsts_allocated, sizeof(uint32_t));
	b->s->tile_segment = firsts;
	if (r < 0)
		return r;
	b->s->tile_segment[b->n_tiles] = b->s->n_segments;
	b->tiles[b->n_tiles++] = *tile;
	return 0;
}

int source_add_part(struct source_build *b, const struct catalog_part *part)
{
	void *parts = b->parts;
	int r = grow(b, &parts, b->n_parts, &b->n_parts_allocated, sizeof(*part));

	b->parts = parts;
	if (r == 0)
		b->parts[b->n_parts++] = *part;
	return r;
}

int source_add_segment(struct source_build *b, const struct source_segment *segment)
{
	void *segments = b->s->segments;
	int r = grow(b, &segments, b->s->n_segments, &b->n_segments_allocated, sizeof(*segment));

	b->s->segments = segments;
	if (r == 0)
		b->s->segments[b->s->n_segments++] = *segment;
	return r;
}

/* ---- runs in files ----------------------------------------------------------------------- */

/* A tensor to place: where it lies, and which part it is. */
struct piece {
	uint64_t off, size;
	uint32_t file;
	uint32_t index;
};

static int compare_pieces(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return (x->off > y->off) - (x->off < y->off);
}

/*
 * Join pieces that touch into segments and place these page by page. ret_offsets[piece.index] is
 * where the piece's bytes will be, from the start of tile or slot; *ret_size the bytes it all
 * takes. Pieces are sorted on return.
 */
static int place_pieces(struct source_build *b, struct piece *pieces, uint32_t n,
			uint64_t *ret_offsets, uint64_t *ret_size)
{
	uint64_t slab_off = 0;

	qsort(pieces, n, sizeof(*pieces), compare_pieces);
	for (uint32_t i = 0; i < n;) {
		struct source_segment seg = { .file_off = pieces[i].off,
					      .slab_off = slab_off,
					      .file = pieces[i].file };
		uint64_t lead = seg.file_off % SOURCE_PAGE;
		int r;

		for (; i < n && pieces[i].file == seg.file &&
		       pieces[i].off == seg.file_off + seg.size;
		     i++) {
			ret_offsets[pieces[i].index] = slab_off + lead + seg.size;
			seg.size += pieces[i].size;
		}
		slab_off = source_round_up(slab_off + lead + seg.size, SOURCE_PAGE);
		r = source_add_segment(b, &seg);
		if (r < 0)
			return r;
	}
	*ret_size = slab_off;
	return 0;
}

/* ---- tiles ------------------------------------------------------------------------------- */

static int add_bundle(struct source_build *b, uint32_t layer, const enum role *roles, uint32_t n)
{
	struct catalog_tile tile = {
		.layer = layer, .role = ROLE_BUNDLE, .first_part = b->n_parts, .n_parts = n
	};
	struct piece pieces[SEGMENTS_MAX];
	uint64_t offsets[SEGMENTS_MAX];
	int r = source_add_tile(b, &tile);

	must(n > 0 && n <= SEGMENTS_MAX);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < n; i++) {
		const struct source_tensor *t = source_tensor_at(b, layer, roles[i]);

		pieces[i] = (struct piece){ t->off, t->size, t->file, i };
	}
	r = place_pieces(b, pieces, n, offsets, &b->tiles[b->n_tiles - 1].slab_size);
	for (uint32_t i = 0; r == 0 && i < n; i++) {
		const struct source_tensor *t = source_tensor_at(b, layer, roles[i]);
		struct catalog_part part = { .role = (uint16_t)roles[i],
					     .dtype = (uint16_t)t->dtype,
					     .offset = offsets[i] };

		role_shape(roles[i], &b->s->config, &part.rows, &part.cols);
		part.size = (uint64_t)part.rows * part.cols * source_dtype_size(t->dtype);
		b->tiles[b->n_tiles - 1].data_size += part.size;
		r = source_add_part(b, &part);
	}
	return r;
}

static int add_matrix_tile(struct source_build *b, uint32_t layer, enum role role, uint32_t cols,
			   uint32_t first_row, uint32_t n_rows)
{
	const struct source_tensor *t = source_tensor_at(b, layer, role);
	uint64_t row_size = (uint64_t)cols * source_dtype_size(t->dtype);
	struct source_segment seg = { .file_off = t->off + first_row * row_size,
				      .size = n_rows * row_size,
				      .file = t->file };
	struct catalog_part part = { .role = (uint16_t)role,
				     .dtype = (uint16_t)t->dtype,
				     .rows = n_rows,
				     .cols = cols,
				     .offset = seg.file_off % SOURCE_PAGE,
				     .size = seg.size };
	struct catalog_tile tile = { .layer = layer,
				     .role = (uint16_t)role,
				     .first_part = b->n_parts,
				     .n_parts = 1,
				     .first_row = first_row,
				     .n_rows = n_rows,
				     .slab_size =
					     source_round_up(part.offset + seg.size, SOURCE_PAGE),
				     .data_size = seg.size };
	int r = source_add_tile(b, &tile);

	if (r == 0)
		r = source_add_part(b, &part);
	return r == 0 ? source_add_segment(b, &seg) : r;
}

void source_cut(enum role role, const struct config *c, uint64_t row_size, uint64_t tile_bytes,
		struct source_cut *ret)
{
	uint32_t cols;
	uint64_t units_per_tile;

	role_shape(role, c, &ret->rows, &cols);
	ret->unit = role == ROLE_MLA_KV_B                   ? c->qk_nope_dim + c->v_dim
		    : tile_bytes / row_size >= 2 * CUT_ROWS ? CUT_ROWS
							    : 1;
	ret->n_units = (ret->rows + ret->unit - 1) / ret->unit;
	units_per_tile = tile_bytes / (row_size * ret->unit);
	if (units_per_tile == 0)
		units_per_tile = 1;
	ret->n_tiles = (uint32_t)((ret->n_units + units_per_tile - 1) / units_per_tile);
}

uint32_t source_cut_end(const struct source_cut *cut, uint32_t i)
{
	uint64_t end = (uint64_t)cut->n_units * (i + 1) / cut->n_tiles * cut->unit;

	return end < cut->rows ? (uint32_t)end : cut->rows;
}

static int add_matrix(struct source_build *b, uint32_t layer, enum role role, uint64_t tile_bytes)
{
	const struct config *c = &b->s->config;
	struct source_cut cut;
	uint32_t rows, cols, done = 0;

	role_shape(role, c, &rows, &cols);
	source_cut(role, c,
		   (uint64_t)cols * source_dtype_size(source_tensor_at(b, layer, role)->dtype),
		   tile_bytes, &cut);
	for (uint32_t i = 0; i < cut.n_tiles; i++) {
		uint32_t next = source_cut_end(&cut, i);
		int r = add_matrix_tile(b, layer, role, cols, done, next - done);

		if (r < 0)
			return r;
		done = next;
	}
	return 0;
}

/* The tiles of one layer, or of the head when layer is n_layers. */
static int cut_layer(struct source_build *b, uint32_t layer, uint64_t tile_bytes)
{
	enum role vectors[ROLE_N_], matrices[ROLE_N_];
	uint32_t n_vectors = 0, n_matrices = 0;
	int r;

	for (unsigned i = 0; i < ROLE_N_; i++) {
		enum role role = (enum role)i;
		bool is_here = layer == b->n_layers ? role_layer_kind(role) == LAYER_HEAD
						    : role_in_layer(role, &b->s->config, layer);

		if (is_here && role_is_vector(role))
			vectors[n_vectors++] = role;
		else if (is_here)
			matrices[n_matrices++] = role;
	}
	r = add_bundle(b, layer, vectors, n_vectors);
	for (uint32_t i = 0; r == 0 && i < n_matrices; i++)
		r = add_matrix(b, layer, matrices[i], tile_bytes);
	return r;
}

int source_cut_tiles(struct source_build *b, uint64_t tile_bytes)
{
	const struct source_tensor *embed = source_tensor_at(b, b->n_layers, ROLE_EMBED);
	int r = 0;

	for (uint32_t layer = 0; r == 0 && layer <= b->n_layers; layer++)
		r = cut_layer(b, layer, tile_bytes);
	b->s->embed_file = embed->file;
	b->s->embed_off = embed->off;
	b->s->embed_row_size = (uint64_t)b->s->config.hidden_size * source_dtype_size(embed->dtype);
	return r;
}

/* ---- experts ----------------------------------------------------------------------------- */

static int lay_out_expert(struct source_build *b, const struct source_expert_part *parts,
			  const uint64_t sizes[EXPERT_PARTS], struct source_expert *ret)
{
	struct piece pieces[EXPERT_PARTS];
	uint64_t offsets[EXPERT_PARTS], size = 0;
	int r;

	for (uint32_t i = 0; i < EXPERT_PARTS; i++)
		pieces[i] = (struct piece){ parts[i].off, sizes[i], parts[i].file_plus_1 - 1, i };
	ret->first_segment = b->s->n_segments;
	r = place_pieces(b, pieces, EXPERT_PARTS, offsets, &size);
	if (r < 0)
		return r;
	if (size > UINT32_MAX)
		return err_set(b->err, ERR_UNSUPPORTED,
			       "an expert takes %llu bytes, more than 4 GB",
			       (unsigned long long)size);
	ret->n_segments = b->s->n_segments - ret->first_segment;
	for (uint32_t i = 0; i < EXPERT_PARTS; i++)
		ret->part_off[i] = (uint32_t)offsets[i];
	if (size > b->expert_size)
		b->expert_size = size;
	return 0;
}

int source_lay_out_experts(struct source_build *b)
{
	struct source *s = b->s;
	const struct config *c = &s->config;
	uint64_t sizes[EXPERT_PARTS], total = 0;
	uint32_t n_moe = 0;

	for (uint32_t i = 0; i < EXPERT_PARTS; i++) {
		uint32_t rows, cols;

		expert_part_shape((enum expert_part)i, c, &rows, &cols);
		sizes[i] = (uint64_t)rows * cols;
		total += sizes[i];
	}
	/* Never 0, even when no layer with experts is bound. */
	b->expert_size = source_round_up(total, SOURCE_PAGE);
	for (uint32_t layer = 0; layer < b->n_layers; layer++)
		n_moe += config_layer_is_moe(c, layer);
	if ((uint64_t)n_moe * c->n_experts > UINT32_MAX / 8)
		return err_set(b->err, ERR_UNSUPPORTED, "%u layers of %u experts are too many",
			       n_moe, c->n_experts);
	s->expert_base = calloc(b->n_layers, sizeof(*s->expert_base));
	s->experts = calloc((size_t)n_moe * c->n_experts + 1, sizeof(*s->experts));
	if (!s->expert_base || !s->experts)
		return err_set(b->err, ERR_NO_MEMORY, "no memory for the experts' places");
	for (uint32_t layer = 0; layer < b->n_layers; layer++) {
		s->expert_base[layer] = UINT32_MAX;
		if (!config_layer_is_moe(c, layer))
			continue;
		s->expert_base[layer] = s->n_experts;
		for (uint32_t i = 0; i < c->n_experts; i++) {
			int r = lay_out_expert(b, &b->experts[layer][(size_t)i * EXPERT_PARTS],
					       sizes, &s->experts[s->n_experts]);

			if (r < 0)
				return r;
			s->n_experts++;
		}
	}
	return 0;
}

/* ---- the catalog's bytes ----------------------------------------------------------------- */

int source_make_catalog(struct source_build *b)
{
	struct source *s = b->s;
	const struct config *c = &s->config;
	uint64_t tiles_size = b->n_tiles * sizeof(struct catalog_tile);
	uint64_t parts_size = b->n_parts * sizeof(struct catalog_part);
	struct catalog_header h = {
		.magic = CATALOG_MAGIC,
		.version = CATALOG_VERSION,
		.header_size = sizeof(h),
		.n_layers = b->n_layers,
		.n_tiles = b->n_tiles,
		.n_parts = b->n_parts,
		.n_experts = c->n_experts,
		.tiles_off = sizeof(h),
		.parts_off = sizeof(h) + tiles_size,
		.total_size = sizeof(h) + tiles_size + parts_size,
		.expert_size = b->expert_size,
		.embed_dtype =
			s->embed_row_size == 4ULL * c->hidden_size ? CATALOG_F32 : CATALOG_BF16,
		.embed_cols = c->hidden_size,
		.embed_rows = c->vocab_size,
	};
	char *bytes;

	memcpy(h.model_digest, s->model_digest, sizeof(h.model_digest));
	for (uint32_t i = 0; i < b->n_tiles; i++) {
		h.trunk_size += b->tiles[i].slab_size;
		if (b->tiles[i].slab_size > h.max_tile_size)
			h.max_tile_size = b->tiles[i].slab_size;
	}
	for (uint32_t i = 0; i < EXPERT_PARTS; i++)
		expert_part_shape((enum expert_part)i, c, &h.expert_rows[i], &h.expert_cols[i]);
	bytes = malloc(h.total_size);
	if (!bytes)
		return err_set(b->err, ERR_NO_MEMORY, "no memory for the catalog");
	memcpy(bytes, &h, sizeof(h));
	memcpy(bytes + h.tiles_off, b->tiles, tiles_size);
	memcpy(bytes + h.parts_off, b->parts, parts_size);
	s->catalog_bytes = bytes;
	s->catalog_size = h.total_size;
	return catalog_open(bytes, h.total_size, &s->catalog, b->err);
}
