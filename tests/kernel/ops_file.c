#include "tests/kernel/ops_file.h"

#include <jansson.h>

#include "tests/harness/test.h"

struct ops_file {
	char name[64];
};

enum { N_ALLOCATIONS = 2048, N_FILES = 4 };

/* Reachable until the end, so that the leak checker knows them. */
static void *allocations[N_ALLOCATIONS];
static size_t n_allocations;
static struct ops_file files[N_FILES];
static json_t *roots[N_FILES];
static size_t n_files;

static void *keep(size_t size)
{
	void *p = aligned_alloc(64, (size + 127) / 64 * 64);

	CHECK(p != NULL && n_allocations < N_ALLOCATIONS);
	memset(p, 0, (size + 127) / 64 * 64);
	allocations[n_allocations++] = p;
	return p;
}

float *ops_new(size_t n)
{
	return keep(n * sizeof(float));
}

const struct ops_file *ops_open(const char *name)
{
	char path[128];
	json_error_t e;

	CHECK(n_files < N_FILES);
	(void)snprintf(path, sizeof(path), "ops/%s.json", name);
	roots[n_files] = json_load_file(test_data(path), 0, &e);
	CHECK_MSG(roots[n_files], "%s: line %d: %s", path, e.line, e.text);
	(void)snprintf(files[n_files].name, sizeof(files[0].name), "%s", name);
	return &files[n_files++];
}

static json_t *get(const struct ops_file *f, const char *key)
{
	json_t *v = json_object_get(roots[f - files], key);

	CHECK_MSG(v, "%s has no \"%s\"", f->name, key);
	return v;
}

double ops_number(const struct ops_file *f, const char *key)
{
	return json_number_value(get(f, key));
}

static const float *floats_of(const struct ops_file *f, const char *key, json_t *array, size_t n)
{
	float *x = ops_new(json_array_size(array));

	CHECK_MSG(json_is_array(array) && json_array_size(array) > 0, "%s: \"%s\" is no array",
		  f->name, key);
	CHECK_MSG(!n || json_array_size(array) == n, "%s: \"%s\" has %zu numbers, not %zu", f->name,
		  key, json_array_size(array), n);
	for (size_t i = 0; i < json_array_size(array); i++)
		x[i] = (float)json_number_value(json_array_get(array, i));
	return x;
}

const float *ops_floats(const struct ops_file *f, const char *key, size_t n)
{
	return floats_of(f, key, json_object_get(get(f, key), "data"), n);
}

const float *ops_array(const struct ops_file *f, const char *key, const char *member, size_t n)
{
	json_t *v = get(f, key);

	return floats_of(f, key, member ? json_object_get(v, member) : v, n);
}

const uint8_t *ops_bytes(const struct ops_file *f, const char *key, size_t n)
{
	json_t *array = json_object_get(get(f, key), "data");
	uint8_t *p = keep(n);

	CHECK(json_array_size(array) == n);
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)json_integer_value(json_array_get(array, i));
	return p;
}

void ops_check_near(const char *what, const float *got, const float *want, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		double tolerance = 1e-5 + 1e-4 * fabs((double)want[i]);

		CHECK_MSG(fabs((double)got[i] - (double)want[i]) <= tolerance,
			  "%s[%zu]: got %.9g, expected %.9g", what, i, (double)got[i],
			  (double)want[i]);
	}
}
