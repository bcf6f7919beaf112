/*
 * The memory plan: sizes from config.json against what the daemon's own reading of the headers
 * gives, the full model's published numbers, and the choices under limits that the test sets.
 */
#include "compute/memplan.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "compute/preset.h"
#include "shared/catalog.h"
#include "shared/fd.h"
#include "tests/harness/test.h"

static struct config config;
static struct err err;

static void read_config(const char *path)
{
	size_t size;
	char *json;

	CHECK(fd_read_file(AT_FDCWD, path, 1 << 24, &json, &size) == 0);
	CHECK_MSG(config_parse(json, size, path, &config, &err) == 0, "%s", err.text);
	free(json);
}

/* A root for memlimit_get where so much is available and no control group limits. */
static const char *limit_root(uint64_t bytes)
{
	static char path[4096];
	char name[4200];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s", test_tmpdir());
	(void)snprintf(name, sizeof(name), "%s/proc", path);
	CHECK(mkdir(name, 0777) == 0);
	(void)snprintf(name, sizeof(name), "%s/proc/meminfo", path);
	f = fopen(name, "w");
	CHECK(f);
	(void)fprintf(f,
		      "MemTotal: %" PRIu64 " kB\nMemFree: %" PRIu64 " kB\nMemAvailable: %" PRIu64
		      " kB\n",
		      bytes >> 10, bytes >> 10, bytes >> 10);
	CHECK(fclose(f) == 0);
	return path;
}

static struct k3_memplan_want want_of(uint64_t limit, const char *preset)
{
	return (struct k3_memplan_want){ .config = &config,
					 .n_layers = config.n_layers,
					 .n_rows = 256,
					 .n_positions = 2048,
					 .n_logits = 1,
					 .has_daemon = true,
					 .preset = preset,
					 .trunk_gb = -1,
					 .cache_gb = -1,
					 .limit_root = limit_root(limit) };
}

/* From the headers, as the daemon does. */
static void sizes_of(const char *name)
{
	const char *dir = test_source(name);
	struct source_want want = { .model_dirs = &dir, .n_model_dirs = 1 };
	struct k3_model_size m;
	struct source *s;
	char path[4096];

	(void)snprintf(path, sizeof(path), "%s/config.json", dir);
	read_config(path);
	CHECK_MSG(source_open(&want, &s, &err) == 0, "%s", err.text);
	k3_model_size(&config, config.n_layers, 0, &m);
	CHECK_EQ(m.n_tiles, s->catalog.header->n_tiles);
	CHECK_EQ(m.n_experts, s->n_experts);
	CHECK(m.expert_size >= s->catalog.header->expert_size);
	CHECK(m.expert_size <= s->catalog.header->expert_size + 2 * 4096);
	CHECK(m.max_tile_size >= s->catalog.header->max_tile_size);
	/* never less than the truth; more by pages and by the vectors' f32 */
	CHECK_MSG(m.trunk_size >= s->catalog.header->trunk_size, "%" PRIu64 " < %" PRIu64,
		  m.trunk_size, s->catalog.header->trunk_size);
	CHECK(m.trunk_size <= s->catalog.header->trunk_size + m.n_tiles * 16ull * 4096);
	(void)source_free(s);
}

static void small_sizes(void)
{
	sizes_of("tests/oracle/tiny");
}

static void demo_sizes(void)
{
	sizes_of("deploy/demo");
}

static void full_sizes(void)
{
	struct k3_model_size m;

	read_config(test_data("checkpoint/config.json"));
	k3_model_size(&config, config.n_layers, 0, &m);
	CHECK_EQ(m.n_experts, 82432);
	CHECK_EQ(m.n_moe_layers, 92);
	CHECK_EQ(m.expert_size, 17547264 + 4096);
	/* 108.8 GB of layers and 2.35 GB of head */
	CHECK_MSG(m.trunk_size > 111.0e9 && m.trunk_size < 111.5e9, "%" PRIu64, m.trunk_size);
	CHECK(m.max_tile_size <= CATALOG_TILE_BYTES + 4096);
}

