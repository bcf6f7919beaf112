#pragma once
/*
 * What matmul_simd.h and layer_ops_simd.h need from AVX2 and FMA: two vectors hold the 16 lanes of
 * the order. simd_avx512.h offers the same names with one. Included by the _avx2.c files alone.
 */
#include <immintrin.h>

#include "compute/kernel/order.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define SIMD_FN       static inline __attribute__((always_inline))
#define SIMD_NAME(op) kern_##op##_avx2

#define FOR_CONSTANT_M_WIDE(X) CASE_M(5, X) CASE_M(6, X)

typedef __m256 simd;
typedef __m256i simd_words;
/* The codes of 8 lanes as 8 vectors of bf16 numbers, two in each: values[k] of simd_mx_value. */
typedef struct {
	__m256i pair[4];
} simd_codes;

enum {
	SIMD_LEN = 8,
	SIMD_HALVES = KERN_LANES / SIMD_LEN, /* vectors that make up the lanes */
	ROWS_ONE_X = 4,                      /* weight rows read together for one row of x */
	ONE_X_AHEAD = 0,   /* bytes that each of them is fetched ahead; 0: left to the hardware */
	MX_ROWS_ONE_X = 1, /* the same of MXFP4 */
	BLOCK_ROWS = 3,    /* outputs x rows of x held in registers */
	BLOCK_X_FULL = 3,
	BLOCK_ROWS_WIDE = 2,
	BLOCK_X = 6,
	MX_X_BY_4 = 0, /* rows of x up to which lines of four, of two rows of MXFP4 go together */
	MX_X_BY_2 = 0,
	MX_X_WHOLE = 3, /* up to which K is not cut into blocks */
	/* Turned products: vectors of outputs x rows of x held in registers. */
	TURN_VECTORS = 3,
	TURN_X = 4,
	TURN_X_MX = 2,
};

SIMD_FN simd simd_zero(void)
{
	return _mm256_setzero_ps();
}

SIMD_FN simd simd_set1(float f)
{
	return _mm256_set1_ps(f);
}

SIMD_FN simd simd_load(const float *p)
{
	return _mm256_loadu_ps(p);
}

SIMD_FN void simd_store(float *p, simd v)
{
	_mm256_storeu_ps(p, v);
}

/* v in a register from here on: compilers would rather repeat the load in each use, and loads are
 * what a block runs out of. */
SIMD_FN simd simd_keep(simd v)
{
	__asm__("" : "+x"(v));
	return v;
}

SIMD_FN simd simd_load_in_turn(const float *p)
{
	return simd_keep(simd_load(p));
}

/* *p in every place. */
SIMD_FN simd simd_broadcast(const float *p)
{
	return simd_keep(_mm256_broadcast_ss(p));
}

SIMD_FN simd simd_fma(simd a, simd b, simd c)
{
	return _mm256_fmadd_ps(a, b, c);
}

/* a + b * c in the register of a: left to itself, GCC lets accumulators wander and then spills. */
SIMD_FN simd simd_fma_onto(simd a, simd b, simd c)
{
	__asm__("vfmadd231ps %2, %1, %0" : "+x"(a) : "x"(b), "x"(c));
	return a;
}

SIMD_FN simd simd_add(simd a, simd b)
{
	return _mm256_add_ps(a, b);
}

SIMD_FN simd simd_sub(simd a, simd b)
{
	return _mm256_sub_ps(a, b);
}

SIMD_FN simd simd_mul(simd a, simd b)
{
	return _mm256_mul_ps(a, b);
}

/* a > b ? a : b by lane, b when unordered. */
SIMD_FN simd simd_max(simd a, simd b)
{
	return _mm256_max_ps(a, b);
}

SIMD_FN float simd_tree(const simd v[SIMD_HALVES])
{
	__m256 b = _mm256_add_ps(v[0], v[1]);
	__m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

	c = _mm_add_ps(c, _mm_movehl_ps(c, c));
	return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* bf16: 2 * SIMD_LEN elements; the even ones are the low words of the lanes. */
SIMD_FN simd_words simd_load_bf16(const void *p)
{
	return _mm256_loadu_si256(p);
}

SIMD_FN simd_words simd_keep_words(simd_words q)
{
	__asm__("" : "+x"(q));
	return q;
}

SIMD_FN simd simd_bf16_even(simd_words q)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(q, 16));
}

/* The mask stays in memory: blocks have no register left for it. */
SIMD_FN simd simd_bf16_odd(simd_words q)
{
	static const uint32_t mask[8] __attribute__((aligned(32))) = {
		0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
		0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
	};

	__asm__("vpand %1, %0, %0" : "+x"(q) : "m"(mask));
	return _mm256_castsi256_ps(q);
}

/* SIMD_LEN elements in order as f32. */
SIMD_FN simd simd_widen_bf16(const void *p)
{
	__m128i u = _mm_loadu_si128(p);

	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(u), 16));
}

/*
 * MXFP4: all 16 values are exact in bf16, so two byte tables give the two bytes of each. Bytes are
 * first brought into an order in which unpacking leaves byte 0 and 1 of every lane in one vector
 * and 2 and 3 in the other.
 */
