/*
 * source_open on the oracle checkpoints: every byte the catalog promises is the byte a second
 * header reader finds; and every way in which shards and config can disagree is refused with names.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/catalog.h"
#include "tests/harness/test.h"
#include "tests/shared/files.h"

static struct err err;

static struct source *open_dirs(const char *a, const char *b, uint32_t max_layers,
				uint64_t tile_bytes)
{
	const char *dirs[] = { a, b };
	struct source_want want = { .model_dirs = dirs,
				    .n_model_dirs = b ? 2 : 1,
				    .max_layers = max_layers,
				    .tile_bytes = tile_bytes };
	struct source *s = NULL;

	err_clear(&err);
	if (source_open(&want, &s, &err) < 0)
		CHECK(err.code != ERR_NONE && !s);
	else
		CHECK(s && err.code == ERR_NONE);
	return s;
}

static void must_refuse(const char *dir, enum err_code code, const char *says)
{
	struct source *s = open_dirs(dir, NULL, 0, 0);

	CHECK_MSG(!s, "%s was accepted instead of: %s", dir, says);
	CHECK_MSG(strstr(err.text, says), "\"%s\" does not say \"%s\"", err.text, says);
	CHECK_MSG(err.code == code, "%s: code %s", err.text, err_name(err.code));
}

/* What a reader of whole pages would put into a tile or slot. */
static void fill_slab(const struct source *s, uint32_t first, uint32_t end, char *slab,
		      uint64_t slab_size)
{
	memset(slab, 0x5a, slab_size);
	for (uint32_t i = first; i < end; i++) {
		const struct source_segment *g = &s->segments[i];
		uint64_t lead = g->file_off % 4096;
		uint64_t pages = (lead + g->size + 4095) / 4096 * 4096;

		CHECK(g->slab_off % 4096 == 0 && g->slab_off + pages <= slab_size);
		CHECK(g->file < s->n_files && g->file_off + g->size <= s->files[g->file].size);
		CHECK(pread(s->files[g->file].fd, slab + g->slab_off, pages,
			    (off_t)(g->file_off - lead)) >= (ssize_t)(lead + g->size));
	}
}

/* All tiles against the tensors of the shards. */
static void check_tiles(const struct source *s, json_t *headers, uint64_t tile_bytes)
{
	const struct catalog *cat = &s->catalog;
	char *slab = malloc(cat->header->max_tile_size);

	for (uint32_t i = 0; i < cat->header->n_tiles; i++) {
		const struct catalog_tile *t = &cat->tiles[i];

		fill_slab(s, s->tile_segment[i], s->tile_segment[i + 1], slab, t->slab_size);
		if (t->role != ROLE_BUNDLE && t->n_rows > 1)
			CHECK(t->data_size <= tile_bytes || t->role == ROLE_MLA_KV_B);
		for (uint32_t k = t->first_part; k < t->first_part + t->n_parts; k++) {
			const struct catalog_part *p = &cat->parts[k];
			uint64_t begin = t->role == ROLE_BUNDLE
						 ? 0
						 : (uint64_t)t->first_row * (p->size / p->rows);
			char name[256], *bytes;
			size_t size;

			(void)names_format((enum role)p->role, t->layer, name, sizeof(name));
			bytes = files_tensor(headers, name, &size);
			CHECK_MSG(begin + p->size <= size, "%s", name);
			CHECK_MSG(memcmp(slab + p->offset, bytes + begin, p->size) == 0,
				  "%s of tile %u has other bytes", name, i);
			if (p->role != ROLE_KDA_A_LOG && t->role == ROLE_BUNDLE)
				CHECK_EQ(p->size, size);
			CHECK_STR(p->dtype == CATALOG_F32 ? "F32" : "BF16",
				  json_string_value(json_object_get(json_object_get(headers, name),
								    "dtype")));
			free(bytes);
		}
	}
	free(slab);
}

static void check_experts(const struct source *s, json_t *headers)
{
	uint64_t slot = s->catalog.header->expert_size;
	char *slab = malloc(slot), name[256];

	for (uint32_t layer = 0; layer < s->catalog.header->n_layers; layer++) {
		if (!config_layer_is_moe(&s->config, layer)) {
			CHECK(!source_expert(s, layer, 0));
			continue;
		}
		for (uint32_t i = 0; i < s->config.n_experts; i++) {
			const struct source_expert *e = source_expert(s, layer, i);

			CHECK(e && e->n_segments >= 1 && e->n_segments <= 6);
			fill_slab(s, e->first_segment, e->first_segment + e->n_segments, slab,
				  slot);
			for (unsigned p = 0; p < EXPERT_PARTS; p++) {
				size_t size;
				char *bytes;

				(void)names_format_expert(layer, i, (enum expert_part)p, name,
							  sizeof(name));
				bytes = files_tensor(headers, name, &size);
				CHECK_MSG(memcmp(slab + e->part_off[p], bytes, size) == 0, "%s",
					  name);
				free(bytes);
			}
		}
		CHECK(!source_expert(s, layer, s->config.n_experts));
	}
	CHECK(!source_expert(s, s->catalog.header->n_layers, 0));
	free(slab);
}

