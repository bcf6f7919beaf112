#pragma once
/*
 * The matrix products over the vectors of simd_<isa>.h, compiled once per instruction set. Every
 * output follows order.h; free is only which outputs are worked on together:
 *
 *  - one row of x: ROWS_ONE_X rows of weights at once, as many streams from memory;
 *  - more rows: blocks of a few outputs x up to BLOCK_X rows of x in registers, over K blocks of
 *    1024 elements; the lanes of an output wait in memory between K blocks, so that the block of x
 *    (X_PANEL rows) stays in the second-level cache for PANEL rows of weights. What comes next of
 *    either is fetched there meanwhile.
 *
 * Loops with constant bounds are unrolled so that arrays of vectors become registers.
 */
#include "compute/kernel/variants.h"

enum {
	AHEAD = 8,    /* lines between what is read and what is fetched */
	PANEL = 96,   /* outputs; a multiple of every BLOCK_ROWS */
	X_PANEL = 32, /* rows of x */
};

SIMD_FN size_t element_size(const enum kern_format f)
{
	return f == KERN_F32 ? 4 : 2;
}

SIMD_FN size_t per_lane(const enum kern_format f)
{
	return f == KERN_F32 ? 1 : 2;
}

/* Number k of each lane of half h of the line at p. */
SIMD_FN simd load_weights(const enum kern_format f, const char *p, size_t h, const size_t k)
{
	simd_words q;

	p += h * SIMD_LEN * 4;
	if (f == KERN_F32)
		return simd_load((const float *)(const void *)p);
	q = simd_keep_words(simd_load_bf16(p));
	return k ? simd_bf16_odd(q) : simd_bf16_even(q);
}

/*
 * Rows of weights as two runs of whole lines: those in the matrix, then a copy of the incomplete
 * last one, completed with zeros. So the inner loops know whole lines alone.
 */
struct run {
	const char *w;
	size_t row_size, n_lines;
};

enum { LINE_SIZE = 64, N_RUNS = 2 };

SIMD_FN void runs_of(struct run runs[N_RUNS], char (*tail)[LINE_SIZE], const char *w,
		     size_t row_size, size_t n_bytes, const size_t R)
{
	size_t n_lines = n_bytes / LINE_SIZE, left = n_bytes % LINE_SIZE;

	runs[0] = (struct run){ w, row_size, n_lines };
	runs[1] = (struct run){ tail[0], LINE_SIZE, left > 0 };
	for (size_t r = 0; r < R && left; r++) {
		memset(tail[r], 0, LINE_SIZE);
		memcpy(tail[r], w + r * row_size + n_lines * LINE_SIZE, left);
	}
}

/* One line of R rows of weights and one row of x. */
SIMD_FN void line_one_x(const enum kern_format f, const char *w, size_t row_size, const float *x,
			simd a[][SIMD_HALVES], const size_t R)
{
	UNROLL
	for (size_t r = 0; r < R; r++) {
		UNROLL
		for (size_t h = 0; h < SIMD_HALVES; h++) {
			UNROLL
			for (size_t k = 0; k < per_lane(f); k++)
				a[r][h] = simd_fma(load_weights(f, w + r * row_size, h, k),
						   simd_load(x + k * KERN_LANES + h * SIMD_LEN),
						   a[r][h]);
		}
	}
}

/* R rows of weights, one row of x. */
SIMD_FN void rows_one_x(const enum kern_format f, const char *w, size_t n_cols, const float *x,
			float *y, const size_t R)
{
	const size_t line = kern_line(f), size = element_size(f);
	simd total[ROWS_ONE_X][SIMD_HALVES], a[ROWS_ONE_X][SIMD_HALVES];
	char tail[ROWS_ONE_X][LINE_SIZE];

	UNROLL
	for (size_t r = 0; r < R; r++)
		UNROLL
	for (size_t h = 0; h < SIMD_HALVES; h++)
		total[r][h] = simd_zero();
	for (size_t b = 0; b < n_cols; b += KERN_FLUSH) {
		size_t end = n_cols - b < KERN_FLUSH ? n_cols : b + KERN_FLUSH;
		const float *xi = x + b;
		struct run runs[N_RUNS];

		runs_of(runs, tail, w + b * size, n_cols * size, (end - b) * size, R);
		UNROLL
		for (size_t r = 0; r < R; r++)
			UNROLL
		for (size_t h = 0; h < SIMD_HALVES; h++)
			a[r][h] = simd_zero();
		for (struct run *run = runs; run < runs + N_RUNS; run++) {
			for (size_t i = 0; i < run->n_lines; i++, xi += line) {
				const char *wi = run->w + i * LINE_SIZE;
				size_t at = b * size + i * LINE_SIZE + ONE_X_AHEAD;

				/* This row, then the next block's. */
				if (ONE_X_AHEAD > 0 && run == runs) {
					const char *next = wi + ONE_X_AHEAD;

					if (at >= n_cols * size)
						next += (R - 1) * run->row_size;
					UNROLL
					for (size_t r = 0; r < R; r++)
						__builtin_prefetch(next + r * run->row_size);
				}
				line_one_x(f, wi, run->row_size, xi, a, R);
			}
		}
		UNROLL
		for (size_t r = 0; r < R; r++)
			UNROLL
		for (size_t h = 0; h < SIMD_HALVES; h++)
			total[r][h] = simd_add(total[r][h], a[r][h]);
	}
	UNROLL
	for (size_t r = 0; r < R; r++)
		y[r] = simd_tree(total[r]);
}

