/* Catalogs from a peer: a good one passes, every damaged number is named, nothing crashes. */
#include "shared/catalog.h"

#include "tests/harness/test.h"

static struct err err;

static struct source *open_tiny(void)
{
	const char *dir = test_data("oracle/tiny");
	struct source_want want = { .model_dirs = &dir, .n_model_dirs = 1, .tile_bytes = 8192 };
	struct source *s = NULL;

	err_clear(&err);
	CHECK_MSG(source_open(&want, &s, &err) == 0, "%s", err.text);
	return s;
}

/* A copy of exactly the catalog's bytes, for the sanitizers. */
static char *copy_of(const struct source *s)
{
	char *bytes = malloc(s->catalog_size);

	memcpy(bytes, s->catalog_bytes, s->catalog_size);
	return bytes;
}

static int check(const void *bytes, uint64_t size, const struct config *c)
{
	struct catalog cat;
	int r;

	err_clear(&err);
	r = catalog_open(bytes, size, &cat, &err);
	return r < 0 ? r : catalog_check(&cat, c, &err);
}

static void good(void)
{
	struct source *s = open_tiny();
	char *bytes = copy_of(s);
	struct catalog cat;

	CHECK_MSG(check(bytes, s->catalog_size, &s->config) == 0, "%s", err.text);
	CHECK(catalog_open(bytes, s->catalog_size, &cat, &err) == 0);
	CHECK(cat.header->n_layers == 9 && cat.header->n_experts == 24);
	CHECK(cat.header->embed_rows == 512 && cat.header->embed_cols == 96);
	CHECK_EQ(cat.tiles[0].role, ROLE_BUNDLE);
	CHECK_EQ(cat.tiles[cat.header->n_tiles - 1].role, ROLE_LM_HEAD);
	free(bytes);
	source_free(s);
}

#define HEADER(field, value, says)                                               \
	{                                                                        \
		offsetof(struct catalog_header, field),                          \
			sizeof(((struct catalog_header *)0)->field), value, says \
	}
#define TILE(index, field, value, says)                                                 \
	{                                                                               \
		sizeof(struct catalog_header) + (index) * sizeof(struct catalog_tile) + \
			offsetof(struct catalog_tile, field),                           \
			sizeof(((struct catalog_tile *)0)->field), value, says          \
	}

static void damaged(void)
{
	static const struct {
		size_t offset, size;
		uint64_t value;
		const char *says;
	} rows[] = {
		HEADER(magic, 1, "magic"),
		HEADER(version, 2, "version 2"),
		HEADER(header_size, 200, "header of 200"),
		HEADER(incompat, 4, "0x4"),
		HEADER(total_size, 100, "total_size is 100"),
		HEADER(n_layers, 0, "n_layers"),
		HEADER(n_layers, 1025, "n_layers"),
		HEADER(n_layers, 8, "out of order"),
		HEADER(n_tiles, 0, "tiles"),
		HEADER(n_tiles, UINT32_MAX, "tiles"),
		HEADER(n_parts, UINT32_MAX, "parts"),
		HEADER(tiles_off, 204, "tiles"),
		HEADER(tiles_off, 0, "tiles"),
		HEADER(tiles_off, UINT64_MAX - 7, "tiles"),
		HEADER(parts_off, UINT64_MAX - 7, "parts"),
		HEADER(parts_off, 8, "parts"),
		HEADER(n_experts, 0, "expert"),
		HEADER(n_experts, 23, "23 experts"),
		HEADER(max_tile_size, UINT64_MAX, "max_tile_size"),
		HEADER(max_tile_size, 4096, "slab_size"),
		HEADER(trunk_size, 4096, "trunk_size"),
		HEADER(expert_size, 4097, "expert_size"),
		HEADER(expert_size, 0, "expert_size"),
		HEADER(expert_rows[1], UINT32_MAX, "shapes"),
		HEADER(expert_cols[1], 2, "another shape"),
		HEADER(embed_dtype, 2, "embedding"),
		HEADER(embed_rows, 511, "embedding"),
		HEADER(embed_rows, 1ull << 40, "embedding"),
		HEADER(embed_cols, 0, "embedding"),
		HEADER(reserved[3], 1, "reserved"),
		TILE(0, layer, 1, "out of order"),
		TILE(0, role, ROLE_KDA_Q, "rows"),
		TILE(1, role, ROLE_INPUT_NORM, "role"),
		TILE(1, role, ROLE_EMBED, "role"),
		TILE(1, role, 500, "role"),
		TILE(1, role, ROLE_KDA_K, "belong into"),
		TILE(1, reserved0, 1, "reserved"),
		TILE(1, first_part, 0, "out of order"),
		TILE(1, n_parts, 0, "out of order"),
		TILE(1, n_parts, UINT32_MAX, "out of order"),
		TILE(1, first_row, 1, "out of order"),
		TILE(1, first_row, UINT32_MAX, "out of range"),
		TILE(1, n_rows, 1, "out of range"),
		TILE(1, slab_size, 0, "slab_size"),
		TILE(1, slab_size, 100, "slab_size"),
		TILE(1, data_size, 1, "data_size"),
	};
	struct source *s = open_tiny();

	for (size_t i = 0; i < N_ELEMENTS(rows); i++) {
		char *bytes = copy_of(s);

		memcpy(bytes + rows[i].offset, &rows[i].value, rows[i].size);
		CHECK_MSG(check(bytes, s->catalog_size, &s->config) < 0, "row %zu was accepted", i);
		CHECK_MSG(strstr(err.text, rows[i].says), "row %zu: \"%s\" does not say \"%s\"", i,
			  err.text, rows[i].says);
		CHECK(err.code == ERR_PROTOCOL || err.code == ERR_BIND);
		free(bytes);
	}
	for (uint64_t n = 0; n < s->catalog_size; n += n < 300 ? 1 : 997) {
		char *bytes = malloc(n + 1);

		memcpy(bytes, s->catalog_bytes, n);
		CHECK(check(bytes, n, &s->config) < 0);
		free(bytes);
	}
	source_free(s);
}

