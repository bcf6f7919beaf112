/*
 * One computation, many ways: whatever the chunks, threads, instruction sets, order and time of the
 * experts' arrival, size of tiles, lost leases and companions in the batch, the bytes of the logits
 * are the same. And what a step refuses or reports.
 */
#include "shared/attr.h"
#include "tests/engine/fixture.h"
#include "tests/engine/golden.h"
#include "tests/harness/test.h"

enum { MAX_POSITIONS = 64 };

struct prompt {
	uint32_t *ids;
	size_t n;
};

/* The 33 ids of case 2. */
static struct prompt prompt_of(const char *dir)
{
	char path[4200];
	struct prompt p;
	json_t *golden;

	(void)snprintf(path, sizeof(path), "%s/golden.json", dir);
	golden = golden_json(path);
	p.ids = golden_ids(
		json_object_get(json_array_get(json_object_get(golden, "cases"), 2), "ids"), &p.n);
	json_decref(golden);
	return p;
}

static struct fixture_want plain(const char *dir)
{
	return (struct fixture_want){
		.model_dir = dir,
		.isa = KERN_ISA_REF,
		.n_threads = 1,
		.max_rows = MAX_POSITIONS,
		.max_positions = MAX_POSITIONS,
	};
}

/* Logits of all positions of the prompt. */
static float *run(const struct fixture_want *want, const struct prompt *p, size_t chunk)
{
	struct fixture f;
	float *logits;

	fixture_open(&f, want);
	logits = calloc(p->n * f.config->vocab_size, sizeof(*logits));
	CHECK(logits);
	fixture_feed(&f, p->ids, p->n, chunk, logits);
	fixture_close(&f);
	return logits;
}

static void compare(const struct fixture_want *want, const struct prompt *p, size_t chunk,
		    const float *expected, size_t n, const char *what)
{
	float *logits = run(want, p, chunk);

	CHECK_MSG(memcmp(logits, expected, n * sizeof(*logits)) == 0, "%s: other bytes", what);
	free(logits);
}

static size_t count_logits(const char *dir, const struct prompt *p)
{
	struct fixture_want want = plain(dir);
	struct fixture f;
	size_t n;

	fixture_open(&f, &want);
	n = p->n * f.config->vocab_size;
	fixture_close(&f);
	return n;
}

static void all_ways(const char *dir)
{
	struct prompt p = prompt_of(dir);
	struct fixture_want want = plain(dir);
	float *expected = run(&want, &p, 1);
	size_t n = count_logits(dir, &p);

	compare(&want, &p, 7, expected, n, "chunks of 7");
	compare(&want, &p, p.n, expected, n, "one chunk");
	for (unsigned threads = 2; threads <= 3; threads++) {
		want = plain(dir);
		want.n_threads = threads;
		compare(&want, &p, 1, expected, n, "threads, row by row");
		compare(&want, &p, p.n, expected, n, "threads, one chunk");
	}
	for (int isa = KERN_ISA_REF; isa < KERN_ISA_N_; isa++) {
		want = plain(dir);
		want.isa = isa;
		if (!kern_isa_is_available(isa))
			continue;
		compare(&want, &p, 1, expected, n, kern_isa_name(isa));
		compare(&want, &p, 8, expected, n, kern_isa_name(isa));
	}
	for (int order = FAKE_ASCENDING; order <= FAKE_SHUFFLED; order++) {
		want = plain(dir);
		want.knobs.order = order;
		compare(&want, &p, 11, expected, n, "order of arrival");
		want.knobs.experts_are_late = true;
		compare(&want, &p, 11, expected, n, "late experts");
		want.knobs.all_stale_once = true;
		compare(&want, &p, 11, expected, n, "lost leases, late experts");
	}
	want = plain(dir);
	want.knobs.all_stale_once = true;
	compare(&want, &p, 1, expected, n, "lost leases");
	want.knobs.tile_bytes = 4096;
	want.n_threads = 2;
	compare(&want, &p, 5, expected, n, "small tiles");
	free(expected);
	free(p.ids);
}

static void tiny(void)
{
	all_ways(test_source("tests/oracle/tiny"));
}

static void ties(void)
{
	all_ways(test_source("tests/oracle/ties"));
}

static void odd(void)
{
	all_ways(test_data("oracle/odd"));
}

/* Two sequences of different length in every step, one of them ahead. */
static void companions(void)
{
	const char *dir = test_source("tests/oracle/tiny");
	struct fixture_want want = plain(dir);
	struct prompt p = prompt_of(dir);
	struct k3_sequence *other;
	struct err err = { 0 };
	struct fixture f;
	float *expected = run(&want, &p, 1), *a, *b;
	size_t vocab;

	fixture_open(&f, &want);
	vocab = f.config->vocab_size;
	CHECK(k3_sequence_new(&other, f.engine, &err) == 0);
	a = calloc(p.n * vocab, sizeof(*a));
	b = calloc(p.n * vocab, sizeof(*b));
	CHECK(a && b);
	fixture_feed(&f, p.ids, 3, 3, a);
	for (size_t at = 0; at + 5 <= 30; at += 5) {
		struct k3_rows rows[2] = {
			{ f.sequence, p.ids + 3 + at, 5, 5, a + (3 + at) * vocab },
			{ other, p.ids + at, 5, 2, b + (at + 3) * vocab },
		};
		struct k3_batch batch = { rows, 2, true };

		CHECK_MSG(k3_engine_step(f.engine, &batch, &err) == 0, "%s", err.text);
		CHECK(memcmp(b + (at + 3) * vocab, expected + (at + 3) * vocab,
			     2 * vocab * sizeof(*b)) == 0);
	}
	CHECK(memcmp(a, expected, p.n * vocab * sizeof(*a)) == 0);
	CHECK_EQ(k3_sequence_position(f.sequence), 33);
	CHECK_EQ(k3_sequence_position(other), 30);
	k3_sequence_free(other);
	free(a);
	free(b);
	free(expected);
	free(p.ids);
	fixture_close(&f);
}