/*
 * Up to eight rows of x by one address that moves and four distances that do not: the addressing of
 * x86 multiplies by 2 and 4 for nothing. With a pointer for each row the compilers run out of
 * registers and load pointers instead of numbers.
 */
struct x_rows {
	const char *at;
	size_t one, three, five, seven; /* rows, in bytes */
};

SIMD_FN struct x_rows x_rows_at(const float *x, size_t x_stride, const size_t M)
{
	struct x_rows rows = { (const char *)x, x_stride * sizeof(*x), 0, 0, 0 };

	/* Opaque, so that no pointers are made of them after all. */
	if (M > 3) {
		rows.three = 3 * rows.one;
		__asm__("" : "+r"(rows.three));
	}
	if (M > 5) {
		rows.five = 5 * rows.one;
		__asm__("" : "+r"(rows.five));
	}
	if (M > 7) {
		rows.seven = 7 * rows.one;
		__asm__("" : "+r"(rows.seven));
	}
	__asm__("" : "+r"(rows.one));
	return rows;
}

/* Element i of row m from where the rows stand. */
SIMD_FN const float *x_at(const struct x_rows *x, const size_t m, size_t i)
{
	const char *p = x->at + i * sizeof(float);

	switch (m) {
	case 0:
		break;
	case 1:
	case 2:
	case 4:
		p += m * x->one;
		break;
	case 3:
	case 6:
		p += m / 3 * x->three;
		break;
	case 5:
		p += x->five;
		break;
	default:
		p += x->seven;
		break;
	}
	return (const float *)(const void *)p;
}

/* Number k of the lanes of half h of one line: R rows of weights x M rows of x. */
SIMD_FN void part_block(const enum kern_format f, const char *w, size_t row_size,
			const struct x_rows *x, simd a[BLOCK_X][BLOCK_ROWS], size_t h,
			const size_t k, const size_t M, const size_t R)
{
	simd v[BLOCK_ROWS];

	UNROLL
	for (size_t r = 0; r < R; r++)
		v[r] = load_weights(f, w + r * row_size, h, k);
	UNROLL
	for (size_t m = 0; m < M; m++) {
		const float *at = x_at(x, m, k * KERN_LANES + h * SIMD_LEN);
		simd xm = M > BLOCK_X_FULL ? simd_load_in_turn(at) : simd_keep(simd_load(at));

		UNROLL
		for (size_t r = 0; r < R; r++)
			a[m][r] = simd_fma_onto(a[m][r], v[r], xm);
	}
}

/*
 * What comes next on its way to the second-level cache: a line of weights and one of x with each
 * line of weights used. Left to the hardware, or asked for all at once, they wait before a block's
 * own.
 */
struct next {
	const char *w, *x; /* NULL: nothing */
};

SIMD_FN void fetch_next(struct next *next)
{
	if (!next->w)
		return;
	__builtin_prefetch(next->w, 0, 2);
	__builtin_prefetch(next->x, 0, 2);
	next->w += LINE_SIZE;
	next->x += LINE_SIZE;
}

/*
 * Half h of one line. Vectors of x and words of weights are used as soon as they are loaded, the
 * words loaded again for their second numbers: kept for later they would push accumulators out of
 * the registers.
 */
SIMD_FN void line_block(const enum kern_format f, const char *w, size_t row_size,
			const struct x_rows *x, simd a[BLOCK_X][BLOCK_ROWS], size_t h, size_t ahead,
			struct next *next, const size_t M, const size_t R)
{
	UNROLL
	for (size_t r = 0; r < R; r++) {
		if (h == 0)
			__builtin_prefetch(w + r * row_size + ahead);
	}
	if (h == 0 && M > BLOCK_X_FULL)
		fetch_next(next);
	part_block(f, w, row_size, x, a, h, 0, M, R);
	if (per_lane(f) == 1)
		return;
	__asm__("" : "+r"(w));
	part_block(f, w, row_size, x, a, h, 1, M, R);
}

