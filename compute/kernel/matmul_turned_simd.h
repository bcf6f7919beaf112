#pragma once
/*
 * Products with many rows of x, over the vectors of simd_<isa>.h, compiled once per instruction
 * set. In matmul_simd.h a vector is the lanes of one output, and every block of rows of x decodes
 * the weights again. Here it is one lane of SIMD_LEN outputs: the weights are turned, 16 rows at a
 * time, so that one lane's numbers of 16 rows lie together, are decoded once for all rows of x, and
 * meet single numbers of x, which was turned as well (kernel.h).
 *
 *	panel     48 rows of weights, then what is left by 16
 *	K block   1024 elements of a panel: dwords turned, lane after lane
 *	lane      its numbers in the first-level cache, used for up to 128 rows of x
 *
 * Sums of a lane wait in memory between K blocks. While one K block is computed the next is turned,
 * a line of 16 rows at a time between two blocks of products, so that what it waits for is waited
 * for beside them. The order of every sum is that of order.h.
 */
#include "compute/kernel/matmul_mx_simd.h"

enum {
	TURN = KERN_TURN, /* rows of weights turned together, rows of x likewise */
	WIDE = 3,         /* times TURN rows: a panel */
	TURNED_X = 128,   /* rows of x at once */
	TURNED_VECTORS = KERN_FLUSH / KERN_LANES,   /* numbers of a lane in a K block */
	TURNED_LINES = KERN_FLUSH / KERN_LINE_BF16, /* lines of a K block, at most */
	TURNED_LINES_MX = KERN_FLUSH / KERN_LINE_MXFP4,
	TURNS_AHEAD = 24, /* lines of 16 rows between what is turned and what is fetched */
	/* Vectors of outputs in a block; fewer rows than a panel have as many as make up 16. */
	TURN_VECTORS_MAX = TURN_VECTORS > SIMD_HALVES ? TURN_VECTORS : SIMD_HALVES,
};

/* What a product keeps on the stack. MXFP4 and fewer rows of x touch a part of it. */
struct turned_space {
	/* Dwords of two K blocks: one under way, one being turned. [lane][line][row], lanes a line
	 * more apart than they need, or all would begin at the same place of a page. */
	char dwords[2][KERN_LANES * (TURNED_LINES * WIDE + 1) * LINE_SIZE];
	float numbers[TURNED_VECTORS * WIDE * TURN];            /* of a lane: [number][row] */
	float scales[4][TURNED_LINES_MX * WIDE * TURN];         /* [quarter][line][row] */
	float sums[KERN_LANES * (TURNED_X * WIDE * TURN + 16)]; /* [lane][row of x][row] */
} __attribute__((aligned(64)));
/* Without optimisation a frame has 90 KB more. */
_Static_assert(sizeof(struct turned_space) + (90 << 10) <= KERN_STACK, "the stack of a product");

struct turned_product {
	const char *w;
	const uint8_t *scale; /* MXFP4 */
	size_t n_rows, n_cols, row_size;
	const float *xp;
	size_t x_stride, n_x;
	float *y;
	size_t y_stride;
	struct turned_space *space;
};

/* ---- turning --------------------------------------------------------------------------------- */

/* n_bytes of n_rows rows, at most a line of TURN, to TURN lines: line d gets dword d of each row.
 * What is absent counts as zero. */
SIMD_FN void turn_line(const char *p, size_t stride, size_t n_rows, size_t n_bytes, char *out,
		       size_t out_stride)
{
	char whole[TURN][LINE_SIZE];

	if (n_rows < TURN || n_bytes < LINE_SIZE) {
		memset(whole, 0, sizeof(whole));
		for (size_t r = 0; r < n_rows; r++) {
			/* Of scales; a size known beforehand is no call. */
			if (n_bytes == LINE_SIZE / 2)
				memcpy(whole[r], p + r * stride, LINE_SIZE / 2);
			else
				memcpy(whole[r], p + r * stride, n_bytes);
		}
		p = whole[0];
		stride = LINE_SIZE;
	}
	simd_turn(p, stride, out, out_stride);
}

void SIMD_NAME(turn)(float *xp, size_t x_stride, size_t len, size_t n_x)
{
	const size_t stride = x_stride * sizeof(*xp);

	for (size_t m = 0; m < n_x; m += TURN) {
		size_t n_rows = n_x - m < TURN ? n_x - m : TURN;

		for (size_t i = 0; i < len; i += KERN_LANES) {
			char *p = (char *)(xp + m * x_stride + i);
			char lines[TURN][LINE_SIZE] __attribute__((aligned(64)));

			turn_line(p, stride, n_rows, LINE_SIZE, lines[0], LINE_SIZE);
			for (size_t r = 0; r < TURN; r++)
				memcpy(p + r * stride, lines[r], LINE_SIZE);
		}
	}
}

