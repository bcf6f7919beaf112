#pragma once
/*
 * Everything that is not a matrix product, compiled once per instruction set. Sums (dot, column
 * sums, the recurrence) use the vectors of simd_<isa>.h; elementwise functions are the scalar ones
 * of exact_math.h in loops of fixed length over a local block, which the compiler turns into
 * vectors: the operations of an element stay what they are, so the bits do too.
 */
#include "compute/kernel/exact_math.h"
#include "compute/kernel/variants.h"

enum {
	BLOCK = 64, /* elements of a local block */
	COLS = 4,   /* vectors of columns summed together */
	COLS_LEN = COLS * SIMD_LEN,
};

/* Partial blocks are completed with +0: whatever comes out there is dropped. */
SIMD_FN void block_load(float *block, const float *x, size_t n)
{
	if (n == BLOCK) {
		memcpy(block, x, BLOCK * sizeof(*x));
	} else {
		memset(block, 0, BLOCK * sizeof(*x));
		memcpy(block, x, n * sizeof(*x));
	}
}

SIMD_FN void block_store(float *y, const float *block, size_t n)
{
	if (n == BLOCK)
		memcpy(y, block, BLOCK * sizeof(*y));
	else
		memcpy(y, block, n * sizeof(*y));
}

/* y[i] = expr of a (and b), element by element. */
#define ELEMENTWISE(n_, y_, loads, expr)                     \
	for (size_t i = 0; i < (n_); i += BLOCK) {           \
		size_t m = (n_)-i < BLOCK ? (n_)-i : BLOCK;  \
		float a[BLOCK] __attribute__((aligned(64))); \
		float b[BLOCK] __attribute__((aligned(64))); \
                                                             \
		loads;                                       \
		for (size_t j = 0; j < BLOCK; j++)           \
			a[j] = (expr);                       \
		block_store((y_) + i, a, m);                 \
	}

/* ---- sums ---- */

/* dot(x, w), or with ones when w is NULL; inline so that the choice is made once. */
SIMD_FN float dot(const float *x, const float *w, size_t n)
{
	simd total[SIMD_HALVES], a[SIMD_HALVES];

	UNROLL
	for (size_t h = 0; h < SIMD_HALVES; h++)
		total[h] = simd_zero();
	for (size_t b = 0; b < n; b += KERN_FLUSH) {
		size_t end = n - b < KERN_FLUSH ? n : b + KERN_FLUSH, i = b;

		UNROLL
		for (size_t h = 0; h < SIMD_HALVES; h++)
			a[h] = simd_zero();
		for (; i + KERN_LANES <= end; i += KERN_LANES)
			UNROLL
		for (size_t h = 0; h < SIMD_HALVES; h++) {
			size_t at = i + h * SIMD_LEN;
			simd v = w ? simd_load(w + at) : simd_set1(1.0f);

			a[h] = simd_fma(simd_load(x + at), v, a[h]);
		}
		if (i < end) {
			float xt[KERN_LANES] = { 0 }, wt[KERN_LANES] = { 0 };

			for (size_t j = i; j < end; j++) {
				xt[j - i] = x[j];
				wt[j - i] = w ? w[j] : 1.0f;
			}
			UNROLL
			for (size_t h = 0; h < SIMD_HALVES; h++)
				a[h] = simd_fma(simd_load(xt + h * SIMD_LEN),
						simd_load(wt + h * SIMD_LEN), a[h]);
		}
		UNROLL
		for (size_t h = 0; h < SIMD_HALVES; h++)
			total[h] = simd_add(total[h], a[h]);
	}
	return simd_tree(total);
}

float SIMD_NAME(dot)(const float *a, const float *b, size_t n)
{
	return dot(a, b, n);
}

SIMD_FN simd load_cols(const void *w, size_t at, const bool is_bf16)
{
	return is_bf16 ? simd_widen_bf16((const uint16_t *)w + at)
		       : simd_load((const float *)w + at);
}

/* n_vec vectors of columns. */
SIMD_FN void colsum_block(const void *w, size_t stride, size_t n_rows, const float *a, float *y,
			  const bool is_bf16, const size_t n_vec)
{
	simd total[COLS], acc[COLS];

	UNROLL
	for (size_t v = 0; v < n_vec; v++)
		total[v] = simd_zero();
	for (size_t b = 0; b < n_rows; b += KERN_FLUSH) {
		size_t end = n_rows - b < KERN_FLUSH ? n_rows : b + KERN_FLUSH;

		UNROLL
		for (size_t v = 0; v < n_vec; v++)
			acc[v] = simd_zero();
		for (size_t i = b; i < end; i++) {
			simd f = simd_set1(a[i]);

			UNROLL
			for (size_t v = 0; v < n_vec; v++)
				acc[v] = simd_fma(load_cols(w, i * stride + v * SIMD_LEN, is_bf16),
						  f, acc[v]);
		}
		UNROLL
		for (size_t v = 0; v < n_vec; v++)
			total[v] = simd_add(total[v], acc[v]);
	}
	UNROLL
	for (size_t v = 0; v < n_vec; v++)
		simd_store(y + v * SIMD_LEN, total[v]);
}