/* Elements [i0, i1) of R rows of weights and M rows of x, at most 1024, added to the lanes. */
SIMD_FN void block(const enum kern_format f, const char *w, size_t n_cols, const float *x,
		   size_t x_stride, float *lanes, size_t i0, size_t i1, struct next next,
		   const size_t M, const size_t R)
{
	const size_t line = kern_line(f), size = element_size(f);
	char tail[BLOCK_ROWS][LINE_SIZE];
	struct run runs[N_RUNS];

	runs_of(runs, tail, w + i0 * size, n_cols * size, (i1 - i0) * size, R);
	UNROLL
	for (size_t h = 0; h < SIMD_HALVES; h++) {
		simd a[BLOCK_X][BLOCK_ROWS];
		struct x_rows xi = x_rows_at(x + i0, x_stride, M);

		UNROLL
		for (size_t m = 0; m < M; m++)
			UNROLL
		for (size_t r = 0; r < R; r++)
			a[m][r] = simd_zero();
		for (struct run *run = runs; run < runs + N_RUNS; run++) {
			const char *wi = run->w;

			for (size_t n = run->n_lines; n > 0; n--) {
				size_t ahead = AHEAD * LINE_SIZE;

				if (n <= AHEAD) /* the first lines of the next rows */
					ahead += R * run->row_size - run->n_lines * LINE_SIZE;
				line_block(f, wi, run->row_size, &xi, a, h, ahead, &next, M, R);
				wi += LINE_SIZE;
				xi.at += line * sizeof(*x);
			}
		}
		UNROLL
		for (size_t m = 0; m < M; m++)
			UNROLL
		for (size_t r = 0; r < R; r++) {
			float *t = lanes + (r * M + m) * KERN_LANES + h * SIMD_LEN;

			simd_store(t, simd_add(i0 ? simd_load(t) : simd_zero(), a[m][r]));
		}
	}
}

/* Rows of weights in a block of M rows of x: as many as leave registers for the rest. */
SIMD_FN size_t block_rows(size_t M)
{
	return M <= BLOCK_X_FULL ? BLOCK_ROWS : BLOCK_ROWS_WIDE;
}

/* The cases of a switch that calls X with a constant: registers are arrays that no index varies. */
#define CASE_M(m, X)  \
	case m:       \
		X(m); \
		break;
#define FOR_CONSTANT_M(X) CASE_M(2, X) CASE_M(3, X) CASE_M(4, X) FOR_CONSTANT_M_WIDE(X)

/* The same with M and R as they come. */
SIMD_FN void block_any(const enum kern_format f, const char *w, size_t n_cols, const float *x,
		       size_t x_stride, float *lanes, size_t i0, size_t i1, struct next next,
		       size_t M, size_t R)
{
	const size_t row = n_cols * element_size(f);

#define BLOCK_OF(m)                                                                            \
	if (R == block_rows(m))                                                                \
		block(f, w, n_cols, x, x_stride, lanes, i0, i1, next, m, block_rows(m));       \
	else                                                                                   \
		for (size_t r = 0; r < R; r++)                                                 \
		block(f, w + r * row, n_cols, x, x_stride, lanes + r * (m)*KERN_LANES, i0, i1, \
		      next, m, 1)
	switch (M) {
		FOR_CONSTANT_M(BLOCK_OF)
	}
#undef BLOCK_OF
}

/* Rows of x in the next of as few parts as hold at most so many: of nearly equal size, none of a
 * single row. */
SIMD_FN size_t next_part(size_t left, size_t most)
{
	size_t n_parts = (left + most - 1) / most;

	return (left + n_parts - 1) / n_parts;
}

/* Where the lanes of an output wait: those of a block of M rows of x from row m on stand together,
 * M for each row of weights. */
SIMD_FN float *lanes_of(float *lanes, size_t m, size_t M, size_t r)
{
	return lanes + (m * PANEL + r * M) * KERN_LANES;
}

SIMD_FN float one_tree(const float *t)
{
	simd v[SIMD_HALVES];

	UNROLL
	for (size_t h = 0; h < SIMD_HALVES; h++)
		v[h] = simd_load(t + h * SIMD_LEN);
	return simd_tree(v);
}

