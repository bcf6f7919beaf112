#pragma once
/*
 * What matmul_simd.h and layer_ops_simd.h need from AVX-512 (F, BW, DQ, VL): one vector holds all
 * 16 lanes of the order. simd_avx2.h offers the same names with 8. Included by the _avx512.c files
 * alone.
 */
#include <immintrin.h>

#include "compute/kernel/order.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define SIMD_FN       static inline __attribute__((always_inline))
#define SIMD_NAME(op) kern_##op##_avx512

#define FOR_CONSTANT_M_WIDE(X) CASE_M(5, X) CASE_M(6, X) CASE_M(7, X) CASE_M(8, X)

typedef __m512 simd;
typedef __m512i simd_words;
typedef __m512i simd_codes; /* 4 bytes a lane: 8 codes of MXFP4 */

enum {
	SIMD_LEN = 16,
	SIMD_HALVES = KERN_LANES / SIMD_LEN, /* vectors that make up the lanes */
	ROWS_ONE_X = 12,                     /* weight rows read together for one row of x */
	/* Outputs x rows of x held in registers: BLOCK_ROWS x up to BLOCK_X_FULL, then
	 * BLOCK_ROWS_WIDE x up to BLOCK_X. Decoding a vector of bf16 costs the ports of the FMA
	 * units as much as one product: the more rows of x share it, the better. Three rows of
	 * weights share a load of x. */
	ONE_X_AHEAD = 1536, /* bytes that each of them is fetched ahead; 0: left to the hardware */
	MX_ROWS_ONE_X = 4,  /* the same of MXFP4 */
	BLOCK_ROWS = 4,
	BLOCK_X_FULL = 4,
	BLOCK_ROWS_WIDE = 3,
	BLOCK_X = 8,
	/* Rows of x up to which lines of four, of two rows of MXFP4 are worked on together. */
	MX_X_BY_4 = 2,
	MX_X_BY_2 = 4,
	MX_X_WHOLE = 4, /* up to which K is not cut into blocks */
	/* Turned products: vectors of outputs x rows of x held in registers. */
	TURN_VECTORS = 3,
	TURN_X = 8,
	TURN_X_MX = 4,
};

SIMD_FN simd simd_zero(void)
{
	return _mm512_setzero_ps();
}

SIMD_FN simd simd_set1(float f)
{
	return _mm512_set1_ps(f);
}

SIMD_FN simd simd_load(const float *p)
{
	return _mm512_loadu_ps(p);
}

SIMD_FN void simd_store(float *p, simd v)
{
	_mm512_storeu_ps(p, v);
}

/* v in a register from here on: compilers would rather repeat the load in each use, and loads are
 * what a block runs out of. */
SIMD_FN simd simd_keep(simd v)
{
	__asm__("" : "+v"(v));
	return v;
}

/* A load that stays where it stands among others of its kind: compilers move loads forward, and
 * with 28 registers in use have none for what they then hold. */
SIMD_FN simd simd_load_in_turn(const float *p)
{
	simd v;

	__asm__ volatile("vmovups %1, %0" : "=v"(v) : "m"(*(const simd *)(const void *)p));
	return v;
}

/* *p in every place. It stays where it stands, as above. */
SIMD_FN simd simd_broadcast(const float *p)
{
	simd v;

	__asm__ volatile("vbroadcastss %1, %0" : "=v"(v) : "m"(*p));
	return v;
}

SIMD_FN simd simd_fma(simd a, simd b, simd c)
{
	return _mm512_fmadd_ps(a, b, c);
}

/* a + b * c in the register of a. */
SIMD_FN simd simd_fma_onto(simd a, simd b, simd c)
{
	__asm__("vfmadd231ps %2, %1, %0" : "+v"(a) : "v"(b), "v"(c));
	return a;
}

SIMD_FN simd simd_add(simd a, simd b)
{
	return _mm512_add_ps(a, b);
}

SIMD_FN simd simd_sub(simd a, simd b)
{
	return _mm512_sub_ps(a, b);
}

SIMD_FN simd simd_mul(simd a, simd b)
{
	return _mm512_mul_ps(a, b);
}

