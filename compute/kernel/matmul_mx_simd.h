#pragma once
/*
 * The MXFP4 product over the vectors of simd_<isa>.h, blocked as in matmul_simd.h. Weights are
 * decoded in registers, once for a block of rows of x; the scale enters once per line and lane,
 * after its eight products, as order.h says.
 */
#include "compute/kernel/matmul_simd.h"

enum {
	MX_PER_LANE = 8,
	MX_BLOCK_ROWS_WIDE = 2,
	MX_SCALE_LINES = 4, /* whose scales are read together */
	MX_K_BLOCK = 1024,  /* any multiple of a line: there is no flush */
	/* A few rows of x: bytes between what is read and what is fetched into either cache. */
	MX_AHEAD_L1 = 2048,
	MX_AHEAD_L2 = 16384,
	MX_PANEL = 48, /* outputs, at most PANEL: a larger one fetches its first block late */
};

struct mx {
	const uint8_t *packed, *scale; /* of the first row */
	const uint8_t *end;            /* of all packed rows */
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

/* Number k of the lanes: from codes that lie whole, or with what may be read behind them. */
SIMD_FN simd mx_value(const simd_codes *q, const int k, const bool is_near)
{
	return is_near ? simd_near_value(*q, k) : simd_mx_value(*q, k);
}

/*
 * Half h of one line at element i: G rows of weights x M rows of x (x at element i). scales: of the
 * lines of which this is the jth; NULL: read by itself. Each vector of x is loaded once for the G
 * rows, codes once for the numbers that share them.
 */
SIMD_FN void mx_line(const struct mx *w, size_t i, const struct x_rows *x,
		     simd a[BLOCK_X][BLOCK_ROWS], size_t h, const size_t M, const size_t first,
		     const size_t G, const bool whole, const simd_scales *scales, size_t j)
{
	const size_t row = w->n_cols / 2;
	const uint8_t *p = w->packed + first * row + i / 2 + h * SIMD_LEN * 4;
	simd_codes q[BLOCK_ROWS];
	simd t[BLOCK_X][BLOCK_ROWS], v[BLOCK_ROWS];

	UNROLL
	for (int k = 0; k < MX_PER_LANE; k++) {
		UNROLL
		for (size_t r = 0; r < G; r++) {
			if (scales && k % SIMD_NEAR == 0)
				q[r] = simd_load_near(p + r * row, k);
			else if (k == 0)
				q[r] = mx_codes(w, first + r, i, h, whole);
			v[r] = mx_value(&q[r], k, scales);
		}
		UNROLL
		for (size_t m = 0; m < M; m++) {
			const float *at = x_at(x, m, (size_t)k * KERN_LANES + h * SIMD_LEN);
			simd xm = simd_load(at);

			if (G > 1)
				xm = simd_keep(xm);
			UNROLL
			for (size_t r = 0; r < G; r++)
				t[m][r] = k ? simd_fma(v[r], xm, t[m][r]) : simd_mul(v[r], xm);
		}
	}
	UNROLL
	for (size_t r = 0; r < G; r++) {
		simd scale = scales ? simd_scale_of(scales[first + r], j, h)
				    : mx_scales(w, first + r, i, h, whole);

		UNROLL
		for (size_t m = 0; m < M; m++)
			a[m][first + r] = simd_fma(t[m][r], scale, a[m][first + r]);
	}
}

/* Rows of weights whose lines are worked on together: as many as leave registers for their sums. */
SIMD_FN size_t mx_group(size_t M)
{
	return M <= MX_X_BY_4 ? 4 : M <= MX_X_BY_2 ? 2 : 1;
}

/* Rows of weights in a block of M rows of x. */
SIMD_FN size_t mx_block_rows(size_t M)
{
	size_t G = mx_group(M);

	if (G > 1)
		return G;
	return M <= BLOCK_X_FULL ? BLOCK_ROWS : MX_BLOCK_ROWS_WIDE;
}

/* The same of R rows. */
SIMD_FN void mx_line_rows(const struct mx *w, size_t i, const struct x_rows *x,
			  simd a[BLOCK_X][BLOCK_ROWS], size_t h, const size_t M, const size_t R,
			  const bool whole, const simd_scales *scales, size_t j)
{
	const size_t G = mx_group(M);

	UNROLL
	for (size_t r = 0; r < R; r += G)
		mx_line(w, i, x, a, h, M, r, R - r < G ? R - r : G, whole, scales, j);
}

/*
 * Fetches for a few rows of x, whose weights come from memory: while line i of R rows is used, as
 * many lines in the order in which they lie there, whatever rows they belong to. What lies far
 * ahead goes into the second-level cache: the first has too few places for lines that are still on
 * their way.
 */
SIMD_FN void mx_fetch(const struct mx *w, size_t i, const size_t R)
{
	const uint8_t *p = w->packed + i / KERN_LINE_MXFP4 * R * LINE_SIZE;

	UNROLL
	for (size_t r = 0; r < R; r++) {
		__builtin_prefetch(p + r * LINE_SIZE + MX_AHEAD_L2, 0, 2);
		__builtin_prefetch(p + r * LINE_SIZE + MX_AHEAD_L1);
	}
}

/* Half h of elements [i, i1), R rows of weights x M rows of x (x at element i). */
SIMD_FN void mx_lines(const struct mx *w, size_t i, size_t i1, struct x_rows x,
		      simd a[BLOCK_X][BLOCK_ROWS], size_t h, const size_t M, const size_t R)
{
	const size_t line = KERN_LINE_MXFP4, row = w->n_cols / 2;
	const uint8_t *last = w->packed + (R - 1) * row;

	while (i + MX_SCALE_LINES * line <= i1 &&
	       (size_t)(w->end - last) >= (i + MX_SCALE_LINES * line) / 2 + SIMD_MX_PAST) {
		simd_scales scales[BLOCK_ROWS];

		UNROLL
		for (size_t r = 0; r < R; r++)
			scales[r] =
				simd_load_scales(w->scale + (r * w->n_cols + i) / KERN_MX_GROUP);
		for (size_t j = 0; j < MX_SCALE_LINES; j++, i += line) {
			if (M <= MX_X_WHOLE && h == 0)
				mx_fetch(w, i, R);
			mx_line_rows(w, i, &x, a, h, M, R, true, scales, j);
			x.at += line * sizeof(float);
		}
	}
	for (; i + line <= i1; i += line) {
		mx_line_rows(w, i, &x, a, h, M, R, true, NULL, 0);
		x.at += line * sizeof(float);
	}
	if (i < i1)
		mx_line_rows(w, i, &x, a, h, M, R, false, NULL, 0);
}

/* Elements [i0, i1) of R rows of weights and M rows of x, added to the lanes. */
SIMD_FN void mx_block(const struct mx *w, const float *x, size_t x_stride, float *lanes, size_t i0,
		      size_t i1, const size_t M, const size_t R)
{
	UNROLL
	for (size_t h = 0; h < SIMD_HALVES; h++) {
		simd a[BLOCK_X][BLOCK_ROWS];
		float *t = lanes + h * SIMD_LEN;

		UNROLL
		for (size_t m = 0; m < M; m++)
			UNROLL
		for (size_t r = 0; r < R; r++)
			a[m][r] = i0 ? simd_load(t + (r * M + m) * KERN_LANES) : simd_zero();
		mx_lines(w, i0, i1, x_rows_at(x + i0, x_stride, M), a, h, M, R);
		UNROLL
		for (size_t m = 0; m < M; m++)
			UNROLL
		for (size_t r = 0; r < R; r++)
			simd_store(t + (r * M + m) * KERN_LANES, a[m][r]);
	}
}

SIMD_FN void mx_block_any(const struct mx *w, const float *x, size_t x_stride, float *lanes,
			  size_t i0, size_t i1, size_t M, size_t R)
{
#define BLOCK_OF(m)                                                                            \
	if (R == mx_block_rows(m)) {                                                           \
		mx_block(w, x, x_stride, lanes, i0, i1, m, mx_block_rows(m));                  \
	} else {                                                                               \
		for (size_t r = 0; r < R; r++) {                                               \
			struct mx row = mx_rows_from(*w, r);                                   \
                                                                                               \
			mx_block(&row, x, x_stride, lanes + r * (m)*KERN_LANES, i0, i1, m, 1); \
		}                                                                              \
	}
	switch (M) {
		FOR_CONSTANT_M(BLOCK_OF)
	}
#undef BLOCK_OF
}

/*
 * What a panel's weights go on with after a K block, on its way to the second-level cache: the same
 * rows' next block, after the last one the next rows' first. Each block of rows of x fetches its
 * piece of it, and each of its blocks of weights the part of as many rows, so that fetches do not
 * pile up before the FMA units.
 */
struct ahead {
	const char *w; /* of the first row */
	size_t row_size;
	size_t size, piece; /* bytes of a row: in all, of one block of rows of x */
	size_t begin;       /* of the piece under way */
};

/* at: of each row where its next block begins, row_size: nowhere; k_size: bytes of a block. */
SIMD_FN struct ahead ahead_of(const void *w, size_t n_rows, size_t row_size, size_t at,
			      size_t k_size, size_t n_x)
{
	size_t n = (n_x + BLOCK_X - 1) / BLOCK_X, left = at < row_size ? row_size - at : row_size;
	size_t size = left < k_size ? left : k_size;

	return (struct ahead){
		.w = (const char *)w + (at < row_size ? at : n_rows * row_size),
		.row_size = row_size,
		.size = size,
		.piece = (size / n + LINE_SIZE - 1) / LINE_SIZE * LINE_SIZE,
	};
}

/* The piece of R rows from row r on. */
SIMD_FN void fetch_ahead(const struct ahead *a, size_t r, size_t R)
{
	size_t end = a->begin + a->piece < a->size ? a->begin + a->piece : a->size;

	for (size_t i = r; i < r + R; i++)
		for (size_t j = a->begin; j < end; j += LINE_SIZE)
			__builtin_prefetch(a->w + i * a->row_size + j, 0, 2);
}

SIMD_FN void mx_panel(const struct mx *w, size_t n_rows, const float *xp, size_t x_stride,
		      size_t n_x, float *y, size_t y_stride)
{
	float lanes[X_PANEL * PANEL * KERN_LANES] __attribute__((aligned(64)));
	const size_t row = w->n_cols / 2, scale_row = w->n_cols / KERN_MX_GROUP;
	size_t k_block = n_x <= MX_X_WHOLE ? w->n_cols : MX_K_BLOCK;
	/* The scales of the next rows, all with the first block of rows of x. */
	struct ahead scales = ahead_of(w->scale, n_rows, scale_row, scale_row, scale_row, 1);
	size_t i0 = 0;

	do {
		size_t i1 = w->n_cols - i0 < k_block ? w->n_cols : i0 + k_block;
		struct ahead next = ahead_of(w->packed, n_rows, row, i1 / 2, k_block / 2, n_x);

		for (size_t m = 0, M; m < n_x; m += M) {
			size_t step;

			M = next_part(n_x - m, BLOCK_X);
			step = mx_block_rows(M);
			for (size_t r = 0; r < n_rows; r += step) {
				struct mx rows = mx_rows_from(*w, r);
				size_t R = n_rows - r < step ? n_rows - r : step;

				if (n_x > MX_X_WHOLE)
					fetch_ahead(&next, r, R);
				fetch_ahead(&scales, r, R);
				mx_block_any(&rows, xp + m * x_stride, x_stride,
					     lanes_of(lanes, m, M, r), i0, i1, M, R);
			}
			next.begin += next.piece;
			scales.begin = scales.size;
		}
		i0 = i1;
	} while (i0 < w->n_cols);
	store_panel(lanes, n_rows, n_x, y, y_stride);
}

/* R rows of weights, one row of x. */
SIMD_FN void mx_one_x(const struct mx *w, const float *x, float *y, const size_t R)
{
	simd a[SIMD_HALVES][BLOCK_X][BLOCK_ROWS];

	UNROLL
	for (size_t h = 0; h < SIMD_HALVES; h++) {
		UNROLL
		for (size_t r = 0; r < R; r++)
			a[h][0][r] = simd_zero();
		mx_lines(w, 0, w->n_cols, x_rows_at(x, 0, 1), a[h], h, 1, R);
	}
	UNROLL
	for (size_t r = 0; r < R; r++) {
		simd total[SIMD_HALVES];

		UNROLL
		for (size_t h = 0; h < SIMD_HALVES; h++)
			total[h] = a[h][0][r];
		y[r] = simd_tree(total);
	}
}

void SIMD_NAME(matmul_mxfp4)(const uint8_t *packed, const uint8_t *scale, size_t n_rows,
			     size_t n_cols, const float *xp, size_t x_stride, size_t n_x, float *y,
			     size_t y_stride)
{
	const struct mx all = { packed, scale, packed + n_rows * (n_cols / 2), n_cols };

	for (size_t m = 0, M; m < n_x; m += M) {
		const float *x = xp + m * x_stride;
		float *ym = y + m * y_stride;

		M = next_part(n_x - m, X_PANEL);
		if (M == 1) {
			size_t r = 0;

			for (; r + MX_ROWS_ONE_X <= n_rows; r += MX_ROWS_ONE_X) {
				struct mx w = mx_rows_from(all, r);

				mx_one_x(&w, x, ym + r, MX_ROWS_ONE_X);
			}
			for (; r < n_rows; r++) {
				struct mx w = mx_rows_from(all, r);

				mx_one_x(&w, x, ym + r, 1);
			}
			continue;
		}
		for (size_t r = 0; r < n_rows; r += MX_PANEL) {
			struct mx w = mx_rows_from(all, r);

			mx_panel(&w, n_rows - r < MX_PANEL ? n_rows - r : MX_PANEL, x, x_stride, M,
				 ym + r, y_stride);
		}
	}
}
