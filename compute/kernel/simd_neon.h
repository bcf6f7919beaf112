#pragma once
/*
 * What matmul_simd.h and layer_ops_simd.h need from NEON: four vectors hold the 16 lanes of the
 * order. Every aarch64 CPU has it. Included by the _neon.c files alone.
 */
#include <arm_neon.h>

#include "compute/kernel/order.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define SIMD_FN       static inline __attribute__((always_inline))
#define SIMD_NAME(op) kern_##op##_neon

#define FOR_CONSTANT_M_WIDE(X)

typedef float32x4_t simd;
typedef uint32x4_t simd_words;
/* The codes of 4 lanes as bf16 numbers, a vector of two numbers of each lane: see simd_mx_value. */
typedef struct {
	uint16x8_t pair[4];
} simd_codes;

enum {
	SIMD_LEN = 4,
	SIMD_HALVES = KERN_LANES / SIMD_LEN, /* vectors that make up the lanes */
	ROWS_ONE_X = 2,                      /* weight rows read together for one row of x */
	ONE_X_AHEAD = 0,   /* bytes that each of them is fetched ahead; 0: left to the hardware */
	MX_ROWS_ONE_X = 1, /* the same of MXFP4 */
	BLOCK_ROWS = 4,    /* outputs x rows of x held in registers */
	BLOCK_X_FULL = 4,
	BLOCK_ROWS_WIDE = 2, /* not used */
	BLOCK_X = 4,
	MX_X_BY_4 = 0, /* rows of x up to which lines of four, of two rows of MXFP4 go together */
	MX_X_BY_2 = 0,
	MX_X_WHOLE = 4, /* up to which K is not cut into blocks */
	/* Turned products: vectors of outputs x rows of x held in registers. */
	TURN_VECTORS = 3,
	TURN_X = 8,
	TURN_X_MX = 4,
};

SIMD_FN simd simd_zero(void)
{
	return vdupq_n_f32(0.0f);
}

SIMD_FN simd simd_set1(float f)
{
	return vdupq_n_f32(f);
}

SIMD_FN simd simd_load(const float *p)
{
	return vld1q_f32(p);
}

SIMD_FN void simd_store(float *p, simd v)
{
	vst1q_f32(p, v);
}

SIMD_FN simd simd_keep(simd v)
{
	return v;
}

SIMD_FN simd simd_load_in_turn(const float *p)
{
	return simd_keep(simd_load(p));
}

/* *p in every place. */
SIMD_FN simd simd_broadcast(const float *p)
{
	return vld1q_dup_f32(p);
}

SIMD_FN simd simd_fma(simd a, simd b, simd c)
{
	return vfmaq_f32(c, a, b);
}

SIMD_FN simd simd_fma_onto(simd a, simd b, simd c)
{
	return simd_fma(b, c, a);
}

SIMD_FN simd simd_add(simd a, simd b)
{
	return vaddq_f32(a, b);
}

SIMD_FN simd simd_sub(simd a, simd b)
{
	return vsubq_f32(a, b);
}

SIMD_FN simd simd_mul(simd a, simd b)
{
	return vmulq_f32(a, b);
}

/* a > b ? a : b by lane, b when unordered. */
SIMD_FN simd simd_max(simd a, simd b)
{
	return vbslq_f32(vcgtq_f32(a, b), a, b);
}

SIMD_FN float simd_tree(const simd v[SIMD_HALVES])
{
	simd c = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
	float32x2_t d = vadd_f32(vget_low_f32(c), vget_high_f32(c));

	return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}

/* bf16: 2 * SIMD_LEN elements; the even ones are the low words of the lanes. */
SIMD_FN simd_words simd_load_bf16(const void *p)
{
	return vreinterpretq_u32_u8(vld1q_u8(p));
}

SIMD_FN simd_words simd_keep_words(simd_words q)
{
	return q;
}

SIMD_FN simd simd_bf16_even(simd_words q)
{
	return vreinterpretq_f32_u32(vshlq_n_u32(q, 16));
}

SIMD_FN simd simd_bf16_odd(simd_words q)
{
	return vreinterpretq_f32_u32(vandq_u32(q, vdupq_n_u32(0xffff0000u)));
}

/* SIMD_LEN elements in order as f32. */
SIMD_FN simd simd_widen_bf16(const void *p)
{
	return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

/*
 * MXFP4: all 16 values are exact in bf16, so two byte tables give the two bytes of each. The bytes
 * are first sorted by their place in the lane: then a vector of the low (or high) codes, looked up
 * and zipped, holds the number of all lanes for byte 0, byte 1, and so on.
 */
SIMD_FN simd_codes simd_load_mx(const uint8_t *p)
{
	static const uint8_t order[16] = { 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15 };
	static const uint8_t top[16] = { 0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
					 0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0 };
	static const uint8_t next[16] = { 0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
					  0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0 };
	const uint8x16_t q = vqtbl1q_u8(vld1q_u8(p), vld1q_u8(order));
	const uint8x16_t low = vandq_u8(q, vdupq_n_u8(15)), high = vshrq_n_u8(q, 4);
	const uint8x16_t tops = vld1q_u8(top), nexts = vld1q_u8(next);
	const uint8x16_t low_top = vqtbl1q_u8(tops, low), low_next = vqtbl1q_u8(nexts, low);
	const uint8x16_t high_top = vqtbl1q_u8(tops, high), high_next = vqtbl1q_u8(nexts, high);

	return (simd_codes){ {
		vreinterpretq_u16_u8(vzip1q_u8(low_next, low_top)),   /* numbers 0 and 2 */
		vreinterpretq_u16_u8(vzip1q_u8(high_next, high_top)), /* 1 and 3 */
		vreinterpretq_u16_u8(vzip2q_u8(low_next, low_top)),   /* 4 and 6 */
		vreinterpretq_u16_u8(vzip2q_u8(high_next, high_top)), /* 5 and 7 */
	} };
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
	uint16x8_t pair = q.pair[k / 4 * 2 + k % 2];

	return vreinterpretq_f32_u32(
		vshll_n_u16(k % 4 < 2 ? vget_low_u16(pair) : vget_high_u16(pair), 16));
}

/* The scales of the lanes of quarter h from the n bytes of a line (4, fewer at the end: then byte
 * 0). */
SIMD_FN simd simd_mx_scale(const uint8_t *s, size_t h, size_t n)
{
	return vdupq_n_f32(kern_mx_scale(h < n ? s[h] : 0));
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
	uint32x4_t e = vandq_u32(vshlq_u32(w, vdupq_n_s32(-8 * k)), vdupq_n_u32(255));

	return vreinterpretq_f32_u32(vmaxq_u32(vshlq_n_u32(e, 23), vdupq_n_u32(0x00400000)));
}

/* 16 rows of 16 dwords, turned: line d of out gets dword d of each. */
SIMD_FN void simd_turn(const char *p, size_t stride, char *out, size_t out_stride)
{
	for (size_t d = 0; d < 16; d++)
		for (size_t r = 0; r < 16; r++)
			memcpy(out + d * out_stride + r * 4, p + r * stride + d * 4, 4);
}