static void reset(void)
{
	const char *dir = test_source("tests/oracle/tiny");
	struct fixture_want want = plain(dir);
	struct prompt p = prompt_of(dir);
	float *expected = run(&want, &p, 4), *again;
	struct fixture f;
	size_t n;

	fixture_open(&f, &want);
	n = p.n * f.config->vocab_size;
	again = calloc(n, sizeof(*again));
	CHECK(again);
	fixture_feed(&f, p.ids + 5, 20, 20, NULL);
	k3_sequence_reset(f.sequence);
	CHECK_EQ(k3_sequence_position(f.sequence), 0);
	fixture_feed(&f, p.ids, p.n, 9, again);
	CHECK(memcmp(again, expected, n * sizeof(*again)) == 0);
	free(again);
	free(expected);
	free(p.ids);
	fixture_close(&f);
}

static int step(struct fixture *f, const uint32_t *ids, uint32_t n, float *logits, struct err *err)
{
	struct k3_rows rows = { f->sequence, ids, n, logits ? 1 : 0, logits };
	struct k3_batch batch = { &rows, 1, false };

	err_clear(err);
	return k3_engine_step(f->engine, &batch, err);
}

/* One sequence, twice in a step. */
static int step_twice(struct fixture *f, const uint32_t *ids, struct err *err)
{
	struct k3_rows rows[2] = { { f->sequence, ids, 1, 0, NULL },
				   { f->sequence, ids, 1, 0, NULL } };
	struct k3_batch batch = { rows, 2, false };

	err_clear(err);
	return k3_engine_step(f->engine, &batch, err);
}

static void refusals(void)
{
	const char *dir = test_source("tests/oracle/tiny");
	struct fixture_want want = plain(dir);
	uint32_t ids[10] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
	struct fixture f;
	struct err err = { 0 };

	want.max_rows = 8;
	want.max_positions = 10;
	fixture_open(&f, &want);
	CHECK(step(&f, ids, 9, NULL, &err) < 0 && err.code == ERR_USAGE);
	ids[1] = f.config->vocab_size;
	CHECK(step(&f, ids, 2, NULL, &err) < 0 && err.code == ERR_USAGE);
	ids[1] = 2;
	CHECK(step(&f, ids, 8, NULL, &err) == 0);
	CHECK(step(&f, ids, 3, NULL, &err) < 0 && err.code == ERR_USAGE);
	CHECK(step_twice(&f, ids, &err) < 0 && err.code == ERR_USAGE);
	CHECK_EQ(k3_sequence_position(f.sequence), 8);
	CHECK(step(&f, ids, 2, NULL, &err) == 0);
	CHECK_EQ(k3_sequence_position(f.sequence), 10);
	fixture_close(&f);
}

/* A NaN in a weight of one layer: that layer is named. */
static void not_finite(void)
{
	const char *dir = test_source("tests/oracle/tiny");
	static const uint32_t layers[] = { 0, 3, 5, 8 };
	uint32_t ids[3] = { 1, 2, 3 };

	for (size_t i = 0; i < N_ELEMENTS(layers); i++) {
		struct fixture_want want = plain(dir);
		struct err err = { 0 };
		struct fixture f;
		float *logits;
		char name[32];

		want.knobs.has_nan = true;
		want.knobs.nan_layer = layers[i];
		fixture_open(&f, &want);
		logits = calloc(f.config->vocab_size, sizeof(*logits));
		CHECK(logits);
		(void)snprintf(name, sizeof(name), "layer %u,", layers[i]);
		CHECK(step(&f, ids, 3, logits, &err) < 0 && err.code == ERR_NOT_FINITE);
		CHECK_MSG(strstr(err.text, name), "%s", err.text);
		free(logits);
		fixture_close(&f);
	}
}

static void plan(void)
{
	struct fixture_want want = plain(test_source("tests/oracle/tiny"));
	struct k3_engine_memory plan;
	struct fixture f;
	double planned;

	want.n_threads = 2;
	fixture_open(&f, &want);
	k3_engine_plan(f.config, f.config->n_layers, MAX_POSITIONS, MAX_POSITIONS, &plan);
	planned = (double)(plan.scratch + plan.vectors + plan.contributions);
	CHECK(fabs((double)f.engine->scratch.memory_size / planned - 1) < 0.05);
	CHECK_EQ(plan.state_kda, f.sequence->memory_size);
	CHECK(plan.state_mla > 0 && plan.logits == 4ull * f.config->vocab_size);
	fixture_close(&f);
}

static const struct test_case cases[] = {
	{ "tiny", tiny },   { "ties", ties },
	{ "odd", odd },     { "companions", companions },
	{ "reset", reset }, { "refusals", refusals },
	{ "plan", plan },   { "not finite", not_finite },
};
TEST_MAIN(cases)