static void full_model_in_a_gigabyte(void)
{
	struct k3_memplan_want want;
	struct k3_memplan p;

	read_config(test_data("checkpoint/config.json"));
	want = want_of(1000000000, "auto");
	CHECK_MSG(k3_memplan_make(&want, &p, &err) == 0, "%s", err.text);
	CHECK(p.total <= 1000000000);
	CHECK(p.n_rows >= 1 && p.n_rows < 256);
	CHECK_EQ(p.item[K3_MEMPLAN_client_state_mla], 2048ull * 55296);
}

/* 256 tokens at 1.5 GB are one chunk, and so one sweep; below, as many rows as there is memory. */
static void rows_are_as_many_as_fit(void)
{
	struct k3_memplan_want want;
	struct k3_memplan p;
	uint32_t rows;

	read_config(test_data("checkpoint/config.json"));
	want = want_of(1500000000, "auto");
	CHECK_MSG(k3_memplan_make(&want, &p, &err) == 0, "%s", err.text);
	CHECK_EQ(p.n_rows, 256);
	want.limit = 1050000000;
	CHECK_MSG(k3_memplan_make(&want, &p, &err) == 0, "%s", err.text);
	CHECK(p.n_rows > 1 && p.n_rows < 256);
	rows = p.n_rows;
	want.n_rows_is_given = true;
	want.n_rows = rows;
	CHECK_MSG(k3_memplan_make(&want, &p, &err) == 0, "%s", err.text);
	want.n_rows = rows + 1;
	CHECK(k3_memplan_make(&want, &p, &err) < 0);
	CHECK_EQ(err.code, ERR_BUDGET);
}

static void too_little_is_refused_with_both_numbers(void)
{
	struct k3_memplan_want want;
	struct k3_memplan p;

	read_config(test_data("checkpoint/config.json"));
	want = want_of(500u << 20, "auto");
	CHECK(k3_memplan_make(&want, &p, &err) < 0);
	CHECK_EQ(err.code, ERR_BUDGET);
	CHECK_EQ(err_exit_code(err.code), 2);
	CHECK_MSG(strstr(err.text, "0.524 GB"), "%s", err.text);
	CHECK(strstr(err.text, "GB, but only"));
}

static void automatic_takes_the_trunk_first(void)
{
	struct k3_memplan_want want;
	struct k3_memplan p;

	read_config(test_data("checkpoint/config.json"));
	want = want_of(64ull << 30, "auto");
	CHECK_MSG(k3_memplan_make(&want, &p, &err) == 0, "%s", err.text);
	CHECK(p.total <= 64ull << 30);
	CHECK(p.trunk_budget > 50ull << 30);
	CHECK_EQ(p.cache_budget, 0);
	CHECK_EQ(p.n_rows, 256);
}

static void automatic_never_takes_more_than_the_model(void)
{
	struct k3_memplan_want want;
	struct k3_memplan p;

	read_config(test_data("checkpoint/config.json"));
	want = want_of(4000ull << 30, "auto");
	CHECK_MSG(k3_memplan_make(&want, &p, &err) == 0, "%s", err.text);
	CHECK_EQ(p.item[K3_MEMPLAN_daemon_pinned_tiles], p.size.trunk_size);
	CHECK_EQ(p.item[K3_MEMPLAN_daemon_tile_ring], 0);
	CHECK_EQ(p.item[K3_MEMPLAN_daemon_expert_slots], 82432 * p.size.expert_size);
}