/* a > b ? a : b by lane, b when unordered. */
SIMD_FN simd simd_max(simd a, simd b)
{
	return _mm512_max_ps(a, b);
}

SIMD_FN float simd_tree(const simd v[SIMD_HALVES])
{
	__m256 b = _mm256_add_ps(_mm512_castps512_ps256(v[0]), _mm512_extractf32x8_ps(v[0], 1));
	__m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

	c = _mm_add_ps(c, _mm_movehl_ps(c, c));
	return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/*
 * The trees of SIMD_TREES outputs together, whose lanes stand stride floats apart: each step leaves
 * half as many vectors, so that an output costs 3 operations rather than 8.
 */
#define SIMD_TREES 16

SIMD_FN void simd_trees(const float *t, size_t stride, float *y)
{
	simd p[4], q[2];

	UNROLL
	for (size_t i = 0; i < 4; i++) { /* outputs i, i + 4, i + 8, i + 12: four lanes of each */
		simd a = simd_load(t + i * stride), b = simd_load(t + (i + 4) * stride);
		simd c = simd_load(t + (i + 8) * stride), d = simd_load(t + (i + 12) * stride);
		simd ab = simd_add(_mm512_shuffle_f32x4(a, b, 0x44),
				   _mm512_shuffle_f32x4(a, b, 0xee));
		simd cd = simd_add(_mm512_shuffle_f32x4(c, d, 0x44),
				   _mm512_shuffle_f32x4(c, d, 0xee));

		p[i] = simd_add(_mm512_shuffle_f32x4(ab, cd, 0x88),
				_mm512_shuffle_f32x4(ab, cd, 0xdd));
	}
	UNROLL
	for (size_t i = 0; i < 2; i++) {
		__m512d a = _mm512_castps_pd(p[2 * i]), b = _mm512_castps_pd(p[2 * i + 1]);

		q[i] = simd_add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
				_mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
	}
	simd_store(y, simd_add(_mm512_shuffle_ps(q[0], q[1], 0x88),
			       _mm512_shuffle_ps(q[0], q[1], 0xdd)));
}

/* bf16: 2 * SIMD_LEN elements; the even ones are the low words of the lanes. */
SIMD_FN simd_words simd_load_bf16(const void *p)
{
	return _mm512_loadu_si512(p);
}

SIMD_FN simd_words simd_keep_words(simd_words q)
{
	__asm__("" : "+v"(q));
	return q;
}

SIMD_FN simd simd_bf16_even(simd_words q)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(q, 16));
}

SIMD_FN simd simd_bf16_odd(simd_words q)
{
	return _mm512_castsi512_ps(_mm512_and_si512(q, _mm512_set1_epi32((int)0xffff0000u)));
}

/* SIMD_LEN elements in order as f32. */
SIMD_FN simd simd_widen_bf16(const void *p)
{
	__m256i u = _mm256_loadu_si256(p);

	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(u), 16));
}

/* MXFP4: the codes of SIMD_LEN lanes; part: the first n bytes, the rest code 0. */
SIMD_FN simd_codes simd_load_mx(const uint8_t *p)
{
	return _mm512_loadu_si512(p);
}

SIMD_FN simd_codes simd_load_mx_part(const uint8_t *p, size_t n)
{
	return _mm512_maskz_loadu_epi8(n < 64 ? (1ull << n) - 1 : ~0ull, p);
}

/* Number k of each lane: the permute looks at the low 4 bits alone, so a shift is enough. */
SIMD_FN simd simd_mx_value(simd_codes q, const int k)
{
	const simd table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
					  -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);

	return _mm512_permutexvar_ps(k ? _mm512_srli_epi32(q, (unsigned)(4 * k)) : q, table);
}

/* The scales of the lanes of half h from the n bytes of a line (4, fewer at the end: then byte 0).
 */
SIMD_FN simd simd_mx_scale(const uint8_t *s, size_t h, size_t n)
{
	const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
	uint32_t bytes = 0;
	__m128i e;

	(void)h;
	memcpy(&bytes, s, n);
	e = _mm_slli_epi32(_mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)bytes)), 23);
	e = _mm_max_epu32(e, _mm_set1_epi32(0x00400000));
	return _mm512_castsi512_ps(_mm512_permutexvar_epi32(spread, _mm512_castsi128_si512(e)));
}

