#pragma once
/* Reading the answers of the oracle checkpoints: JSON, and F64 tensors of a safetensors file. */
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* The file must be there and be JSON; freed with json_decref. */
json_t *golden_json(const char *path);
/* A fresh array of the numbers of a JSON array; the caller frees it. */
uint32_t *golden_ids(const json_t *array, size_t *ret_n);

struct golden_f64 {
	char *bytes; /* owned */
	size_t size;
	json_t *header; /* owned */
	const char *data;
};
void golden_f64_open(struct golden_f64 *g, const char *path);
void golden_f64_close(struct golden_f64 *g);
/* Copy of a tensor of n values (whatever its shape); NULL when there is none of this name. The
 * caller frees it. */
double *golden_f64_tensor(const struct golden_f64 *g, const char *name, size_t *ret_n);
