#pragma once
/*
 * The MXFP4 product over the vectors of simd_<isa>.h, blocked as in matmul_simd.h. Weights are
 * decoded in registers, once for a block of rows of x; the scale enters once per line and lane,
 * after its eight products, as order.h says.
 */
#include "compute/kernel/matmul_simd.h"

enum {
	MX_PER_LANE = 8,
	MX_K_BLOCK = 1024, /* any multiple of a line: there is no flush */
};

struct mx {
	const uint8_t *packed, *scale; /* of the first row */
	size_t n_cols;
};

SIMD_FN struct mx mx_rows_from(struct mx w, size_t r)
{
	w.packed += r * (w.n_cols / 2);
	w.scale += r * (w.n_cols / KERN_MX_GROUP);
	return w;
}

/* Codes and scales of half h of the line at element i of row r. */
SIMD_FN simd_codes mx_codes(const struct mx *w, size_t r, size_t i, size_t h, const bool whole)
{
	const uint8_t *p = w->packed + r * (w->n_cols / 2) + i / 2 + h * SIMD_LEN * 4;
	size_t first = h * SIMD_LEN * 4, n = (w->n_cols - i) / 2;

	if (whole)
		return simd_load_mx(p);
	n = n > first ? n - first : 0;
	return simd_load_mx_part(p, n < SIMD_LEN * 4 ? n : SIMD_LEN * 4);
}

SIMD_FN simd mx_scales(const struct mx *w, size_t r, size_t i, size_t h, const bool whole)
{
	const uint8_t *s = w->scale + (r * w->n_cols + i) / KERN_MX_GROUP;

	return simd_mx_scale(s, h, whole ? 4 : (w->n_cols - i) / KERN_MX_GROUP);
}

/* Half h of one line at element i: R rows of weights x M rows of x (x at element i). */
SIMD_FN void mx_line(const struct mx *w, size_t i, const struct x_rows *x,
		     simd a[BLOCK_X][BLOCK_ROWS], size_t h, const size_t M, const size_t R,
		     const bool whole)
{
	UNROLL
	for (size_t r = 0; r < R; r++) {
		simd_codes q = mx_codes(w, r, i, h, whole);
		simd t[BLOCK_X], scale;

		UNROLL
		for (int k = 0; k < MX_PER_LANE; k++) {
			simd v = simd_mx_value(q, k);

			UNROLL
			for (size_t m = 0; m < M; m++) {
				simd xm = load_x(x, m, (size_t)k * KERN_LANES + h * SIMD_LEN);

				t[m] = k ? simd_fma(v, xm, t[m]) : simd_mul(v, xm);
			}
		}
		scale = mx_scales(w, r, i, h, whole);
		UNROLL
		for (size_t m = 0; m < M; m++)
			a[m][r] = simd_fma(t[m], scale, a[m][r]);
	}
}

/* Elements [i0, i1) of R rows of weights and M rows of x, added to the lanes. */
SIMD_FN void mx_block(const struct mx *w, const float *x, size_t x_stride, float *lanes, size_t i0,
		      size_t i1, const size_t M, const size_t R)
{
	UNROLL
	for (size_t h = 0; h < SIMD_HALVES; h++) {
		simd a[BLOCK_X][BLOCK_ROWS];
		struct x_rows xi = x_rows_at(x + i0, x_stride, M);
		float *t = lanes + h * SIMD_LEN;
		size_t i = i0;

		UNROLL
		for (size_t m = 0; m < M; m++)
			UNROLL
		for (size_t r = 0; r < R; r++)
			a[m][r] = i0 ? simd_load(t + (m * PANEL + r) * KERN_LANES) : simd_zero();
		for (; i + KERN_LINE_MXFP4 <= i1; i += KERN_LINE_MXFP4) {
			mx_line(w, i, &xi, a, h, M, R, true);
			xi.at += KERN_LINE_MXFP4 * sizeof(*x);
		}
		if (i < i1)
			mx_line(w, i, &xi, a, h, M, R, false);
		UNROLL
		for (size_t m = 0; m < M; m++)
			UNROLL
		for (size_t r = 0; r < R; r++)
			simd_store(t + (m * PANEL + r) * KERN_LANES, a[m][r]);
	}
}

