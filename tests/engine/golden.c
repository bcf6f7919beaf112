#include "tests/engine/golden.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "shared/fd.h"
#include "tests/harness/test.h"

json_t *golden_json(const char *path)
{
	json_error_t error;
	json_t *j = json_load_file(path, 0, &error);

	CHECK_MSG(j, "%s:%d: %s", path, error.line, error.text);
	return j;
}

uint32_t *golden_ids(const json_t *array, size_t *ret_n)
{
	size_t n = json_array_size(array);
	uint32_t *ids = calloc(n ? n : 1, sizeof(*ids));

	CHECK(ids && json_is_array(array));
	for (size_t i = 0; i < n; i++)
		ids[i] = (uint32_t)json_integer_value(json_array_get(array, i));
	*ret_n = n;
	return ids;
}

void golden_f64_open(struct golden_f64 *g, const char *path)
{
	uint64_t header_size;

	CHECK_MSG(fd_read_file(AT_FDCWD, path, 64 << 20, &g->bytes, &g->size) == 0, "%s", path);
	CHECK(g->size > 8);
	memcpy(&header_size, g->bytes, sizeof(header_size));
	CHECK(header_size <= g->size - 8);
	g->header = json_loadb(g->bytes + 8, header_size, 0, NULL);
	CHECK(g->header);
	g->data = g->bytes + 8 + header_size;
}

void golden_f64_close(struct golden_f64 *g)
{
	json_decref(g->header);
	free(g->bytes);
}

double *golden_f64_tensor(const struct golden_f64 *g, const char *name, size_t *ret_n)
{
	const json_t *entry = json_object_get(g->header, name), *offsets;
	size_t begin, end;
	double *copy;

	if (!entry)
		return NULL;
	CHECK_STR(json_string_value(json_object_get(entry, "dtype")), "F64");
	offsets = json_object_get(entry, "data_offsets");
	begin = (size_t)json_integer_value(json_array_get(offsets, 0));
	end = (size_t)json_integer_value(json_array_get(offsets, 1));
	CHECK(begin <= end && g->data + end <= g->bytes + g->size);
	copy = malloc(end - begin);
	CHECK(copy);
	memcpy(copy, g->data + begin, end - begin);
	*ret_n = (end - begin) / sizeof(double);
	return copy;
}