static void check_all(const char *dir, uint64_t tile_bytes)
{
	json_t *headers = files_headers(dir);
	struct source *s = open_dirs(dir, NULL, 0, tile_bytes);
	char *row, *embed;
	size_t size;

	CHECK_MSG(s, "%s", err.text);
	CHECK_EQ(s->n_tensors, json_object_size(headers));
	check_tiles(s, headers, tile_bytes ? tile_bytes : CATALOG_TILE_BYTES);
	check_experts(s, headers);
	embed = files_tensor(headers, "language_model.model.embed_tokens.weight", &size);
	CHECK_EQ(size, s->embed_row_size * s->config.vocab_size);
	row = malloc(s->embed_row_size);
	CHECK(pread(s->files[s->embed_file].fd, row, s->embed_row_size,
		    (off_t)(s->embed_off + 17 * s->embed_row_size)) == (ssize_t)s->embed_row_size);
	CHECK(memcmp(row, embed + 17 * s->embed_row_size, s->embed_row_size) == 0);
	free(row);
	free(embed);
	json_decref(headers);
	source_free(s);
}

static void bytes_tiny(void)
{
	check_all(test_data("oracle/tiny"), 0);
}

static void bytes_small_tiles(void)
{
	check_all(test_data("oracle/tiny"), 4096);
	check_all(test_data("oracle/odd"), 20000);
}

static void bytes_flat(void)
{
	check_all(test_data("oracle/tiny13"), 8192);
}

/* Two numberings lie in that folder; the index names one. */
static void leftovers(void)
{
	check_all(test_data("oracle/blocks"), 0);
}

/* The digest tells the model, not where it lies. */
static void digest(void)
{
	const char *tiny = test_data("oracle/tiny");
	const char *a = files_tmp("a"), *b = files_tmp("b");
	struct source *one = open_dirs(tiny, NULL, 0, 0), *two;
	char from[4096], to[4096];

	files_link_all(tiny, a);
	CHECK(mkdir(b, 0755) == 0);
	for (unsigned i = 1; i <= 4; i++) {
		(void)snprintf(from, sizeof(from), "%s/model-%05u-of-000010.safetensors", a, i);
		(void)snprintf(to, sizeof(to), "%s/model-%05u-of-000010.safetensors", b, i);
		CHECK(rename(from, to) == 0);
	}
	two = open_dirs(b, a, 0, 0);
	CHECK_MSG(two, "%s", err.text);
	CHECK(memcmp(one->model_digest, two->model_digest, 16) == 0);
	source_free(two);
	/* Without an index, under other names that change the order. */
	(void)snprintf(from, sizeof(from), "%s/model.safetensors.index.json", a);
	CHECK(unlink(from) == 0);
	(void)snprintf(from, sizeof(from), "%s/model-00001-of-000010.safetensors", b);
	(void)snprintf(to, sizeof(to), "%s/zzz.safetensors", a);
	CHECK(rename(from, to) == 0);
	two = open_dirs(a, b, 0, 0);
	CHECK_MSG(two, "%s", err.text);
	CHECK(memcmp(one->model_digest, two->model_digest, 16) == 0);
	source_free(two);
	/* One directory twice is the same files, not doubled ones. */
	two = open_dirs(tiny, tiny, 0, 0);
	CHECK_MSG(two, "%s", err.text);
	source_free(two);
	(void)snprintf(to, sizeof(to), "%s/config.json", a);
	files_patch(to, 0, "\"top_k\": 50", "\"top_k\": 51");
	two = open_dirs(a, b, 0, 0);
	CHECK_MSG(two, "%s", err.text);
	CHECK(memcmp(one->model_digest, two->model_digest, 16) != 0);
	source_free(two);
	source_free(one);
}

