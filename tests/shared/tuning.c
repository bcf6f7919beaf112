/* --queue-depth and --chunk: values for all devices, for one, and a profile below both. */
#include "shared/tuning.h"

#include <errno.h>
#include <string.h>

#include "shared/attr.h"
#include "tests/harness/test.h"

static struct tuning tuning;
static struct err err;

static int add(const char *depth, const char *chunk, bool is_profile)
{
	struct option_list depths = { .items = { depth }, .n = depth != NULL };
	struct option_list chunks = { .items = { chunk }, .n = chunk != NULL };

	err_clear(&err);
	return tuning_add(&tuning, &depths, &chunks, is_profile, &err);
}

/* text with DIR replaced, as the file at path. */
static void write_text(const char *path, const char *text, const char *dir)
{
	FILE *f = fopen(path, "w");
	const char *at;

	CHECK(f);
	while ((at = strstr(text, "DIR"))) {
		(void)fprintf(f, "%.*s%s", (int)(at - text), text, dir);
		text = at + 3;
	}
	(void)fprintf(f, "%s", text);
	CHECK(fclose(f) == 0);
}

static void values(void)
{
	CHECK_EQ(add("7", "1M", false), 0);
	CHECK_EQ(tuning.depth, 7);
	CHECK_EQ(tuning.chunk, 1 << 20);
	CHECK_EQ(add("/a=b/c=9", "/d=8K", false), 0);
	CHECK_EQ(tuning.depth, 7);
	CHECK_EQ(tuning.n_rows, 2);
	CHECK_STR(tuning.rows[0].path, "/a=b/c");
	CHECK_EQ(tuning.rows[0].depth, 9);
	CHECK_EQ(tuning.rows[0].chunk, 0);
	CHECK_STR(tuning.rows[1].path, "/d");
	CHECK_EQ(tuning.rows[1].chunk, 8192);
	tuning_deinit(&tuning);
}

/* What was given beats the profile; within one option a row beats a plain value in either order. */
static void order(void)
{
	struct option_list none = { .n = 0 };
	struct option_list depths = { .items = { "/d=3", "5" }, .n = 2 };

	CHECK_EQ(add("/d=64", "/d=2M", true), 0);
	CHECK_EQ(tuning_add(&tuning, &depths, &none, false, &err), 0);
	CHECK_EQ(tuning.depth, 5);
	CHECK_EQ(tuning.rows[0].depth, 0); /* the profile's, overruled by the plain 5 */
	CHECK_EQ(tuning.rows[1].chunk, 2 << 20);
	CHECK_EQ(tuning.rows[1].is_from_profile, true);
	CHECK_EQ(tuning.rows[2].depth, 3);
	CHECK_EQ(tuning.rows[2].is_from_profile, false);
	/* 5 x 512K for what is not named, 3 x 2M for /d */
	CHECK_EQ(tuning_in_flight(&tuning, 16, 512 << 10), (5 << 19) + 3 * (2 << 20));
	tuning_deinit(&tuning);
}

static void refusals(void)
{
	static const char *const depths[] = { "", "0", "4097", "-1", "x", "/d=", "=4", "/d=4=" };
	static const char *const chunks[] = {
		"", "0", "5000", "65M", "1Q", "/d=", "=4096", "4096="
	};

	for (size_t i = 0; i < N_ELEMENTS(depths); i++) {
		CHECK_MSG(add(depths[i], NULL, false) == -EINVAL, "%s was taken", depths[i]);
		CHECK_EQ(err.code, ERR_USAGE);
		CHECK(strstr(err.text, "--queue-depth"));
		CHECK_MSG(add(NULL, chunks[i], false) == -EINVAL, "%s was taken", chunks[i]);
		CHECK(strstr(err.text, "--chunk"));
	}
	CHECK_EQ(tuning_in_flight(&tuning, 16, 512 << 10), 8 << 20);
	tuning_deinit(&tuning);
}

/* A profile says what each device delivers; devices that hold files are added up once each. */
static void rates(void)
{
	char path[4096], here[4200];
	char proc[] = "/proc/self/status", *files[] = { here, here, proc };

	(void)snprintf(here, sizeof(here), "%s/x", test_tmpdir());
	(void)snprintf(path, sizeof(path), "%s/profile", test_tmpdir());
	write_text(here, "", "");
	write_text(path, "# a comment\nqueue-depth = /=9\nchunk = /=8K\nrate = DIR=2000\n", here);
	CHECK_EQ(tuning_read_profile(&tuning, path, &err), 0);
	CHECK_EQ(tuning.rows[0].depth, 9);
	CHECK(tuning_rate(&tuning, files, 2) == 2000);
	CHECK(tuning_rate(&tuning, files, 3) == 0); /* /proc has none */
	tuning_deinit(&tuning);
	write_text(path, "rate = DIR=2000\nrate = /proc=500\n", here);
	CHECK_EQ(tuning_read_profile(&tuning, path, &err), 0);
	CHECK(tuning_rate(&tuning, files, 3) == 2500);
	tuning_deinit(&tuning);
	write_text(path, "rate = 5\n", here);
	CHECK(tuning_read_profile(&tuning, path, &err) < 0);
	CHECK(strstr(err.text, "PATH=BYTES"));
	tuning_deinit(&tuning);
	CHECK_EQ(tuning_read_profile(&tuning, NULL, &err), 0);
	CHECK(tuning_rate(&tuning, files, 2) == 0);
	tuning_deinit(&tuning);
}

static const struct test_case cases[] = {
	{ "values", values },
	{ "order", order },
	{ "refusals", refusals },
	{ "rates", rates },
};

TEST_MAIN(cases)
