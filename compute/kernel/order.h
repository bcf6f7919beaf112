#pragma once
/*
 * The order of every sum, stated in code; docs/kernels.md gives the reasons. All variants, whatever
 * their vector width, execute exactly these operations. Included by the kernels alone.
 *
 * Dot (rule 2). A weight row is read in 64-byte lines of 16 dwords. The lane is the dword, and the
 * elements inside a dword are taken in ascending order:
 *
 *	f32     line of  16, lane  i mod 16
 *	bf16    line of  32, lane (i mod 32)  div 2
 *	MXFP4   line of 128, lane (i mod 128) div 8
 *
 * The last line is completed with w = x = +0, and these products are executed: a skipped one
 * differs in the sign of zero. f32 and bf16 add into a[lane] by fma, and after every 1024 elements,
 * and at the end, T[lane] += a[lane], a = +0. MXFP4 has no flush: per line and lane t = w0 * x0,
 * t = fma(wk, xk, t) for k = 1 ... 7, a[lane] = fma(t, scale, a[lane]).
 *
 * Column sums (rule 5) are one fma chain per output in ascending row, with the same flush.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "compute/kernel/kernel.h"

enum {
	KERN_LANES = 16,
	KERN_FLUSH = 1024,  /* elements (dot) or rows (column sum) between two flushes */
	KERN_LINE_F32 = 16, /* elements of a 64-byte line */
	KERN_LINE_BF16 = 32,
	KERN_LINE_MXFP4 = 128,
	KERN_MX_GROUP = 32, /* elements that share a scale */
};

static inline size_t kern_line(enum kern_format format)
{
	return format == KERN_F32    ? KERN_LINE_F32
	       : format == KERN_BF16 ? KERN_LINE_BF16
				     : KERN_LINE_MXFP4;
}

static inline float kern_float_of_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline uint32_t kern_bits_of_float(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

/* E8M0: 2^(e - 127); e = 0 is the subnormal 2^-127, which a bare shift would make zero. */
static inline float kern_mx_scale(uint8_t e)
{
	uint32_t bits = (uint32_t)e << 23;

	return kern_float_of_bits(bits > 0x00400000u ? bits : 0x00400000u);
}

/* Rule 3: the 16 lanes become one number by halving. Destroys v. */
static inline float kern_tree(float v[KERN_LANES])
{
	for (int h = KERN_LANES / 2; h > 0; h /= 2) {
		for (int l = 0; l < h; l++)
			v[l] = v[l] + v[l + h];
	}
	return v[0];
}