/* The last columns, fewer than a vector. */
SIMD_FN float colsum_one(const void *w, size_t stride, size_t n_rows, const float *a,
			 const bool is_bf16)
{
	float total = 0.0f, acc = 0.0f;

	for (size_t i = 0; i < n_rows; i++) {
		float v;

		if (is_bf16) {
			uint16_t u;

			memcpy(&u, (const uint16_t *)w + i * stride, sizeof(u));
			v = kern_float_of_bits((uint32_t)u << 16);
		} else {
			v = ((const float *)w)[i * stride];
		}
		acc = __builtin_fmaf(v, a[i], acc);
		if ((i + 1) % KERN_FLUSH == 0) {
			total = total + acc;
			acc = 0.0f;
		}
	}
	return total + acc;
}

SIMD_FN void colsum(const void *w, size_t stride, size_t n_rows, size_t n_cols, const float *a,
		    float *y, const bool is_bf16)
{
	const size_t size = is_bf16 ? 2 : 4;
	const char *p = w;
	size_t j = 0;

	for (; j + COLS_LEN <= n_cols; j += COLS_LEN)
		colsum_block(p + j * size, stride, n_rows, a, y + j, is_bf16, COLS);
	for (; j + SIMD_LEN <= n_cols; j += SIMD_LEN)
		colsum_block(p + j * size, stride, n_rows, a, y + j, is_bf16, 1);
	for (; j < n_cols; j++)
		y[j] = colsum_one(p + j * size, stride, n_rows, a, is_bf16);
}

void SIMD_NAME(colsum_bf16)(const void *w, size_t n_rows, size_t n_cols, const float *a, float *y)
{
	colsum(w, n_cols, n_rows, n_cols, a, y, true);
}

void SIMD_NAME(colsum_f32)(const float *w, size_t w_stride, size_t n_rows, size_t n_cols,
			   const float *a, float *y)
{
	colsum(w, w_stride, n_rows, n_cols, a, y, false);
}

/* ---- elementwise ---- */

SIMD_FN void pack(const enum kern_format f, const float *x, size_t n_cols, float *xp)
{
	const size_t line = kern_line(f), per = line / KERN_LANES;

	for (size_t i = 0; i < n_cols; i += line) {
		float t[KERN_LINE_MXFP4] = { 0 };
		const float *in = x + i;

		if (n_cols - i < line) {
			memcpy(t, in, (n_cols - i) * sizeof(*t));
			in = t;
		}
		for (size_t k = 0; k < per; k++)
			for (size_t l = 0; l < KERN_LANES; l++)
				xp[i + k * KERN_LANES + l] = in[l * per + k];
	}
}

void SIMD_NAME(pack_f32)(const float *x, size_t n_cols, float *xp)
{
	pack(KERN_F32, x, n_cols, xp);
}

void SIMD_NAME(pack_bf16)(const float *x, size_t n_cols, float *xp)
{
	pack(KERN_BF16, x, n_cols, xp);
}

void SIMD_NAME(pack_mxfp4)(const float *x, size_t n_cols, float *xp)
{
	pack(KERN_MXFP4, x, n_cols, xp);
}

void SIMD_NAME(rmsnorm)(const float *x, const float *w, size_t n, float eps, float *y)
{
	float r = kern_rsqrtf(dot(x, x, n) / (float)n + eps);

	ELEMENTWISE(n, y, (block_load(a, x + i, m), block_load(b, w + i, m)), a[j] * r * b[j])
}

void SIMD_NAME(l2norm)(const float *x, size_t n, float eps, float scale, float *y)
{
	float r = kern_rsqrtf(dot(x, x, n) + eps);

	ELEMENTWISE(n, y, (block_load(a, x + i, m), (void)b), a[j] * r * scale)
}

void SIMD_NAME(situ)(const float *g, const float *u, size_t n, float beta, float linear, float *y)
{
	ELEMENTWISE(n, y, (block_load(a, g + i, m), block_load(b, u + i, m)),
		    kern_situf(a[j], b[j], beta, linear))
}