SIMD_FN void mx_block_any(const struct mx *w, const float *x, size_t x_stride, float *lanes,
			  size_t i0, size_t i1, size_t M, size_t R)
{
#define BLOCK_OF(m)                                                                        \
	if (R == block_rows(m)) {                                                          \
		mx_block(w, x, x_stride, lanes, i0, i1, m, block_rows(m));                 \
	} else {                                                                           \
		for (size_t r = 0; r < R; r++) {                                           \
			struct mx row = mx_rows_from(*w, r);                               \
                                                                                           \
			mx_block(&row, x, x_stride, lanes + r * KERN_LANES, i0, i1, m, 1); \
		}                                                                          \
	}
	switch (M) {
		FOR_CONSTANT_M(BLOCK_OF)
	}
#undef BLOCK_OF
}

SIMD_FN void mx_panel(const struct mx *w, size_t n_rows, const float *xp, size_t x_stride,
		      size_t n_x, float *y, size_t y_stride)
{
	float lanes[X_PANEL * PANEL * KERN_LANES] __attribute__((aligned(64)));
	/* One block of x: its rows stay in the first-level cache, the accumulators in registers. */
	size_t k_block = n_x <= BLOCK_X_FULL ? w->n_cols : MX_K_BLOCK;
	size_t i0 = 0;

	do {
		size_t i1 = w->n_cols - i0 < k_block ? w->n_cols : i0 + k_block;

		for (size_t m = 0, M; m < n_x; m += M) {
			size_t step;

			M = next_x(n_x - m);
			step = block_rows(M);
			for (size_t r = 0; r < n_rows; r += step) {
				struct mx rows = mx_rows_from(*w, r);

				mx_block_any(&rows, xp + m * x_stride, x_stride,
					     lanes + (m * PANEL + r) * KERN_LANES, i0, i1, M,
					     n_rows - r < step ? n_rows - r : step);
			}
		}
		i0 = i1;
	} while (i0 < w->n_cols);
	store_panel(lanes, n_rows, n_x, y, y_stride);
}

/* One row of weights, one row of x. Lines do not depend on each other but for the last fma, so the
 * CPU overlaps them by itself. */
SIMD_FN float mx_one(const struct mx *w, const float *x)
{
	simd a[SIMD_HALVES];
	size_t i = 0;

	UNROLL
	for (size_t h = 0; h < SIMD_HALVES; h++)
		a[h] = simd_zero();
	for (; i < w->n_cols; i += KERN_LINE_MXFP4) {
		const bool whole = i + KERN_LINE_MXFP4 <= w->n_cols;
		const struct x_rows xi = x_rows_at(x + i, 0, 1);

		UNROLL
		for (size_t h = 0; h < SIMD_HALVES; h++) {
			simd v[BLOCK_X][BLOCK_ROWS];

			v[0][0] = a[h];
			if (whole)
				mx_line(w, i, &xi, v, h, 1, 1, true);
			else
				mx_line(w, i, &xi, v, h, 1, 1, false);
			a[h] = v[0][0];
		}
	}
	return simd_tree(a);
}

void SIMD_NAME(matmul_mxfp4)(const uint8_t *packed, const uint8_t *scale, size_t n_rows,
			     size_t n_cols, const float *xp, size_t x_stride, size_t n_x, float *y,
			     size_t y_stride)
{
	const struct mx all = { packed, scale, n_cols };

	for (size_t m = 0; m < n_x; m += X_PANEL) {
		size_t M = n_x - m < X_PANEL ? n_x - m : X_PANEL;
		const float *x = xp + m * x_stride;
		float *ym = y + m * y_stride;

		if (M == 1) {
			for (size_t r = 0; r < n_rows; r++) {
				struct mx w = mx_rows_from(all, r);

				ym[r] = mx_one(&w, x);
			}
			continue;
		}
		for (size_t r = 0; r < n_rows; r += PANEL) {
			struct mx w = mx_rows_from(all, r);

			mx_panel(&w, n_rows - r < PANEL ? n_rows - r : PANEL, x, x_stride, M,
				 ym + r, y_stride);
		}
	}
}
