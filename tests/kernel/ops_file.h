#pragma once
/*
 * Operation cases of ../shared/data/ops: one JSON file each with weights, inputs and expected
 * outputs. Everything read stays allocated until the case's process ends.
 */
#include <stddef.h>
#include <stdint.h>

struct ops_file; /* the parsed file */

/* Skips the case when the file is absent. */
const struct ops_file *ops_open(const char *name);
double ops_number(const struct ops_file *f, const char *key);
/* {"shape": ..., "data": [...]} as floats; n: expected count, 0 any. */
const float *ops_floats(const struct ops_file *f, const char *key, size_t n);
const uint8_t *ops_bytes(const struct ops_file *f, const char *key, size_t n);
/* A bare array inside an object: "expected_swapped_nibbles", "first64". */
const float *ops_array(const struct ops_file *f, const char *key, const char *member, size_t n);
/* n zeroed floats, 64-byte aligned. */
float *ops_new(size_t n);

/* |got - want| <= 1e-5 + 1e-4 |want|: the tolerances of ops/MANIFEST.json. */
void ops_check_near(const char *what, const float *got, const float *want, size_t n);