/* Random words everywhere: refused, or still a catalog whose every part lies in its tile. */
static void fuzz(void)
{
	static const uint32_t words[] = { 0, 1, 0x7fffffff, 0x80000000, UINT32_MAX, 4096, 0x10000 };
	struct source *s = open_tiny();
	uint64_t random = 0x9e3779b97f4a7c15ull;
	unsigned accepted = 0;

	for (unsigned i = 0; i < 20000; i++) {
		char *bytes = copy_of(s);
		struct catalog cat;
		size_t at;

		random = random * 6364136223846793005ull + 1442695040888963407ull;
		at = (size_t)(random >> 24) % (s->catalog_size / 4) * 4;
		memcpy(bytes + at, &words[random >> 60 & 7 ? (random >> 60) % 7 : 0], 4);
		err_clear(&err);
		if (catalog_open(bytes, s->catalog_size, &cat, &err) == 0) {
			accepted++;
			for (uint32_t k = 0; k < cat.header->n_tiles; k++)
				for (uint32_t p = 0; p < cat.tiles[k].n_parts; p++) {
					const struct catalog_part *part =
						&cat.parts[cat.tiles[k].first_part + p];

					CHECK(part->offset + part->size <= cat.tiles[k].slab_size);
				}
			(void)catalog_check(&cat, &s->config, &err);
		}
		free(bytes);
	}
	CHECK(accepted > 0 && accepted < 20000);
	source_free(s);
}

/* Sound in itself, but not this model. */
static void other_model(void)
{
	struct source *s = open_tiny();
	struct config c;

	c = s->config;
	c.is_mla[0] = 1;
	CHECK(catalog_check(&s->catalog, &c, &err) < 0);
	CHECK_MSG(err.code == ERR_BIND && strstr(err.text, "layer 0"), "%s", err.text);
	c = s->config;
	c.hidden_size = 97;
	err_clear(&err);
	CHECK(catalog_check(&s->catalog, &c, &err) < 0);
	c = s->config;
	c.n_layers = 8;
	err_clear(&err);
	CHECK(catalog_check(&s->catalog, &c, &err) < 0);
	CHECK_MSG(strstr(err.text, "9 layers"), "%s", err.text);
	source_free(s);
}

/* A catalog without its last tile is sound, but rows of the head are missing. */
static void missing(void)
{
	struct source *s = open_tiny();
	char *bytes = copy_of(s);
	struct catalog_header *h = (struct catalog_header *)(void *)bytes;

	h->n_tiles--;
	h->n_parts--;
	h->trunk_size -= s->catalog.tiles[h->n_tiles].slab_size;
	CHECK(check(bytes, s->catalog_size, &s->config) < 0);
	CHECK_MSG(err.code == ERR_BIND && strstr(err.text, "1 tensor is missing: lm_head.weight"),
		  "%s", err.text);
	free(bytes);
	source_free(s);
}

static const struct test_case cases[] = {
	{ "good", good },       { "damaged", damaged },
	{ "fuzz", fuzz },       { "other_model", other_model },
	{ "missing", missing },
};
TEST_MAIN(cases)
