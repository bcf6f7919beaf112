#pragma once
/*
 * A test program: cases in a table, each run in a forked child so that a crash is one failure and a
 * leaked descriptor is noticed. Exit 0 all passed, 1 some failed, 77 all skipped ("NOT RUN: why"),
 * 99 the harness broke.
 */
#ifdef NDEBUG
#error "tests must be built with asserts"
#endif
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test_case {
	const char *name;
	void (*run)(void);
};
int test_main(int argc, char **argv, const struct test_case *cases, size_t n_cases);

/* Inside a case. */
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
	__attribute__((__format__(__printf__, 3, 4)));
_Noreturn void test_skip(const char *why);
/* "../shared/data/NAME" found from the source root ($K3_DATA or K3_SOURCE_ROOT/../shared/data);
 * skips when absent. */
const char *test_data(const char *name);
/* A path under the source root. */
const char *test_source(const char *name);
/* A fresh temporary directory, removed when the case ends. */
const char *test_tmpdir(void);

/* A whole file, and a NUL after it; caller frees. */
char *test_read_file(const char *path, size_t *ret_size);

#define CHECK(x)          ((x) ? (void)0 : test_fail(__FILE__, __LINE__, "%s", #x))
#define CHECK_MSG(x, ...) ((x) ? (void)0 : test_fail(__FILE__, __LINE__, __VA_ARGS__))
#define CHECK_EQ(a, b)                                                                         \
	do {                                                                                   \
		long long a_ = (long long)(a), b_ = (long long)(b);                            \
		if (a_ != b_)                                                                  \
			test_fail(__FILE__, __LINE__, "%s = %lld, %s = %lld", #a, a_, #b, b_); \
	} while (0)
#define CHECK_STR(a, b)                                                                            \
	do {                                                                                       \
		const char *a_ = (a), *b_ = (b);                                                   \
		if (strcmp(a_, b_) != 0)                                                           \
			test_fail(__FILE__, __LINE__, "%s = \"%s\", %s = \"%s\"", #a, a_, #b, b_); \
	} while (0)
#define TEST_MAIN(cases)                                                                 \
	int main(int argc, char **argv)                                                  \
	{                                                                                \
		return test_main(argc, argv, cases, sizeof(cases) / sizeof((cases)[0])); \
	}
