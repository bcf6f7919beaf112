/*
 * The engine against fp64 answers of an independent implementation (tests/oracle/README.md): each
 * case of a checkpoint as a prompt fed row by row, seven at a time and at once, then greedy token
 * by token. Tolerance: 5 times the distance of the reference's own fp32 run from its fp64 run.
 */
#include "shared/attr.h"
#include "tests/engine/fixture.h"
#include "tests/engine/golden.h"
#include "tests/harness/test.h"

enum { CASES = 4 };

struct watch {
	const struct config *config;
	double *residual; /* [layers][hidden] of the last row seen */
	uint16_t *ids;    /* [layers][top_k] of the last row seen */
	float *weights;
};

static void see_residual(void *data, enum k3_value value, uint32_t layer, uint32_t position,
			 const float *p, uint32_t n_rows)
{
	struct watch *w = data;
	size_t hidden = w->config->hidden_size;

	(void)position; /* rows come in order: the last one stays */
	if (value != K3_VALUE_residual)
		return;
	for (size_t i = 0; i < hidden; i++)
		w->residual[layer * hidden + i] = p[(n_rows - 1) * hidden + i];
}

static void see_routing(void *data, uint32_t layer, uint32_t row, const uint16_t *ids,
			const float *weights, uint32_t top_k)
{
	struct watch *w = data;

	(void)row; /* rows come in order: the last one stays */
	memcpy(w->ids + layer * top_k, ids, top_k * sizeof(*ids));
	memcpy(w->weights + layer * top_k, weights, top_k * sizeof(*weights));
}

struct oracle {
	const char *dir;
	json_t *json;
	struct golden_f64 f64;
	double tolerance;
	struct fixture f;
	struct watch watch;
};