void SIMD_NAME(exp)(const float *x, size_t n, float *y)
{
	ELEMENTWISE(n, y, (block_load(a, x + i, m), (void)b), kern_expf(a[j]))
}

void SIMD_NAME(sigmoid)(const float *x, size_t n, float *y)
{
	ELEMENTWISE(n, y, (block_load(a, x + i, m), (void)b), kern_sigmoidf(a[j]))
}

void SIMD_NAME(tanh)(const float *x, size_t n, float *y)
{
	ELEMENTWISE(n, y, (block_load(a, x + i, m), (void)b), kern_tanhf(a[j]))
}

void SIMD_NAME(silu)(const float *x, size_t n, float *y)
{
	ELEMENTWISE(n, y, (block_load(a, x + i, m), (void)b), kern_siluf(a[j]))
}

void SIMD_NAME(gate)(const float *x, const float *gate, size_t n, float *y)
{
	ELEMENTWISE(n, y, (block_load(a, x + i, m), block_load(b, gate + i, m)),
		    a[j] * kern_sigmoidf(b[j]))
}

void SIMD_NAME(add)(const float *x, size_t n, float *y)
{
	ELEMENTWISE(n, y, (block_load(a, x + i, m), block_load(b, y + i, m)), b[j] + a[j])
}

void SIMD_NAME(axpy)(float factor, const float *x, size_t n, float *y)
{
	ELEMENTWISE(n, y, (block_load(a, x + i, m), block_load(b, y + i, m)),
		    __builtin_fmaf(factor, a[j], b[j]))
}

void SIMD_NAME(kda_decay)(const float *z, const float *dt_bias, float exp_a, float bound, size_t n,
			  float *alpha)
{
	ELEMENTWISE(n, alpha, (block_load(a, z + i, m), block_load(b, dt_bias + i, m)),
		    kern_expf(bound * kern_sigmoidf(exp_a * (a[j] + b[j]))))
}

/* ---- softmax and mix ---- */

float SIMD_NAME(softmax)(float *s, size_t n)
{
	float max = n ? s[0] : 0.0f;
	size_t from = 0;

	if (n >= SIMD_LEN) {
		simd v = simd_load(s);
		float lanes[SIMD_LEN];

		for (from = SIMD_LEN; from + SIMD_LEN <= n; from += SIMD_LEN)
			v = simd_max(simd_load(s + from), v);
		simd_store(lanes, v);
		for (size_t l = 0; l < SIMD_LEN; l++)
			max = lanes[l] > max ? lanes[l] : max;
	}
	for (size_t i = from; i < n; i++)
		max = s[i] > max ? s[i] : max;
	ELEMENTWISE(n, s, (block_load(a, s + i, m), (void)b), kern_expf(a[j] - max))
	return 1.0f / dot(s, NULL, n);
}

void SIMD_NAME(mix)(const float *const *sources, size_t n_sources, size_t n, const float *c,
		    float eps, float *out)
{
	float p[KERN_MIX_SOURCES_MAX];
	float inverse;

	for (size_t s = 0; s < n_sources; s++) {
		const float *v = sources[s];
		float r = kern_rsqrtf(dot(v, v, n) / (float)n + eps);

		p[s] = dot(v, c, n) * r;
	}
	inverse = SIMD_NAME(softmax)(p, n_sources);
	for (size_t s = 0; s < n_sources; s++)
		p[s] = p[s] * inverse;
	for (size_t i = 0; i < n; i += BLOCK) {
		size_t m = n - i < BLOCK ? n - i : BLOCK;
		float acc[BLOCK] __attribute__((aligned(64))) = { 0 };
		float v[BLOCK] __attribute__((aligned(64)));

		for (size_t s = 0; s < n_sources; s++) {
			block_load(v, sources[s] + i, m);
			for (size_t j = 0; j < BLOCK; j++)
				acc[j] = __builtin_fmaf(p[s], v[j], acc[j]);
		}
		block_store(out + i, acc, m);
	}
}

/* ---- KDA ---- */