/* A copy of tiny as links, whose given shard may be changed. */
static const char *copy_tiny(const char *name, unsigned shard, char path[4096])
{
	const char *dir = files_tmp(name);

	files_link_all(test_data("oracle/tiny"), dir);
	(void)snprintf(path, 4096, "%s/model-%05u-of-000010.safetensors", dir, shard);
	if (shard)
		files_own(path);
	return dir;
}

static void missing_shards(void)
{
	char path[4096], index[4096];
	const char *dir = copy_tiny("a", 3, path);
	struct source *s;

	CHECK(unlink(path) == 0);
	must_refuse(dir, ERR_BIND, "layers 2 (counted");
	CHECK_MSG(strstr(err.text, "model-00003-of-000010.safetensors"), "%s", err.text);
	/* The shard says it all: a few names of what it should have are enough. */
	CHECK_MSG(strstr(err.text, "layers.2.input_layernorm.weight; ") &&
			  strstr(err.text, " more kinds"),
		  "%s", err.text);
	/* Not needed when only the first two layers are bound. */
	s = open_dirs(dir, NULL, 2, 0);
	CHECK_MSG(s, "%s", err.text);
	CHECK_EQ(s->catalog.header->n_layers, 2);
	CHECK(s->catalog.tiles[s->catalog.header->n_tiles - 1].role == ROLE_LM_HEAD);
	CHECK_EQ(s->catalog.tiles[s->catalog.header->n_tiles - 1].layer, 2);
	source_free(s);
	CHECK(!open_dirs(dir, NULL, 3, 0));
	CHECK(!open_dirs(dir, NULL, 10, 0));
	CHECK_EQ(err.code, ERR_USAGE);
	(void)snprintf(index, sizeof(index), "%s/model.safetensors.index.json", dir);
	CHECK(unlink(index) == 0);
	must_refuse(dir, ERR_BIND, "layers 2 (counted");
}

static void other_shards(void)
{
	static const char vision[] = "{\"vision_tower.x\":{\"dtype\":\"F16\",\"shape\":[2],"
				     "\"data_offsets\":[0,4]}}";
	static const char text[] = "{\"language_model.x\":{\"dtype\":\"F16\",\"shape\":[2],"
				   "\"data_offsets\":[0,4]}}";
	char path[4096], other[4096];
	const char *dir = copy_tiny("a", 2, path);

	(void)snprintf(other, sizeof(other), "%s/model.safetensors.index.json", dir);
	CHECK(unlink(other) == 0);
	(void)snprintf(other, sizeof(other), "%s/copy.safetensors", dir);
	CHECK(link(path, other) == 0); /* the same file: once */
	source_free(open_dirs(dir, NULL, 0, 0));
	CHECK_MSG(err.code == ERR_NONE, "%s", err.text);
	files_own(other); /* unlinks and writes a copy */
	must_refuse(dir, ERR_BIND, "is also in");
	CHECK(unlink(other) == 0);
	files_write_shard(other, vision, strlen(vision), 4);
	source_free(open_dirs(dir, NULL, 0, 0));
	CHECK_MSG(err.code == ERR_NONE, "%s", err.text);
	files_write_shard(other, text, strlen(text), 4);
	must_refuse(dir, ERR_BIND, "language_model.x is no tensor of the model");
	CHECK(unlink(other) == 0);
	CHECK(symlink("/nonexistent", other) == 0);
	must_refuse(dir, ERR_CHECKPOINT, "copy.safetensors");
}

