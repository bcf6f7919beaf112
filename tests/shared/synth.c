/* k3-store synth: the released layout, the same bytes for the same seed, numbers that make sense.
 */
#include "iod/store/synth.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "iod/store/synth_config.h"
#include "shared/catalog.h"
#include "tests/harness/test.h"
#include "tests/shared/files.h"

static struct err err;

/* synth DIR with these options; base may be NULL. */
static int synth(const char *dir, const char *base, uint64_t seed, char *a, char *b)
{
	struct iod_store_line line = { .program = iod_store_program("synth") };
	struct iod_synth_want want = { .out = dir, .seed = seed };
	char program[] = "synth", *argv[] = { program, a, b, NULL }, *config = NULL;
	uint64_t size;
	int r;

	err_clear(&err);
	CHECK_MSG(option_parse(line.program, "synth", a ? b ? 3 : 2 : 1, argv, &line.options,
			       &line.words, &err) == 0,
		  "%s", err.text);
	r = iod_synth_config(&line, base, base ? strlen(base) : 0, &config, &err);
	if (r == 0) {
		want.config_json = config;
		want.config_size = strlen(config);
		r = iod_synth(&want, &size, &err);
	}
	free(config);
	return r;
}

static struct source *open_dir(const char *dir)
{
	struct source_want want = { .model_dirs = &dir, .n_model_dirs = 1 };
	struct source *s = NULL;

	err_clear(&err);
	CHECK_MSG(source_open(&want, &s, &err) == 0, "%s", err.text);
	return s;
}

/* Mean and deviation of a BF16 or F32 tensor. */
static void moments(json_t *headers, const char *name, double *ret_mean, double *ret_deviation)
{
	json_t *h = json_object_get(headers, name);
	bool is_f32;
	size_t size, n;
	char *bytes = files_tensor(headers, name, &size);
	double sum = 0, squares = 0;

	is_f32 = strcmp(json_string_value(json_object_get(h, "dtype")), "F32") == 0;
	n = size / (is_f32 ? 4 : 2);
	for (size_t i = 0; i < n; i++) {
		uint32_t u = 0;
		float f;

		if (is_f32)
			memcpy(&u, bytes + 4 * i, 4);
		else
			memcpy((char *)&u + 2, bytes + 2 * i, 2);
		memcpy(&f, &u, 4);
		CHECK(isfinite(f));
		sum += f;
		squares += (double)f * f;
	}
	*ret_mean = sum / (double)n;
	*ret_deviation = sqrt(squares / (double)n - *ret_mean * *ret_mean);
	free(bytes);
}

static bool is_near(double a, double b, double tolerance)
{
	return fabs(a - b) <= tolerance;
}

static void same_seed(void)
{
	static const char shard[] = "model-00003-of-000010.safetensors";
	const char *dirs[] = { files_tmp("a"), files_tmp("b"), files_tmp("c") };
	char path[4200], *bytes[3];
	size_t sizes[3];

	for (unsigned i = 0; i < 3; i++) {
		CHECK_MSG(synth(dirs[i], NULL, i < 2 ? 5 : 6, NULL, NULL) == 0, "%s", err.text);
		(void)snprintf(path, sizeof(path), "%s/%s", dirs[i], shard);
		bytes[i] = test_read_file(path, &sizes[i]);
	}
	CHECK(sizes[0] == sizes[1] && memcmp(bytes[0], bytes[1], sizes[0]) == 0);
	CHECK(sizes[0] == sizes[2] && memcmp(bytes[0], bytes[2], sizes[0]) != 0);
	for (unsigned i = 0; i < 3; i++)
		free(bytes[i]);
}