static void given_budgets_win(void)
{
	struct k3_memplan_want want;
	struct k3_memplan p;

	read_config(test_data("checkpoint/config.json"));
	want = want_of(64ull << 30, "laptop");
	want.cache_gb = 3;
	CHECK_MSG(k3_memplan_make(&want, &p, &err) == 0, "%s", err.text);
	CHECK_EQ(p.cache_budget, 3000000000);
	CHECK_EQ(p.trunk_budget, k3_preset_find("laptop")->trunk_gb * 1e9);
	want.preset = "auto";
	CHECK_MSG(k3_memplan_make(&want, &p, &err) == 0, "%s", err.text);
	CHECK_EQ(p.cache_budget, 3000000000);
	CHECK(p.total <= 64ull << 30);
	CHECK(p.trunk_budget > 50ull << 30);
	want.cache_gb = -1;
	want.trunk_gb = 10;
	CHECK_MSG(k3_memplan_make(&want, &p, &err) == 0, "%s", err.text);
	CHECK_EQ(p.trunk_budget, 10000000000);
	CHECK(p.cache_budget > 40ull << 30);
	CHECK(p.total <= 64ull << 30);
}

static void rows_that_are_given_stay(void)
{
	struct k3_memplan_want want;
	struct k3_memplan p;

	read_config(test_data("checkpoint/config.json"));
	want = want_of(1000000000, "auto");
	want.n_rows_is_given = true;
	CHECK(k3_memplan_make(&want, &p, &err) < 0);
	CHECK_EQ(err.code, ERR_BUDGET);
	CHECK_MSG(strstr(err.text, "--prefill-rows 1"), "%s", err.text);
}

/* The states of all sequences count: 464 MB and 55,296 bytes a position for each at full size. */
static void sequences_count(void)
{
	struct k3_memplan_want want;
	struct k3_memplan one, p;

	read_config(test_data("checkpoint/config.json"));
	want = want_of(16000000000, "laptop");
	CHECK_MSG(k3_memplan_make(&want, &one, &err) == 0, "%s", err.text);
	want.n_sequences = 8;
	CHECK_MSG(k3_memplan_make(&want, &p, &err) == 0, "%s", err.text);
	CHECK_EQ(p.n_sequences, 8);
	CHECK_EQ(p.item[K3_MEMPLAN_client_state_kda], 8 * one.item[K3_MEMPLAN_client_state_kda]);
	CHECK(p.item[K3_MEMPLAN_client_state_kda] > 8 * 460e6);
	CHECK_EQ(p.item[K3_MEMPLAN_client_state_mla], 8 * 2048ull * 55296);
}

/* Lowered as memory allows, and refused with both numbers when so many were asked for. */
static void sequences_are_lowered(void)
{
	struct k3_memplan_want want;
	struct k3_memplan p;

	read_config(test_data("checkpoint/config.json"));
	want = want_of(4000000000, "auto");
	want.n_sequences = 8;
	CHECK_MSG(k3_memplan_make(&want, &p, &err) == 0, "%s", err.text);
	CHECK(p.n_sequences < 8 && p.n_rows >= p.n_sequences);
	want.n_sequences_is_given = true;
	CHECK(k3_memplan_make(&want, &p, &err) < 0);
	CHECK_EQ(err.code, ERR_BUDGET);
	CHECK_MSG(strstr(err.text, "4.000 GB") && strstr(err.text, "--batch-max 1"), "%s",
		  err.text);
}

static const struct test_case cases[] = {
	{ "small sizes", small_sizes },
	{ "demo sizes", demo_sizes },
	{ "full sizes", full_sizes },
	{ "full model in a gigabyte", full_model_in_a_gigabyte },
	{ "rows are as many as fit", rows_are_as_many_as_fit },
	{ "too little is refused", too_little_is_refused_with_both_numbers },
	{ "automatic takes the trunk first", automatic_takes_the_trunk_first },
	{ "automatic never takes too much", automatic_never_takes_more_than_the_model },
	{ "given budgets win", given_budgets_win },
	{ "given rows stay", rows_that_are_given_stay },
	{ "sequences count", sequences_count },
	{ "sequences are lowered", sequences_are_lowered },
};
TEST_MAIN(cases)