/* Channels [0, m) of a block of at most BLOCK. */
SIMD_FN void conv_block(const float *x, const float *w, size_t n_taps, float *history,
			size_t stride, size_t m, float *y)
{
	float acc[BLOCK] __attribute__((aligned(64))), in[BLOCK] __attribute__((aligned(64)));
	float tap[BLOCK] __attribute__((aligned(64))) = { 0 };

	for (size_t t = 0; t < n_taps; t++) {
		block_load(in, t + 1 < n_taps ? history + t * stride : x, m);
		for (size_t j = 0; j < m; j++)
			tap[j] = w[j * n_taps + t];
		if (t == 0) {
			for (size_t j = 0; j < BLOCK; j++)
				acc[j] = tap[j] * in[j];
			continue;
		}
		for (size_t j = 0; j < BLOCK; j++)
			acc[j] = __builtin_fmaf(tap[j], in[j], acc[j]);
		block_store(history + (t - 1) * stride, in, m);
	}
	for (size_t j = 0; j < BLOCK; j++)
		acc[j] = kern_siluf(acc[j]);
	block_store(y, acc, m);
}

void SIMD_NAME(conv)(const float *x, const float *w, size_t n_taps, float *history, size_t stride,
		     size_t n, float *y)
{
	for (size_t i = 0; i < n; i += BLOCK)
		conv_block(x + i, w + i * n_taps, n_taps, history + i, stride,
			   n - i < BLOCK ? n - i : BLOCK, y + i);
}

/*
 * n_vec vectors of columns of the state. The decay and the sum u go through the rows together, then
 * the update and the sum o: the state passes twice, and a block of columns stays in the first-level
 * cache between the two.
 */
SIMD_FN void kda_block(float *state, size_t dk, size_t dv, const float *q, const float *k,
		       const float *v, const float *alpha, float beta, float *o, const size_t n_vec)
{
	simd total[COLS], acc[COLS], write[COLS];

	UNROLL
	for (size_t c = 0; c < n_vec; c++)
		total[c] = acc[c] = simd_zero();
	for (size_t d = 0; d < dk; d++) {
		simd decay = simd_set1(alpha[d]), key = simd_set1(k[d]);

		UNROLL
		for (size_t c = 0; c < n_vec; c++) {
			float *p = state + d * dv + c * SIMD_LEN;
			simd s = simd_mul(decay, simd_load(p));

			simd_store(p, s);
			acc[c] = simd_fma(s, key, acc[c]);
		}
		if ((d + 1) % KERN_FLUSH == 0)
			UNROLL
		for (size_t c = 0; c < n_vec; c++) {
			total[c] = simd_add(total[c], acc[c]);
			acc[c] = simd_zero();
		}
	}
	UNROLL
	for (size_t c = 0; c < n_vec; c++) {
		simd u = simd_add(total[c], acc[c]);

		write[c] = simd_mul(simd_set1(beta), simd_sub(simd_load(v + c * SIMD_LEN), u));
		total[c] = acc[c] = simd_zero();
	}
	for (size_t d = 0; d < dk; d++) {
		simd key = simd_set1(k[d]), query = simd_set1(q[d]);

		UNROLL
		for (size_t c = 0; c < n_vec; c++) {
			float *p = state + d * dv + c * SIMD_LEN;
			simd s = simd_fma(key, write[c], simd_load(p));

			simd_store(p, s);
			acc[c] = simd_fma(s, query, acc[c]);
		}
		if ((d + 1) % KERN_FLUSH == 0)
			UNROLL
		for (size_t c = 0; c < n_vec; c++) {
			total[c] = simd_add(total[c], acc[c]);
			acc[c] = simd_zero();
		}
	}
	UNROLL
	for (size_t c = 0; c < n_vec; c++)
		simd_store(o + c * SIMD_LEN, simd_add(total[c], acc[c]));
}

/* One column: what is left over of dv. */
SIMD_FN float kda_column(float *state, size_t dk, size_t dv, const float *q, const float *k,
			 float v, const float *alpha, float beta)
{
	float write;

	for (size_t d = 0; d < dk; d++)
		state[d * dv] = alpha[d] * state[d * dv];
	write = beta * (v - colsum_one(state, dv, dk, k, false));
	for (size_t d = 0; d < dk; d++)
		state[d * dv] = __builtin_fmaf(k[d], write, state[d * dv]);
	return colsum_one(state, dv, dk, q, false);
}

void SIMD_NAME(kda_step)(float *state, size_t dk, size_t dv, const float *q, const float *k,
			 const float *v, const float *alpha, float beta, float *scratch, float *o)
{
	size_t j = 0;

	(void)scratch;
	for (; j + COLS_LEN <= dv; j += COLS_LEN)
		kda_block(state + j, dk, dv, q, k, v + j, alpha, beta, o + j, COLS);
	for (; j + SIMD_LEN <= dv; j += SIMD_LEN)
		kda_block(state + j, dk, dv, q, k, v + j, alpha, beta, o + j, 1);
	for (; j < dv; j++)
		o[j] = kda_column(state + j, dk, dv, q, k, v[j], alpha, beta);
}