/* Headers changed in place so that they stay valid safetensors. */
static void disagreements(void)
{
	static const struct {
		unsigned shard;
		const char *from, *to, *says;
	} rows[] = {
		{ 2, "layers.1.self_attn.q_proj.weight", "layers.1.self_attn.Q_proj.weight",
		  "is no tensor of the model" },
		{ 2, "self_attn.q_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[80,96]",
		  "self_attn.q_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[96,80]",
		  "q_proj.weight has shape [96, 80], the config says [80, 96]" },
		{ 2, "self_attn.A_log\":{\"dtype\":\"F32\",\"shape\":[16]",
		  "self_attn.A_log\":{\"dtype\":\"I32\",\"shape\":[16]", "dtype I32 instead of" },
		{ 2, "self_attn.dt_bias\":{\"dtype\":\"F32\",\"shape\":[80]",
		  "self_attn.dt_bias\":{\"dtype\":\"F64\",\"shape\":[40]", "[40]" },
		{ 2, "layers.1.input_layernorm", "layers.9.input_layernorm",
		  "the config says 9 layers" },
		{ 2, "experts.23.w1.weight_packed", "experts.24.w1.weight_packed",
		  "the config says 24 experts" },
		{ 2, "layers.1.block_sparse_moe.experts.10.w1.weight_packed",
		  "layers.0.block_sparse_moe.experts.10.w1.weight_packed", "the config says 24" },
		{ 2, "experts.10.w1.weight_packed\":{\"dtype\":\"U8\"",
		  "experts.10.w1.weight_packed\":{\"dtype\":\"I8\"", "dtype I8 instead of U8" },
		{ 2, "experts.10.w1.weight_packed\":{\"dtype\":\"U8\",\"shape\":[64,16]",
		  "experts.10.w1.weight_packed\":{\"dtype\":\"U8\",\"shape\":[16,64]", "[16, 64]" },
		{ 2, "layers.1.self_attn.q_proj.weight", "layers.4.self_attn.q_proj.weight",
		  "is also in" },
		{ 4, "layers.3.self_attn.q_b_proj.weight", "layers.1.self_attn.q_b_proj.weight",
		  "does not belong into a layer of this kind" },
	};

	for (size_t i = 0; i < N_ELEMENTS(rows); i++) {
		char path[4096], name[16];
		const char *dir;

		(void)snprintf(name, sizeof(name), "d%zu", i);
		dir = copy_tiny(name, rows[i].shard, path);
		files_patch(path, 0, rows[i].from, rows[i].to);
		must_refuse(dir, ERR_BIND, rows[i].says);
	}
}

static void bad_index(void)
{
	static const struct {
		const char *text, *says;
	} rows[] = {
		{ "", "too early" },
		{ "[]", "'{' belongs" },
		{ "{}", "weight_map is missing" },
		{ "{\"weight_map\": []}", "object weight_map" },
		{ "{\"weight_map\": {\"a\": 1}}", "belongs" },
		{ "{\"weight_map\": {\"a\": \"../x.safetensors\"}}", "not a file name" },
		{ "{\"weight_map\": {\"a\": \"\"}}", "not a file name" },
		{ "{\"weight_map\": {\"a\": \"x.safetensors\"}", "too early" },
		{ "{\"metadata\": {\"total_size\": 3}, \"weight_map\": {\"a\": \"x.safetensors\"}}",
		  "no *.safetensors file" },
	};
	char path[4096];
	const char *dir = copy_tiny("a", 0, path);

	(void)snprintf(path, sizeof(path), "%s/model.safetensors.index.json", dir);
	files_own(path);
	for (size_t i = 0; i < N_ELEMENTS(rows); i++) {
		files_write(path, rows[i].text, strlen(rows[i].text));
		must_refuse(dir, ERR_CHECKPOINT, rows[i].says);
	}
}

static void no_model(void)
{
	char path[4096];
	const char *dir = copy_tiny("a", 1, path);

	must_refuse("/nonexistent", ERR_CONFIG, "no config.json");
	CHECK(truncate(path, 1000) == 0);
	must_refuse(dir, ERR_CHECKPOINT, "model-00001-of-000010.safetensors");
	(void)snprintf(path, sizeof(path), "%s/config.json", dir);
	CHECK(truncate(path, 100) == 0);
	must_refuse(dir, ERR_CONFIG, "not valid JSON");
}

/* kv_b is cut at heads; cuts are even. */
static void cuts(void)
{
	struct source *s = open_dirs(test_data("oracle/shape"), NULL, 0, 100000);
	uint32_t head, least = UINT32_MAX, most = 0, n = 0;

	CHECK_MSG(s, "%s", err.text);
	head = s->config.qk_nope_dim + s->config.v_dim;
	for (uint32_t i = 0; i < s->catalog.header->n_tiles; i++) {
		const struct catalog_tile *t = &s->catalog.tiles[i];

		if (t->role == ROLE_MLA_KV_B)
			CHECK(t->first_row % head == 0 && t->n_rows % head == 0);
		if (t->role != ROLE_DENSE_GATE)
			continue;
		n++;
		least = t->n_rows < least ? t->n_rows : least;
		most = t->n_rows > most ? t->n_rows : most;
	}
	CHECK(n > 1 && most - least <= 16);
	source_free(s);
}

static const struct test_case cases[] = {
	{ "bytes_tiny", bytes_tiny },
	{ "bytes_small_tiles", bytes_small_tiles },
	{ "bytes_flat", bytes_flat },
	{ "leftovers", leftovers },
	{ "digest", digest },
	{ "missing_shards", missing_shards },
	{ "other_shards", other_shards },
	{ "disagreements", disagreements },
	{ "bad_index", bad_index },
	{ "no_model", no_model },
	{ "cuts", cuts },
};
TEST_MAIN(cases)