/*
 * Codes behind which SIMD_MX_PAST bytes may be read: numbers k and k + 1 (k even) of the lanes are
 * then in a load from byte k / 2 on, which crosses a cache line, but takes nothing from the ports
 * of the FMA units, which is where decoding is short.
 */
enum { SIMD_MX_PAST = 3, SIMD_NEAR = 2 };

SIMD_FN simd_codes simd_load_near(const uint8_t *p, const int k)
{
	simd_codes q = _mm512_loadu_si512(p + k / SIMD_NEAR);

	__asm__("" : "+v"(q)); /* one load for both */
	return q;
}

SIMD_FN simd simd_near_value(simd_codes q, const int k)
{
	return simd_mx_value(q, k % SIMD_NEAR);
}

/* The scales of four lines. */
typedef __m512i simd_scales;

/* Of bytes, one a lane. */
SIMD_FN simd_scales simd_scales_of(__m512i e)
{
	return _mm512_max_epu32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(0x00400000));
}

SIMD_FN simd_scales simd_load_scales(const uint8_t *s)
{
	return simd_scales_of(
		_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)s)));
}

/* Of line j, spread over the lanes. */
SIMD_FN simd simd_scale_of(simd_scales e, size_t j, size_t h)
{
	static const int32_t spread[4][16] __attribute__((aligned(64))) = {
		{ 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3 },
		{ 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7 },
		{ 8, 8, 8, 8, 9, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 11 },
		{ 12, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 14, 15, 15, 15, 15 },
	};

	(void)h;
	return _mm512_castsi512_ps(_mm512_permutexvar_epi32(_mm512_load_si512(spread[j]), e));
}

/* Byte k of each lane as a scale. */
SIMD_FN simd simd_scale_of_byte(simd_words w, const int k)
{
	__m512i e = _mm512_srli_epi32(w, (unsigned)(8 * k));

	return _mm512_castsi512_ps(simd_scales_of(_mm512_and_si512(e, _mm512_set1_epi32(255))));
}

/* Half of simd_turn: 8 dwords of 16 rows. Shuffles have one port, shifts the other one and blends
 * and inserts both: so the first of three steps is made of those. */
SIMD_FN void simd_turn_half(const char *p, size_t stride, char *out, size_t out_stride)
{
	const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
	const __m512i high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
	__m512i a[8], b[8];

	/* Row i, then row 8 + i. */
	UNROLL
	for (size_t i = 0; i < 8; i++) {
		const __m256i *row = (const __m256i *)(const void *)(p + i * stride);
		const __m256i *more = (const __m256i *)(const void *)(p + (8 + i) * stride);

		a[i] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(row)),
					  _mm256_loadu_si256(more), 1);
	}
	/* Dwords 0, 2, 4, 6 of two rows, dwords 1, 3, 5, 7. */
	UNROLL
	for (size_t i = 0; i < 8; i += 2) {
		b[i] = _mm512_mask_blend_epi32(0xaaaa, a[i], _mm512_slli_epi64(a[i + 1], 32));
		b[i + 1] = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(a[i], 32), a[i + 1]);
	}
	/* a[i + c]: dwords c and c + 4 of four rows. */
	UNROLL
	for (size_t i = 0; i < 8; i += 4) {
		a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
		a[i + 1] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
		a[i + 2] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
		a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
	}
	UNROLL
	for (size_t c = 0; c < 4; c++) {
		_mm512_storeu_si512(out + c * out_stride,
				    _mm512_permutex2var_epi64(a[c], low, a[4 + c]));
		_mm512_storeu_si512(out + (4 + c) * out_stride,
				    _mm512_permutex2var_epi64(a[c], high, a[4 + c]));
	}
}

/* 16 rows of 16 dwords, turned: line d of out gets dword d of each. */
SIMD_FN void simd_turn(const char *p, size_t stride, char *out, size_t out_stride)
{
	simd_turn_half(p, stride, out, out_stride);
	simd_turn_half(p + 32, stride, out + 8 * out_stride, out_stride);
}