/* F32, BF16, U8, each sorted by name, without gaps; A_log longer than the heads. */
static void layout(void)
{
	static const char *const order[] = { "F32", "BF16", "U8" };
	const char *dir = files_tmp("a");
	char path[4200], last[256] = "", *bytes;
	json_t *header, *index, *v;
	size_t size, n = 0;
	unsigned group = 0;
	const char *name;

	CHECK_MSG(synth(dir, NULL, 1, NULL, NULL) == 0, "%s", err.text);
	(void)snprintf(path, sizeof(path), "%s/model-00002-of-000010.safetensors", dir);
	bytes = test_read_file(path, &size);
	header = json_loads(bytes + 8, JSON_DISABLE_EOF_CHECK, NULL);
	CHECK(header);
	json_object_foreach(header, name, v)
	{
		const char *dtype = json_string_value(json_object_get(v, "dtype"));

		if (strcmp(dtype, order[group]) != 0) {
			group++;
			last[0] = '\0';
			CHECK(group < 3 && strcmp(dtype, order[group]) == 0);
		}
		CHECK(strcmp(last, name) < 0);
		(void)snprintf(last, sizeof(last), "%s", name);
		n++;
	}
	CHECK_EQ(group, 2);
	v = json_object_get(header, "language_model.model.layers.1.self_attn.A_log");
	CHECK_EQ(json_integer_value(json_array_get(json_object_get(v, "shape"), 0)), 32);
	json_decref(header);
	free(bytes);
	(void)snprintf(path, sizeof(path), "%s/model.safetensors.index.json", dir);
	index = json_load_file(path, 0, NULL);
	header = files_headers(dir);
	CHECK_EQ(json_object_size(json_object_get(index, "weight_map")), json_object_size(header));
	json_decref(header);
	json_decref(index);
}

static void numbers(void)
{
	const char *dir = files_tmp("a");
	char layers[] = "--layers=5", experts[] = "--experts=40";
	struct source *s;
	json_t *headers;
	double mean, deviation;

	CHECK_MSG(synth(dir, NULL, 1, layers, experts) == 0, "%s", err.text);
	s = open_dir(dir);
	CHECK(s->config.n_layers == 5 && s->config.n_experts == 40);
	CHECK(s->config.is_mla[3] && s->config.is_mla[4] && !s->config.is_mla[2]);
	headers = files_headers(dir);
	moments(headers, "language_model.model.embed_tokens.weight", &mean, &deviation);
	CHECK(is_near(mean, 0, 0.05) && is_near(deviation, 1, 0.05));
	moments(headers, "language_model.model.layers.0.self_attn.q_proj.weight", &mean,
		&deviation);
	CHECK(is_near(deviation, 1 / sqrt(128), 0.005));
	moments(headers,
		"language_model.model.layers.1.block_sparse_moe.gate.e_score_correction_bias",
		&mean, &deviation);
	CHECK(deviation > 0.15 && deviation < 0.35);
	moments(headers, "language_model.model.layers.1.input_layernorm.weight", &mean, &deviation);
	CHECK(is_near(mean, 1, 0.15) && is_near(deviation, 0.3, 0.1));
	json_decref(headers);
	source_free(s);
}

static void from_config(void)
{
	size_t size;
	char *released = test_read_file(test_data("checkpoint/config.json"), &size);
	char *small = test_read_file(test_data("oracle/odd/config.json"), &size);
	char *flat = test_read_file(test_data("oracle/tiny13/config.json"), &size), *copy;
	char layers[] = "--layers=2", tile[] = "--experts=3";
	const char *dir = files_tmp("a"), *other = files_tmp("b");
	char path[4200];

	CHECK_MSG(synth(dir, small, 1, NULL, NULL) == 0, "%s", err.text);
	(void)snprintf(path, sizeof(path), "%s/config.json", dir);
	copy = test_read_file(path, &size);
	CHECK_STR(copy, small); /* byte for byte */
	source_free(open_dir(dir));
	CHECK(synth(dir, small, 1, NULL, NULL) < 0);
	CHECK_MSG(err.code == ERR_USAGE && strstr(err.text, "not empty"), "%s", err.text);
	CHECK_MSG(synth(other, flat, 1, NULL, NULL) == 0, "%s", err.text);
	source_free(open_dir(other));
	CHECK(synth(files_tmp("c"), flat, 1, layers, NULL) < 0);
	CHECK(synth(files_tmp("d"), released, 1, layers, tile) < 0); /* 16 of 3 experts */
	CHECK_EQ(err.code, ERR_CONFIG);
	CHECK(access(files_tmp("d"), F_OK) != 0);
	free(copy);
	free(released);
	free(small);
	free(flat);
}

static void no_space(void)
{
	struct rlimit limit = { 100000, 100000 };
	struct sigaction ignore = { .sa_handler = SIG_IGN };
	const char *dir = files_tmp("a");

	CHECK(sigaction(SIGXFSZ, &ignore, NULL) == 0);
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	CHECK(synth(dir, NULL, 1, NULL, NULL) < 0);
	CHECK_MSG(err.code == ERR_SPACE, "%s", err.text);
	CHECK(access(dir, F_OK) != 0);
}

static const struct test_case cases[] = {
	{ "same_seed", same_seed },     { "layout", layout },     { "numbers", numbers },
	{ "from_config", from_config }, { "no_space", no_space },
};
TEST_MAIN(cases)