/* A line of TURN rows of weights: K block by K block of a panel, panel by panel. */
struct turn_at {
	size_t row;   /* first of the panel */
	size_t block; /* first line of the K block */
	size_t group, line;
};

/* Lines of a K block. */
SIMD_FN size_t block_lines(const enum kern_format f)
{
	return KERN_FLUSH / kern_line(f);
}

/* Lines of the K block at line i of a row. */
SIMD_FN size_t lines_from(const enum kern_format f, const struct turned_product *p, size_t i)
{
	size_t left = (p->row_size + LINE_SIZE - 1) / LINE_SIZE - i;

	return left < block_lines(f) ? left : block_lines(f);
}

/* False: a K block ended. */
SIMD_FN bool turn_next(const enum kern_format f, const struct turned_product *p, struct turn_at *at,
		       const size_t R)
{
	if (++at->line < lines_from(f, p, at->block))
		return true;
	at->line = 0;
	if (++at->group < R)
		return true;
	at->group = 0;
	at->block += block_lines(f);
	if (at->block * LINE_SIZE >= p->row_size) {
		at->block = 0;
		at->row += R * TURN;
	}
	return false;
}

SIMD_FN const char *turn_source(const struct turned_product *p, const struct turn_at *at)
{
	return p->w + (at->row + at->group * TURN) * p->row_size +
	       (at->block + at->line) * LINE_SIZE;
}

/* Bytes from one lane to the next of a K block. */
SIMD_FN size_t lane_stride(const enum kern_format f, const size_t R)
{
	return (block_lines(f) * R + 1) * LINE_SIZE;
}

SIMD_FN void turn_weights(const enum kern_format f, const struct turned_product *p,
			  const struct turn_at *at, char *dwords, const size_t R)
{
	size_t n_rows = p->n_rows - (at->row + at->group * TURN);
	size_t n_bytes = p->row_size - (at->block + at->line) * LINE_SIZE;

	turn_line(turn_source(p, at), p->row_size, n_rows < TURN ? n_rows : TURN,
		  n_bytes < LINE_SIZE ? n_bytes : LINE_SIZE,
		  dwords + (at->line * R + at->group) * LINE_SIZE, lane_stride(f, R));
}

/* Turning beside the products: spread over the calls of one K block. */
struct turning {
	struct turn_at at, fetched;
	size_t n, n_calls, due; /* lines of the next K block; calls that share them */
};