/* Finished lanes of n_rows outputs x n_x rows of x. */
SIMD_FN void store_panel(float *lanes, size_t n_rows, size_t n_x, float *y, size_t y_stride)
{
	for (size_t m = 0, M; m < n_x; m += M) {
		M = next_part(n_x - m, BLOCK_X);
		for (size_t i = 0; i < M; i++) {
			const float *t = lanes_of(lanes, m, M, 0) + i * KERN_LANES;
			float *ym = y + (m + i) * y_stride;
			const size_t stride = M * KERN_LANES;
			size_t r = 0;

#ifdef SIMD_TREES /* many trees at once are cheaper where the vectors hold all lanes of one */
			for (; r + SIMD_TREES <= n_rows; r += SIMD_TREES)
				simd_trees(t + r * stride, stride, ym + r);
#endif
			for (; r < n_rows; r++)
				ym[r] = one_tree(t + r * stride);
		}
	}
}

/*
 * Elements [i0, i1) of a panel, at most 1024: groups of rows of x, each of which stays in the
 * first-level cache for all rows of weights. Where there are several, group g fetches row g of what
 * each block of weights goes on with, and the x of the next group, a piece of as many lines as the
 * weights have with each block. One group waits for memory alone, and a block's own next lines come
 * first.
 */
SIMD_FN void k_block(const enum kern_format f, const char *w, size_t n_rows, size_t n_cols,
		     const float *xp, size_t x_stride, size_t n_x, float *lanes, size_t i0,
		     size_t i1)
{
	const size_t size = element_size(f), row = n_cols * size, n_pieces = per_lane(f);
	const bool is_last = i1 == n_cols;
	const char *w_next = w + (is_last ? n_rows * row : i1 * size);
	size_t group = 0;

	for (size_t m = 0, M; m < n_x; m += M, group++) {
		const float *x_next;
		size_t step, piece = 0;

		M = next_part(n_x - m, BLOCK_X);
		step = block_rows(M);
		x_next = m + M < n_x ? xp + (m + M) * x_stride + i0 : xp + (is_last ? 0 : i1);
		for (size_t r = 0; r < n_rows; r += step) {
			size_t R = n_rows - r < step ? n_rows - r : step;
			struct next next = { 0 };

			if (n_x > BLOCK_X) {
				next.w = w_next + (group < R ? r + group : 0) * row;
				next.x = (const char *)(x_next + piece / n_pieces * x_stride) +
					 piece % n_pieces * (i1 - i0) * size;
				piece += piece + 1 < M * n_pieces;
			}
			block_any(f, w + r * row, n_cols, xp + m * x_stride, x_stride,
				  lanes_of(lanes, m, M, r), i0, i1, next, M, R);
		}
	}
}

SIMD_FN void panel(const enum kern_format f, const char *w, size_t n_rows, size_t n_cols,
		   const float *xp, size_t x_stride, size_t n_x, float *y, size_t y_stride)
{
	float lanes[X_PANEL * PANEL * KERN_LANES] __attribute__((aligned(64)));
	size_t i0 = 0;

	do { /* once at least: rows of no elements give +0 */
		size_t i1 = n_cols - i0 < KERN_FLUSH ? n_cols : i0 + KERN_FLUSH;

		k_block(f, w, n_rows, n_cols, xp, x_stride, n_x, lanes, i0, i1);
		i0 = i1;
	} while (i0 < n_cols);
	store_panel(lanes, n_rows, n_x, y, y_stride);
}

SIMD_FN void matmul(const enum kern_format f, const char *w, size_t n_rows, size_t n_cols,
		    const float *xp, size_t x_stride, size_t n_x, float *y, size_t y_stride)
{
	const size_t row = n_cols * element_size(f);

	for (size_t m = 0, M; m < n_x; m += M) {
		const float *x = xp + m * x_stride;
		float *ym = y + m * y_stride;
		size_t r = 0;

		M = next_part(n_x - m, X_PANEL);
		if (M == 1) {
			for (; r + ROWS_ONE_X <= n_rows; r += ROWS_ONE_X)
				rows_one_x(f, w + r * row, n_cols, x, ym + r, ROWS_ONE_X);
			for (; r < n_rows; r++)
				rows_one_x(f, w + r * row, n_cols, x, ym + r, 1);
			continue;
		}
		for (; r < n_rows; r += PANEL)
			panel(f, w + r * row, n_rows - r < PANEL ? n_rows - r : PANEL, n_cols, x,
			      x_stride, M, ym + r, y_stride);
	}
}

void SIMD_NAME(matmul_f32)(const void *w, size_t n_rows, size_t n_cols, const float *xp,
			   size_t x_stride, size_t n_x, float *y, size_t y_stride)
{
	matmul(KERN_F32, w, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
}

void SIMD_NAME(matmul_bf16)(const void *w, size_t n_rows, size_t n_cols, const float *xp,
			    size_t x_stride, size_t n_x, float *y, size_t y_stride)
{
	matmul(KERN_BF16, w, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
}
