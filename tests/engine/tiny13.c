/*
 * A checkpoint of older make with a flat config, and another engine's fp32 logits for it.
 */
#include "tests/engine/fixture.h"
#include "tests/engine/golden.h"
#include "tests/harness/test.h"

static void logits(void)
{
	struct fixture_want want = {
		.model_dir = test_data("oracle/tiny13"),
		.isa = KERN_ISA_N_,
		.n_threads = 2,
		.max_rows = 16,
		.max_positions = 16,
	};
	json_t *golden = golden_json(test_data("oracle/tiny13/ref_logits.json")), *bits;
	struct fixture f;
	float *got;
	uint32_t *ids;
	size_t n, vocab;
	double worst = 0;

	fixture_open(&f, &want);
	ids = golden_ids(json_object_get(golden, "prompt_ids"), &n);
	vocab = f.config->vocab_size;
	got = calloc(n * vocab, sizeof(*got));
	CHECK(got);
	fixture_feed(&f, ids, n, n, got);
	bits = json_object_get(golden, "logits_bits");
	CHECK_EQ(json_array_size(bits), vocab);
	for (size_t i = 0; i < vocab; i++) {
		uint32_t word = (uint32_t)json_integer_value(json_array_get(bits, i));
		float reference;

		memcpy(&reference, &word, sizeof(reference));
		worst = fmax(worst, fabs(got[(n - 1) * vocab + i] - reference));
	}
	(void)printf("  logits within %.3g\n", worst);
	CHECK_EQ(fixture_argmax(got + (n - 1) * vocab, vocab),
		 json_integer_value(json_object_get(golden, "argmax")));
	/* That engine's latent norms have eps 1e-5 and its sums another order: near, not equal. */
	CHECK_MSG(worst < 1e-3, "off by %g", worst);
	free(ids);
	free(got);
	json_decref(golden);
	fixture_close(&f);
}

static const struct test_case cases[] = { { "logits", logits } };
TEST_MAIN(cases)