static const char *path_in(const char *dir, const char *name)
{
	static char path[4200];

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static void open_oracle(struct oracle *o, const char *dir)
{
	struct fixture_want want = {
		.model_dir = dir,
		.isa = KERN_ISA_N_,
		.n_threads = 2,
		.max_rows = 2200,
		.max_positions = 2200,
	};

	o->dir = dir;
	o->json = golden_json(path_in(dir, "golden.json"));
	golden_f64_open(&o->f64, path_in(dir, "golden.f64"));
	o->tolerance =
		5 * json_real_value(json_object_get(o->json, "fp32_reference_max_abs_difference"));
	CHECK(o->tolerance > 0);
	fixture_open(&o->f, &want);
	o->watch = (struct watch){
		.config = o->f.config,
		.residual = calloc((size_t)o->f.config->n_layers * o->f.config->hidden_size,
				   sizeof(double)),
		.ids = calloc((size_t)o->f.config->n_layers * o->f.config->top_k, sizeof(uint16_t)),
		.weights =
			calloc((size_t)o->f.config->n_layers * o->f.config->top_k, sizeof(float)),
	};
	k3_engine_on_value(o->f.engine, see_residual, &o->watch);
	k3_engine_on_routing(o->f.engine, see_routing, &o->watch);
}

static void close_oracle(struct oracle *o)
{
	free(o->watch.residual);
	free(o->watch.ids);
	free(o->watch.weights);
	fixture_close(&o->f);
	golden_f64_close(&o->f64);
	json_decref(o->json);
}

/* The running sum after each layer at the last position shows where a wrong engine begins. There is
 * no recorded tolerance for it: share is of the layer's largest value. */
static void check_residuals(const struct oracle *o, unsigned index, double share)
{
	char name[64];
	size_t n, hidden = o->f.config->hidden_size;
	double *want;

	(void)snprintf(name, sizeof(name), "case%u.residual_last", index);
	want = golden_f64_tensor(&o->f64, name, &n);
	CHECK(want && n == o->f.config->n_layers * hidden);
	for (uint32_t l = 0; l < o->f.config->n_layers; l++) {
		double worst = 0, largest = 0;

		for (size_t i = l * hidden; i < (l + 1) * hidden; i++) {
			worst = fmax(worst, fabs(o->watch.residual[i] - want[i]));
			largest = fmax(largest, fabs(want[i]));
		}
		CHECK_MSG(worst <= share * largest,
			  "%s: the residual of layer %u is the first to be wrong: off by %g of %g",
			  name, l, worst, largest);
	}
	free(want);
}

/* Logits of the last positions of a prompt, as many as the golden has. */
static double check_logits(const struct oracle *o, unsigned index, const float *logits,
			   size_t n_positions)
{
	char name[64];
	size_t n, vocab = o->f.config->vocab_size;
	double worst = 0, *want;

	(void)snprintf(name, sizeof(name), "case%u.logits", index);
	want = golden_f64_tensor(&o->f64, name, &n);
	if (!want) {
		(void)snprintf(name, sizeof(name), "case%u.logits_last", index);
		want = golden_f64_tensor(&o->f64, name, &n);
		logits += (n_positions - 1) * vocab;
		n_positions = 1;
	}
	CHECK(want && n == n_positions * vocab);
	for (size_t i = 0; i < n; i++)
		worst = fmax(worst, fabs(logits[i] - want[i]));
	if (worst > o->tolerance)
		check_residuals(o, index, 1e-3);
	CHECK_MSG(worst <= o->tolerance, "%s: off by %g, %g is tolerated", name, worst,
		  o->tolerance);
	free(want);
	return worst;
}

static void check_argmax(const struct oracle *o, const json_t *c, const float *logits, size_t n)
{
	size_t n_argmax, vocab = o->f.config->vocab_size;
	uint32_t *argmax = golden_ids(json_object_get(c, "argmax"), &n_argmax);
	const json_t *margin = json_object_get(c, "argmax_margin");

	CHECK_EQ(n_argmax, n);
	for (size_t i = 0; i < n; i++)
		if (json_real_value(json_array_get(margin, i)) >= 2 * o->tolerance)
			CHECK_EQ(fixture_argmax(logits + i * vocab, vocab), argmax[i]);
	free(argmax);
}

static void check_nll(const struct oracle *o, const json_t *c, const uint32_t *ids,
		      const float *logits, size_t n)
{
	const json_t *want = json_object_get(c, "mean_nll");
	size_t vocab = o->f.config->vocab_size;
	double sum = 0, mean;

	if (json_is_null(want))
		return;
	for (size_t i = 0; i + 1 < n; i++) {
		const float *row = logits + i * vocab;
		double top = row[fixture_argmax(row, vocab)], z = 0;

		for (size_t j = 0; j < vocab; j++)
			z += exp(row[j] - top);
		sum += top + log(z) - row[ids[i + 1]];
	}
	mean = sum / (double)(n - 1);
	CHECK_MSG(fabs(mean - json_real_value(want)) <= o->tolerance, "mean nll %.9f, not %.9f",
		  mean, json_real_value(want));
}

static void check_experts(const struct oracle *o, const json_t *c)
{
	const json_t *want = json_object_get(c, "experts_last");
	uint32_t top_k = o->f.config->top_k;

	CHECK(json_array_size(want) > 0);
	for (size_t i = 0; i < json_array_size(want); i++) {
		const json_t *entry = json_array_get(want, i);
		size_t layer = (size_t)json_integer_value(json_object_get(entry, "layer"));

		CHECK_EQ(json_array_size(json_object_get(entry, "ids")), top_k);
		for (uint32_t k = 0; k < top_k; k++) {
			long long id = json_integer_value(
				json_array_get(json_object_get(entry, "ids"), k));
			double weight = json_real_value(
				json_array_get(json_object_get(entry, "weights"), k));

			CHECK_MSG(o->watch.ids[layer * top_k + k] == id,
				  "layer %zu chose %u, not %lld", layer,
				  o->watch.ids[layer * top_k + k], id);
			CHECK(fabs(o->watch.weights[layer * top_k + k] - weight) <= 1e-3 * weight);
		}
	}
}

static void check_greedy(struct oracle *o, const json_t *c, const float *last)
{
	size_t n, vocab = o->f.config->vocab_size;
	uint32_t *greedy = golden_ids(json_object_get(c, "greedy"), &n);
	float *logits = calloc(vocab, sizeof(*logits));
	uint32_t id = fixture_argmax(last, vocab);

	CHECK(logits && n > 0);
	for (size_t i = 0; i < n; i++) {
		CHECK_MSG(id == greedy[i], "greedy token %zu is %u, not %u", i, id, greedy[i]);
		if (i + 1 == n)
			break;
		fixture_feed(&o->f, &id, 1, 1, logits);
		id = fixture_argmax(logits, vocab);
	}
	free(logits);
	free(greedy);
}

static void run_case(struct oracle *o, unsigned index, size_t chunk)
{
	const json_t *c = json_array_get(json_object_get(o->json, "cases"), index);
	size_t n, vocab = o->f.config->vocab_size;
	uint32_t *ids = golden_ids(json_object_get(c, "ids"), &n);
	float *logits = calloc(n * vocab, sizeof(*logits));
	double worst;

	CHECK(logits);
	k3_sequence_reset(o->f.sequence);
	fixture_feed(&o->f, ids, n, chunk ? chunk : n, logits);
	check_experts(o, c);
	check_residuals(o, index, 1e-2);
	worst = check_logits(o, index, logits, n);
	check_argmax(o, c, logits, n);
	check_nll(o, c, ids, logits, n);
	check_greedy(o, c, logits + (n - 1) * vocab);
	(void)printf("  case %u, %zu ids, chunks of %zu: %.3g of the tolerance\n", index, n,
		     chunk ? chunk : n, worst / o->tolerance);
	free(logits);
	free(ids);
}

static void run_oracle(const char *dir)
{
	static const size_t chunks[] = { 1, 7, 0 };
	struct oracle o;

	open_oracle(&o, dir);
	CHECK_EQ(json_array_size(json_object_get(o.json, "cases")), CASES);
	for (unsigned i = 0; i < CASES; i++)
		for (unsigned j = 0; j < N_ELEMENTS(chunks); j++)
			run_case(&o, i, chunks[j]);
	close_oracle(&o);
}

static void tiny(void)
{
	run_oracle(test_source("tests/oracle/tiny"));
}

static void range(void)
{
	run_oracle(test_source("tests/oracle/range"));
}

static void ties(void)
{
	run_oracle(test_source("tests/oracle/ties"));
}

static void odd(void)
{
	run_oracle(test_data("oracle/odd"));
}

static void shape(void)
{
	run_oracle(test_data("oracle/shape"));
}

static void blocks(void)
{
	run_oracle(test_data("oracle/blocks"));
}

static void wide(void)
{
	run_oracle(test_data("oracle/wide"));
}

static const struct test_case cases[] = {
	{ "tiny", tiny },   { "range", range },   { "ties", ties }, { "odd", odd },
	{ "shape", shape }, { "blocks", blocks }, { "wide", wide },
};
TEST_MAIN(cases)