SIMD_FN simd_codes simd_mx_decode(__m256i q)
{
	const __m256i order = _mm256_broadcastsi128_si256(
		_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
	const __m256i top = _mm256_broadcastsi128_si256(_mm_setr_epi8(
		0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, (char)0x80, (char)0xbf, (char)0xbf,
		(char)0xbf, (char)0xc0, (char)0xc0, (char)0xc0, (char)0xc0));
	const __m256i next = _mm256_broadcastsi128_si256(_mm_setr_epi8(
		0x00, 0x00, (char)0x80, (char)0xc0, 0x00, 0x40, (char)0x80, (char)0xc0, 0x00, 0x00,
		(char)0x80, (char)0xc0, 0x00, 0x40, (char)0x80, (char)0xc0));
	const __m256i nibble = _mm256_set1_epi8(15);
	__m256i low, high, low_top, low_next, high_top, high_next;

	q = _mm256_shuffle_epi8(q, order);
	low = _mm256_and_si256(q, nibble);
	high = _mm256_and_si256(_mm256_srli_epi16(q, 4), nibble);
	low_top = _mm256_shuffle_epi8(top, low);
	low_next = _mm256_shuffle_epi8(next, low);
	high_top = _mm256_shuffle_epi8(top, high);
	high_next = _mm256_shuffle_epi8(next, high);
	return (simd_codes){ {
		_mm256_unpacklo_epi8(low_next, low_top),   /* numbers 0 and 2 */
		_mm256_unpacklo_epi8(high_next, high_top), /* 1 and 3 */
		_mm256_unpackhi_epi8(low_next, low_top),   /* 4 and 6 */
		_mm256_unpackhi_epi8(high_next, high_top), /* 5 and 7 */
	} };
}

SIMD_FN simd_codes simd_load_mx(const uint8_t *p)
{
	return simd_mx_decode(_mm256_loadu_si256((const void *)p));
}

/* The first n bytes, the rest code 0. */
SIMD_FN simd_codes simd_load_mx_part(const uint8_t *p, size_t n)
{
	uint8_t copy[4 * SIMD_LEN] = { 0 };

	memcpy(copy, p, n);
	return simd_load_mx(copy);
}

SIMD_FN simd simd_mx_value(simd_codes q, const int k)
{
	__m256i pair = q.pair[k / 4 * 2 + k % 2];

	return k % 4 < 2 ? simd_bf16_even(pair) : simd_bf16_odd(pair);
}

/* The scales of the lanes of half h from the n bytes of a line (4, fewer at the end: then byte 0).
 */
SIMD_FN simd simd_mx_scale(const uint8_t *s, size_t h, size_t n)
{
	const __m256i first = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
	const __m256i second = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
	uint32_t bytes = 0;
	__m128i e;
	__m256 both;

	memcpy(&bytes, s, n);
	e = _mm_slli_epi32(_mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)bytes)), 23);
	e = _mm_max_epu32(e, _mm_set1_epi32(0x00400000));
	both = _mm256_castsi256_ps(_mm256_broadcastsi128_si256(e));
	return _mm256_permutevar_ps(both, h ? second : first);
}

/* Whole lines: nothing is gained from what lies behind them, or from four scales at a time. */
typedef const uint8_t *simd_scales;
enum { SIMD_MX_PAST = 0, SIMD_NEAR = 8 };

SIMD_FN simd_codes simd_load_near(const uint8_t *p, const int k)
{
	(void)k;
	return simd_load_mx(p);
}

SIMD_FN simd simd_near_value(simd_codes q, const int k)
{
	return simd_mx_value(q, k);
}

SIMD_FN simd_scales simd_load_scales(const uint8_t *s)
{
	return s;
}

SIMD_FN simd simd_scale_of(simd_scales s, size_t j, size_t h)
{
	return simd_mx_scale(s + j * 4, h, 4);
}

/* Byte k of each lane as a scale. */
SIMD_FN simd simd_scale_of_byte(simd_words w, const int k)
{
	__m256i e = _mm256_and_si256(_mm256_srli_epi32(w, 8 * k), _mm256_set1_epi32(255));

	return _mm256_castsi256_ps(
		_mm256_max_epu32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000)));
}

/* 8 rows of 8 dwords, turned. */
SIMD_FN void simd_turn_8(const char *p, size_t stride, char *out, size_t out_stride)
{
	__m256 a[8], b[8];

	UNROLL
	for (size_t i = 0; i < 8; i++)
		a[i] = _mm256_loadu_ps((const float *)(const void *)(p + i * stride));
	UNROLL
	for (size_t i = 0; i < 8; i += 2) {
		b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
		b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
	}
	/* a[4 g + c]: dwords c of the halves of rows 4 g ... 4 g + 3 */
	UNROLL
	for (size_t i = 0; i < 8; i += 4) {
		a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
		a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
		a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
		a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
	}
	UNROLL
	for (size_t c = 0; c < 4; c++) {
		float *q = (float *)(void *)(out + c * out_stride);
		float *more = (float *)(void *)(out + (4 + c) * out_stride);

		_mm256_storeu_ps(q, _mm256_permute2f128_ps(a[c], a[4 + c], 0x20));
		_mm256_storeu_ps(more, _mm256_permute2f128_ps(a[c], a[4 + c], 0x31));
	}
}

/* 16 rows of 16 dwords, turned: line d of out gets dword d of each. */
SIMD_FN void simd_turn(const char *p, size_t stride, char *out, size_t out_stride)
{
	UNROLL
	for (size_t r = 0; r < 16; r += 8)
		UNROLL
	for (size_t d = 0; d < 16; d += 8)
		simd_turn_8(p + r * stride + d * 4, stride, out + d * out_stride + r * 4,
			    out_stride);
}