SIMD_FN void turn_some(const enum kern_format f, const struct turned_product *p, struct turning *t,
		       char *dwords, const size_t R)
{
	for (t->due += t->n; t->due >= t->n_calls; t->due -= t->n_calls) {
		const char *next = turn_source(p, &t->fetched);

		turn_weights(f, p, &t->at, dwords, R);
		(void)turn_next(f, p, &t->at, R);
		UNROLL
		for (size_t r = 0; r < TURN; r++)
			__builtin_prefetch(next + r * p->row_size, 0, 2);
		(void)turn_next(f, p, &t->fetched, R);
	}
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* The numbers of one lane from its dwords. */
SIMD_FN void decode_lane(const enum kern_format f, const char *dwords, size_t n_lines,
			 float *numbers, const size_t R)
{
	const size_t n = f == KERN_MXFP4 ? MX_PER_LANE : per_lane(f), row = R * TURN;

	for (size_t i = 0; i < n_lines; i++, dwords += R * LINE_SIZE, numbers += n * row) {
		UNROLL
		for (size_t v = 0; v < R * SIMD_HALVES; v++) {
			const char *p = dwords + v * SIMD_LEN * 4;
			float *to = numbers + v * SIMD_LEN;

			if (f == KERN_MXFP4) {
				simd_codes q = simd_load_mx((const uint8_t *)p);

				UNROLL
				for (int k = 0; k < MX_PER_LANE; k++)
					simd_store(to + (size_t)k * row, simd_mx_value(q, k));
			} else {
				simd_words q = simd_load_bf16(p);

				simd_store(to, simd_bf16_even(q));
				simd_store(to + row, simd_bf16_odd(q));
			}
		}
	}
}

/* The scales of a K block: each line has a byte for every fourth of the lanes. */
SIMD_FN void decode_scales(const struct turned_product *p, size_t first_row, size_t block,
			   size_t n_lines, float scales[4][TURNED_LINES_MX * WIDE * TURN],
			   const size_t R)
{
	const size_t row_size = p->n_cols / KERN_MX_GROUP, at = block * 4;
	const size_t n = row_size - at < n_lines * 4 ? row_size - at : n_lines * 4;

	for (size_t r = 0; r < R * TURN; r += TURN) {
		size_t n_rows = p->n_rows - first_row - r;
		char lines[TURN][LINE_SIZE] __attribute__((aligned(64)));

		turn_line((const char *)p->scale + (first_row + r) * row_size + at, row_size,
			  n_rows < TURN ? n_rows : TURN, n, lines[0], LINE_SIZE);
		for (size_t i = 0; i < n_lines; i++) {
			UNROLL
			for (size_t h = 0; h < SIMD_HALVES; h++) {
				simd_words w = simd_load_bf16(lines[i] + h * SIMD_LEN * 4);
				size_t to = i * R * TURN + r + h * SIMD_LEN;

				UNROLL
				for (int q = 0; q < 4; q++)
					simd_store(scales[q] + to, simd_scale_of_byte(w, q));
			}
		}
	}
}

/* ---- products -------------------------------------------------------------------------------- */

/* One block of sums: a few vectors of outputs x a few rows of x, of one lane and K block. */
struct turned_block {
	const float *numbers, *scales, *x;
	float *sums;
	bool is_first;                   /* the sums begin */
	const float *next_x, *next_sums; /* fetched meanwhile */
};

/* Rows of x in a block. */
SIMD_FN size_t turned_x(const enum kern_format f)
{
	return f == KERN_MXFP4 ? TURN_X_MX : TURN_X;
}

SIMD_FN void fetch_line(const float **p)
{
	__builtin_prefetch(*p);
	*p += LINE_SIZE / sizeof(**p);
}

/* Number n of the lane: V vectors of outputs times the rows of x, added to a (is_new: put there).
 */
SIMD_FN void turned_step(const struct turned_block *b, size_t n, simd a[TURN_X][TURN_VECTORS_MAX],
			 const bool is_new, const size_t M, const size_t V, const size_t R)
{
	simd w[TURN_VECTORS_MAX];

	UNROLL
	for (size_t v = 0; v < V; v++)
		w[v] = simd_keep(simd_load(b->numbers + n * R * TURN + v * SIMD_LEN));
	UNROLL
	for (size_t m = 0; m < M; m++) {
		simd x = simd_broadcast(b->x + n * TURN + m);

		UNROLL
		for (size_t v = 0; v < V; v++)
			a[m][v] = is_new ? simd_mul(w[v], x) : simd_fma_onto(a[m][v], w[v], x);
	}
}

SIMD_FN void block_bf16(struct turned_block b, size_t n_lines, const size_t V, const size_t R)
{
	simd a[TURN_X][TURN_VECTORS_MAX];

	UNROLL
	for (size_t m = 0; m < TURN_X; m++)
		UNROLL
	for (size_t v = 0; v < V; v++)
		a[m][v] = simd_zero();
	for (size_t i = 0; i < n_lines; i++) {
		fetch_line(&b.next_x);
		turned_step(&b, 0, a, false, TURN_X, V, R);
		fetch_line(&b.next_sums);
		turned_step(&b, 1, a, false, TURN_X, V, R);
		b.numbers += 2 * R * TURN;
		b.x += 2 * TURN;
	}
	UNROLL
	for (size_t m = 0; m < TURN_X; m++)
		UNROLL
	for (size_t v = 0; v < V; v++) {
		float *s = b.sums + m * R * TURN + v * SIMD_LEN;

		simd_store(s, simd_add(b.is_first ? simd_zero() : simd_load(s), a[m][v]));
	}
}

SIMD_FN void block_mx(struct turned_block b, size_t n_lines, const size_t V, const size_t R)
{
	simd a[TURN_X_MX][TURN_VECTORS_MAX], t[TURN_X][TURN_VECTORS_MAX];

	UNROLL
	for (size_t m = 0; m < TURN_X_MX; m++)
		UNROLL
	for (size_t v = 0; v < V; v++)
		a[m][v] =
			b.is_first ? simd_zero() : simd_load(b.sums + m * R * TURN + v * SIMD_LEN);
	for (size_t i = 0; i < n_lines; i++) {
		UNROLL
		for (size_t k = 0; k < MX_PER_LANE; k++) {
			if (k % 4 == 1)
				fetch_line(&b.next_x);
			if (k % 4 == 3)
				fetch_line(&b.next_sums);
			turned_step(&b, k, t, k == 0, TURN_X_MX, V, R);
		}
		UNROLL
		for (size_t v = 0; v < V; v++) {
			simd scale = simd_load(b.scales + v * SIMD_LEN);

			UNROLL
			for (size_t m = 0; m < TURN_X_MX; m++)
				a[m][v] = simd_fma_onto(a[m][v], t[m][v], scale);
		}
		b.numbers += MX_PER_LANE * R * TURN;
		b.x += MX_PER_LANE * TURN;
		b.scales += R * TURN;
	}
	UNROLL
	for (size_t m = 0; m < TURN_X_MX; m++)
		UNROLL
	for (size_t v = 0; v < V; v++)
		simd_store(b.sums + m * R * TURN + v * SIMD_LEN, a[m][v]);
}

/* Vectors of outputs in a block of a panel of R times TURN rows. */
SIMD_FN size_t turned_vectors(const size_t R)
{
	return R * SIMD_HALVES % TURN_VECTORS == 0 ? TURN_VECTORS : SIMD_HALVES;
}

/* Floats from one lane's sums to the next. */
SIMD_FN size_t sums_stride(size_t n_x, const size_t R)
{
	return kern_turned_rows(n_x) * R * TURN + 16;
}

/* x of lane l for the rows from m on, at line i. */
SIMD_FN const float *x_of_lane(const enum kern_format f, const struct turned_product *p, size_t l,
			       size_t m, size_t i)
{
	return p->xp + (m / TURN * TURN + l) * p->x_stride + i * kern_line(f) + m % TURN;
}

/* One lane of a K block of n_lines lines with all rows of x. */
SIMD_FN void turned_lane(const enum kern_format f, const struct turned_product *p, size_t l,
			 size_t block, size_t n_lines, struct turning *t, char *next_dwords,
			 const size_t R)
{
	const size_t M = turned_x(f), V = turned_vectors(R), stride = sums_stride(p->n_x, R);
	const size_t n_fetched = n_lines * kern_line(f) / TURN * M; /* floats of x by one block */
	struct turned_space *s = p->space;
	float *sums = s->sums + l * stride;

	for (size_t m = 0; m < p->n_x; m += M) {
		/* Of the next rows of x, at last of the next lane's. */
		bool is_last = m / TURN * TURN + TURN >= p->n_x;
		struct turned_block b = {
			.x = x_of_lane(f, p, l, m, block),
			.is_first = block == 0,
			.next_x = (is_last ? x_of_lane(f, p, (l + 1) % KERN_LANES, 0, block)
					   : x_of_lane(f, p, l, m / TURN * TURN + TURN, block)) +
				  m % TURN / M * n_fetched,
			.next_sums = m + M < p->n_x ? sums + (m + M) * R * TURN
						    : s->sums + (l + 1) % KERN_LANES * stride,
		};

		turn_some(f, p, t, next_dwords, R);
		for (size_t v = 0; v < R * SIMD_HALVES; v += V) {
			b.numbers = s->numbers + v * SIMD_LEN;
			b.scales = s->scales[l / 4] + v * SIMD_LEN;
			b.sums = sums + m * R * TURN + v * SIMD_LEN;
			if (f == KERN_MXFP4)
				block_mx(b, n_lines, V, R);
			else
				block_bf16(b, n_lines, V, R);
		}
	}
}

/* The trees of a panel's outputs, a vector of them at a time. */
SIMD_FN void store_turned(const struct turned_product *p, size_t row, const size_t R)
{
	const size_t stride = sums_stride(p->n_x, R);

	for (size_t m = 0; m < p->n_x; m++) {
		for (size_t g = 0; g < R && row + g * TURN < p->n_rows; g++) {
			size_t n = p->n_rows - row - g * TURN;
			float out[TURN];

			UNROLL
			for (size_t h = 0; h < SIMD_HALVES; h++) {
				const float *s = p->space->sums + (m * R + g) * TURN + h * SIMD_LEN;
				simd v[KERN_LANES];

				UNROLL
				for (size_t l = 0; l < KERN_LANES; l++)
					v[l] = simd_load(s + l * stride);
				UNROLL
				for (size_t d = KERN_LANES / 2; d > 0; d /= 2)
					UNROLL
				for (size_t l = 0; l < d; l++)
					v[l] = simd_add(v[l], v[l + d]);
				simd_store(out + h * SIMD_LEN, v[0]);
			}
			memcpy(p->y + m * p->y_stride + row + g * TURN, out,
			       (n < TURN ? n : TURN) * sizeof(*out));
		}
	}
}

/* All rows of p in panels of R times TURN. */
SIMD_FN void turned_panels(const enum kern_format f, const struct turned_product *p, const size_t R)
{
	struct turned_space *s = p->space;
	struct turning t = { 0 };
	unsigned current = 0;

	do {
		turn_weights(f, p, &t.at, s->dwords[0], R);
	} while (turn_next(f, p, &t.at, R));
	t.fetched = t.at;
	for (size_t i = 0; i < TURNS_AHEAD; i++)
		(void)turn_next(f, p, &t.fetched, R);
	for (size_t row = 0; row < p->n_rows; row += R * TURN) {
		for (size_t block = 0; block * LINE_SIZE < p->row_size; block += block_lines(f)) {
			size_t n_lines = lines_from(f, p, block);

			t.n = t.at.row < p->n_rows ? R * lines_from(f, p, t.at.block) : 0;
			t.n_calls = KERN_LANES * ((p->n_x + turned_x(f) - 1) / turned_x(f));
			t.due = 0;
			if (f == KERN_MXFP4)
				decode_scales(p, row, block, n_lines, s->scales, R);
			for (size_t l = 0; l < KERN_LANES; l++) {
				decode_lane(f, s->dwords[current] + l * lane_stride(f, R), n_lines,
					    s->numbers, R);
				turned_lane(f, p, l, block, n_lines, &t, s->dwords[!current], R);
			}
			current = !current;
		}
		store_turned(p, row, R);
	}
}

/* The rows from r on, n of them. */
SIMD_FN struct turned_product turned_rows(const struct turned_product *p, size_t r, size_t n)
{
	struct turned_product ret = *p;

	ret.w += r * p->row_size;
	if (p->scale)
		ret.scale += r * (p->n_cols / KERN_MX_GROUP);
	ret.y += r;
	ret.n_rows = n;
	return ret;
}

/* p: all but its rows of x; n_x of them from xp on. */
SIMD_FN void matmul_turned(const enum kern_format f, struct turned_product p, const float *xp,
			   size_t n_x)
{
	const size_t n_wide = p.n_rows / (WIDE * TURN) * (WIDE * TURN);
	float *y = p.y;

	if (p.n_cols == 0) { /* sums of nothing */
		for (size_t m = 0; m < n_x; m++)
			memset(y + m * p.y_stride, 0, p.n_rows * sizeof(*y));
		return;
	}
	for (size_t m = 0; m < n_x; m += p.n_x) {
		struct turned_product wide, rest;

		p.n_x = kern_turned_rows(next_part(n_x - m, TURNED_X));
		if (p.n_x > n_x - m)
			p.n_x = n_x - m;
		p.xp = xp + m * p.x_stride;
		p.y = y + m * p.y_stride;
		wide = turned_rows(&p, 0, n_wide);
		rest = turned_rows(&p, n_wide, p.n_rows - n_wide);
		if (wide.n_rows > 0)
			turned_panels(f, &wide, WIDE);
		if (rest.n_rows > 0)
			turned_panels(f, &rest, 1);
	}
}

void SIMD_NAME(matmul_bf16_turned)(const void *w, size_t n_rows, size_t n_cols, const float *xp,
				   size_t x_stride, size_t n_x, float *y, size_t y_stride)
{
	struct turned_space space;
	struct turned_product p = {
		.w = w,
		.n_rows = n_rows,
		.n_cols = n_cols,
		.row_size = n_cols * sizeof(uint16_t),
		.x_stride = x_stride,
		.y = y,
		.y_stride = y_stride,
		.space = &space,
	};

	matmul_turned(KERN_BF16, p, xp, n_x);
}

void SIMD_NAME(matmul_mxfp4_turned)(const uint8_t *packed, const uint8_t *scale, size_t n_rows,
				    size_t n_cols, const float *xp, size_t x_stride, size_t n_x,
				    float *y, size_t y_stride)
{
	struct turned_space space;
	struct turned_product p = {
		.w = (const char *)packed,
		.scale = scale,
		.n_rows = n_rows,
		.n_cols = n_cols,
		.row_size = n_cols / 2,
		.x_stride = x_stride,
		.y = y,
		.y_stride = y_stride,
		.space = &space,
	};

	matmul_turned(KERN_MXFP4, p, xp, n_x);
}
