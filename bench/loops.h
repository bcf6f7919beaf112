#pragma once
/* Loops the kernels are measured against. */
#include <stddef.h>
#include <stdint.h>

enum { LOOP_TURNS = 10000, LOOP_CHAINS = 12 };

/* LOOP_TURNS times LOOP_CHAINS independent vector FMAs in registers; nothing where the instruction
 * set was not built. */
void loop_fma_avx512(void);
void loop_fma_avx2(void);
/* One row of bf16 as one would write it first: AVX2, four numbers become doubles, two sums; the
 * elements behind the last eight are left out. 0 where it was not built. */
float loop_dot_double(const uint16_t *w, const float *x, size_t n);
