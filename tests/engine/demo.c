/*
 * The bundled model against its recorded answers (deploy/demo/README.md): greedy ids, the logits
 * and experts after the first prompt, the loss of every token of a passage, and two chat turns.
 */
#include "tests/engine/fixture.h"
#include "tests/engine/golden.h"
#include "tests/harness/test.h"

/* A trainer's fp32 logits lay within 2.8e-5 of the recorded ones. */
static const double LOGITS_TOLERANCE = 1e-4;
static const double NLL_TOLERANCE = 3e-5, MEAN_NLL_TOLERANCE = 1e-6;

static void open_demo(struct fixture *f, json_t **ret_golden)
{
	struct fixture_want want = {
		.model_dir = test_source("deploy/demo"),
		.isa = KERN_ISA_N_,
		.n_threads = 2,
		.max_rows = 512,
		.max_positions = 1024,
	};

	fixture_open(f, &want);
	*ret_golden = golden_json(test_source("deploy/demo/golden.json"));
}

static void check_greedy(struct fixture *f, const json_t *c)
{
	size_t n, n_greedy, vocab = f->config->vocab_size;
	uint32_t *ids = golden_ids(json_object_get(c, "ids"), &n);
	uint32_t *greedy = golden_ids(json_object_get(c, "greedy_ids"), &n_greedy), id;
	float *logits = calloc(n * vocab, sizeof(*logits));

	CHECK(logits && n_greedy > 0);
	k3_sequence_reset(f->sequence);
	fixture_feed(f, ids, n, n, logits);
	id = fixture_argmax(logits + (n - 1) * vocab, vocab);
	for (size_t i = 0; i < n_greedy; i++) {
		CHECK_MSG(id == greedy[i], "greedy token %zu is %u, not %u", i, id, greedy[i]);
		fixture_feed(f, &id, 1, 1, logits);
		id = fixture_argmax(logits, vocab);
	}
	free(ids);
	free(greedy);
	free(logits);
}

static void greedy(void)
{
	struct fixture f;
	json_t *golden;

	open_demo(&f, &golden);
	CHECK_EQ(json_array_size(json_object_get(golden, "greedy")), 5);
	for (size_t i = 0; i < 5; i++)
		check_greedy(&f, json_array_get(json_object_get(golden, "greedy"), i));
	json_decref(golden);
	fixture_close(&f);
}

static void chat(void)
{
	struct fixture f;
	json_t *golden;

	open_demo(&f, &golden);
	CHECK_EQ(json_array_size(json_object_get(golden, "chat")), 2);
	for (size_t i = 0; i < 2; i++)
		check_greedy(&f, json_array_get(json_object_get(golden, "chat"), i));
	json_decref(golden);
	fixture_close(&f);
}

struct choice {
	uint16_t ids[CONFIG_LAYERS_MAX][8];
	float weights[CONFIG_LAYERS_MAX][8];
};

static void see_routing(void *data, uint32_t layer, uint32_t row, const uint16_t *ids,
			const float *weights, uint32_t top_k)
{
	struct choice *c = data;

	(void)row;
	CHECK(top_k <= 8);
	memcpy(c->ids[layer], ids, top_k * sizeof(*ids));
	memcpy(c->weights[layer], weights, top_k * sizeof(*weights));
}

/* golden: highest choice score first; ours: ascending ids. */
static void check_routing(const struct choice *choice, const json_t *layer)
{
	size_t l = (size_t)json_integer_value(json_object_get(layer, "layer"));
	const json_t *experts = json_object_get(layer, "experts");

	for (size_t i = 0; i < json_array_size(experts); i++) {
		long long id = json_integer_value(json_array_get(experts, i));
		double weight =
			json_real_value(json_array_get(json_object_get(layer, "weights"), i));
		size_t at = 0;

		while (at < json_array_size(experts) && choice->ids[l][at] != id)
			at++;
		CHECK_MSG(at < json_array_size(experts), "layer %zu did not choose expert %lld", l,
			  id);
		CHECK(fabs(choice->weights[l][at] - weight) < 1e-5);
	}
}

static void first_prompt(void)
{
	static struct choice choice;
	struct fixture f;
	json_t *golden, *c, *want, *routing;
	uint32_t *ids;
	size_t n, vocab;
	float *logits;
	double worst = 0;

	open_demo(&f, &golden);
	c = json_array_get(json_object_get(golden, "greedy"), 0);
	want = json_object_get(golden, "first_prompt_logits");
	routing = json_object_get(golden, "first_prompt_routing");
	ids = golden_ids(json_object_get(c, "ids"), &n);
	vocab = f.config->vocab_size;
	logits = calloc(n * vocab, sizeof(*logits));
	CHECK(logits && json_array_size(want) == vocab && json_array_size(routing) == 8);
	k3_engine_on_routing(f.engine, see_routing, &choice);
	fixture_feed(&f, ids, n, n, logits);
	for (size_t i = 0; i < vocab; i++)
		worst = fmax(worst, fabs(logits[(n - 1) * vocab + i] -
					 json_number_value(json_array_get(want, i))));
	CHECK_MSG(worst <= LOGITS_TOLERANCE, "logits are off by %g", worst);
	for (size_t i = 0; i < json_array_size(routing); i++)
		check_routing(&choice, json_array_get(routing, i));
	(void)printf("  logits within %.3g\n", worst);
	free(ids);
	free(logits);
	json_decref(golden);
	fixture_close(&f);
}

static double nll(const float *row, size_t vocab, uint32_t id)
{
	double top = row[fixture_argmax(row, vocab)], z = 0;

	for (size_t i = 0; i < vocab; i++)
		z += exp(row[i] - top);
	return top + log(z) - row[id];
}

static void teacher_forced(void)
{
	struct fixture f;
	json_t *golden, *t, *want;
	uint32_t *ids;
	size_t n, vocab;
	float *logits;
	double sum = 0, worst = 0, mean;

	open_demo(&f, &golden);
	t = json_object_get(golden, "teacher_forced");
	want = json_object_get(t, "token_nll");
	ids = golden_ids(json_object_get(t, "ids"), &n);
	vocab = f.config->vocab_size;
	logits = calloc(n * vocab, sizeof(*logits));
	CHECK(logits && json_array_size(want) == n - 1);
	fixture_feed(&f, ids, n - 1, 100, logits);
	for (size_t i = 0; i + 1 < n; i++) {
		double got = nll(logits + i * vocab, vocab, ids[i + 1]);

		worst = fmax(worst, fabs(got - json_real_value(json_array_get(want, i))));
		sum += got;
	}
	mean = sum / (double)(n - 1) - json_real_value(json_object_get(t, "mean_nll"));
	CHECK_MSG(worst <= NLL_TOLERANCE, "a token's nll is off by %g", worst);
	CHECK_MSG(fabs(mean) <= MEAN_NLL_TOLERANCE, "the mean nll is off by %g", mean);
	(void)printf("  mean nll off by %.3g, a token's at most by %.3g\n", mean, worst);
	free(ids);
	free(logits);
	json_decref(golden);
	fixture_close(&f);
}

static const struct test_case cases[] = {
	{ "first prompt", first_prompt },
	{ "teacher forced", teacher_forced },
	{ "greedy", greedy },
	{ "chat", chat },
};
TEST_MAIN(cases)
