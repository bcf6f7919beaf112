/*
 * Kernels that are wrong on purpose, one mistake each: the checker must notice every one. They are
 * the reference's arithmetic with a single thing changed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compute/kernel/order.h"
#include "tests/kernel/checker.h"

enum mistake { WRONG_LANE, SKIPPED_TAIL, MISSING_FLUSH, WRONG_TREE, UNFUSED };

static float load_bf16(const void *w, size_t i)
{
	uint16_t u;

	memcpy(&u, (const char *)w + i * sizeof(u), sizeof(u));
	return kern_float_of_bits((uint32_t)u << 16);
}

static float sum_lanes(float v[KERN_LANES], enum mistake mistake)
{
	if (mistake != WRONG_TREE)
		return kern_tree(v);
	for (int l = 1; l < KERN_LANES; l++) /* from left to right */
		v[0] = v[0] + v[l];
	return v[0];
}

static float dot_bf16(const void *w, size_t n, const float *x, enum mistake mistake)
{
	float total[KERN_LANES] = { 0 }, a[KERN_LANES] = { 0 };
	size_t len = kern_packed_len(KERN_BF16, n);

	if (mistake == SKIPPED_TAIL)
		len = n / KERN_LINE_BF16 * KERN_LINE_BF16;
	for (size_t i = 0; i < len; i++) {
		size_t j = i % KERN_LINE_BF16, at = i - j + j % 2 * KERN_LANES + j / 2;
		size_t lane = mistake == WRONG_LANE ? j % KERN_LANES : j / 2;
		float v = i < n ? load_bf16(w, i) : 0.0f;

		a[lane] = mistake == UNFUSED ? v * x[at] + a[lane] : fmaf(v, x[at], a[lane]);
		if (((i + 1) % KERN_FLUSH == 0 && mistake != MISSING_FLUSH) || i + 1 == len) {
			for (size_t l = 0; l < KERN_LANES; l++) {
				total[l] = total[l] + a[l];
				a[l] = 0.0f;
			}
		}
	}
	return sum_lanes(total, mistake);
}

static void matmul(const void *w, size_t n_rows, size_t n_cols, const float *xp, size_t x_stride,
		   size_t n_x, float *y, size_t y_stride, enum mistake mistake)
{
	for (size_t m = 0; m < n_x; m++) {
		for (size_t r = 0; r < n_rows; r++)
			y[m * y_stride + r] = dot_bf16((const char *)w + r * n_cols * 2, n_cols,
						       xp + m * x_stride, mistake);
	}
}

#define MUTANT_MATMUL(name, mistake)                                                \
	static KERN_DECL_matmul_bf16(name)                                          \
	{                                                                           \
		matmul(w, n_rows, n_cols, xp, x_stride, n_x, y, y_stride, mistake); \
	}                                                                           \
	static void apply_##name(struct kern_table *t)                              \
	{                                                                           \
		t->matmul_bf16 = name;                                              \
	}
MUTANT_MATMUL(wrong_lane, WRONG_LANE)
MUTANT_MATMUL(skipped_tail, SKIPPED_TAIL)
MUTANT_MATMUL(missing_flush, MISSING_FLUSH)
MUTANT_MATMUL(wrong_tree, WRONG_TREE)
MUTANT_MATMUL(unfused, UNFUSED)

/* The reference's product of bytes whose nibbles are swapped. */
static const struct kern_table *reference;

static KERN_DECL_matmul_mxfp4(swapped_nibble)
{
	size_t n = n_rows * n_cols / 2;
	uint8_t *copy = malloc(n + 1);

	if (!copy)
		abort();
	for (size_t i = 0; i < n; i++)
		copy[i] = (uint8_t)(packed[i] >> 4 | packed[i] << 4);
	reference->matmul_mxfp4(copy, scale, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
	free(copy);
}

/* A scale byte of 0 as 0 instead of 2^-127: the same as weights of 0 there. Freed by the caller. */
static uint8_t *without_zero_scales(const uint8_t *packed, const uint8_t *scale, size_t n)
{
	uint8_t *copy = malloc(n + 1);

	if (!copy)
		abort();
	for (size_t i = 0; i < n; i++)
		copy[i] = scale[i / (KERN_MX_GROUP / 2)] ? packed[i] : 0;
	return copy;
}

static KERN_DECL_matmul_mxfp4(zero_scale)
{
	uint8_t *copy = without_zero_scales(packed, scale, n_rows * n_cols / 2);

	reference->matmul_mxfp4(copy, scale, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
	free(copy);
}

static KERN_DECL_matmul_mxfp4(zero_scale_turned)
{
	uint8_t *copy = without_zero_scales(packed, scale, n_rows * n_cols / 2);

	reference->matmul_mxfp4_turned(copy, scale, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
	free(copy);
}

/* Takes turned rows of x for rows as they come. */
static KERN_DECL_matmul_bf16(not_turned)
{
	reference->matmul_bf16(w, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
}

/* Reads the state before its decay. */
static KERN_DECL_kda_step(undecayed)
{
	reference->colsum_f32(state, dv, dk, dv, k, scratch);
	for (size_t d = 0; d < dk; d++) {
		for (size_t j = 0; j < dv; j++)
			state[d * dv + j] = fmaf(k[d], beta * (v[j] - scratch[j]),
						 alpha[d] * state[d * dv + j]);
	}
	reference->colsum_f32(state, dv, dk, dv, q, o);
}

/* Writes one float too many. */
static KERN_DECL_map(overrun)
{
	reference->exp(x, n, y);
	y[n] = 0.0f;
}

#define MUTANT(name, op)                               \
	static void apply_##name(struct kern_table *t) \
	{                                              \
		static struct kern_table before;       \
                                                       \
		before = *t;                           \
		reference = &before;                   \
		t->op = name;                          \
	}
MUTANT(swapped_nibble, matmul_mxfp4)
MUTANT(zero_scale, matmul_mxfp4)
MUTANT(zero_scale_turned, matmul_mxfp4_turned)
MUTANT(not_turned, matmul_bf16_turned)
MUTANT(undecayed, kda_step)
MUTANT(overrun, exp)

const struct mutant mutants[] = {
	{ "wrong-lane", "matmul_bf16", apply_wrong_lane },
	{ "skipped-tail", "matmul_bf16", apply_skipped_tail },
	{ "missing-flush", "matmul_bf16", apply_missing_flush },
	{ "wrong-tree", "matmul_bf16", apply_wrong_tree },
	{ "unfused", "matmul_bf16", apply_unfused },
	{ "swapped-nibble", "matmul_mxfp4", apply_swapped_nibble },
	{ "zero-scale", "matmul_mxfp4", apply_zero_scale },
	{ "zero-scale-turned", "matmul_mxfp4_turned", apply_zero_scale_turned },
	{ "not-turned", "matmul_bf16_turned", apply_not_turned },
	{ "undecayed", "kda_step", apply_undecayed },
	{ "overrun", "exp", apply_overrun },
};
const size_t n_mutants = sizeof(mutants) / sizeof(mutants[0]);
