#pragma once
#include <stddef.h>

#include "compute/kernel/kernel.h"

/* Every operation that is no matrix product, on one thread: prints the median time for an element
 * over rounds (at most BENCH_ROUNDS_MAX). */
enum { BENCH_ROUNDS_MAX = 1000 };
void bench_ops(const struct kern_table *kern, size_t rounds);

/* n small numbers, 64-byte aligned; the caller's to free. Ends the program without memory. */
float *bench_new_floats(size_t n);
