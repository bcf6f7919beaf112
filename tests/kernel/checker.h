#pragma once
/*
 * The checker calls the reference and a candidate with the same random input and compares every
 * bit of what they write, and that they write nothing else. One source file per family of
 * operations; a family is a function that runs all its cases.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/kernel/kernel.h"

/* What the numbers look like. */
enum values {
	VALUES_UNIFORM, /* [-1, 1) */
	VALUES_WIDE,    /* exponents over 60 powers of two: rounding matters everywhere */
	VALUES_TINY,    /* subnormals, signed zeros, products that underflow */
	VALUES_N_,
};

struct check {
	const struct kern_table *ref, *candidate;
	const char *op;   /* under test; NULL none */
	const char *only; /* run this op alone; NULL all */
	uint64_t seed;    /* of the case under way, printed when it fails */
	uint64_t rng;
	enum values values;
	unsigned long n_cases, n_failed;
	uint64_t digest_ref, digest_candidate; /* of what they wrote; a NaN is a NaN */
};

/* Start a case of op; false: not asked for. */
bool check_begin(struct check *c, const char *op, enum values values);

uint32_t check_random(struct check *c);
size_t check_below(struct check *c, size_t n); /* 0 ... n - 1 */
float check_value(struct check *c);
float check_uniform(struct check *c, float low, float high);

/*
 * Input memory that ends where the readable world ends: a read past it is a fault. Floats start at
 * any multiple of 4, bytes anywhere. Valid until check_release.
 */
float *check_floats(struct check *c, size_t n);  /* filled with check_value */
void *check_bytes(struct check *c, size_t n);    /* filled at random */
uint16_t *check_bf16(struct check *c, size_t n); /* any alignment: use memcpy */
/* n floats, 64-byte aligned, zero. */
float *check_aligned(struct check *c, size_t n);
/* Frees all input and output memory of the case. */
void check_release(struct check *c);

/*
 * Output memory: two copies of n floats, between canaries, poisoned differently, or both holding
 * initial when the operation works in place. Parts the operation must leave alone are compared as
 * well: they still have their poison.
 */
struct output {
	float *ref, *candidate;
	size_t n;
};
struct output check_output(struct check *c, size_t n, const float *initial);
/* The outputs are equal and, where written is NULL or written[i] is set, changed; nothing around
 * them is. */
void check_output_done(struct check *c, const struct output *o, const bool *written,
		       const char *shape, ...) __attribute__((__format__(__printf__, 4, 5)));
void check_result(struct check *c, float ref, float candidate, const char *shape, ...)
	__attribute__((__format__(__printf__, 4, 5)));

void check_matmul(struct check *c);
void check_sums(struct check *c);
void check_elementwise(struct check *c);
void check_layer_ops(struct check *c);

/* Deliberately wrong kernels: replace one entry of t. NULL when there is no such mutant. */
struct mutant {
	const char *name;
	const char *op; /* the op that it breaks */
	void (*apply)(struct kern_table *t);
};
extern const struct mutant mutants[];
extern const size_t n_mutants;
