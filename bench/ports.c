#include "bench/ports.h"

#if defined(__x86_64__)

/* clang-format off */
#define FMA(i)	"vfmadd231ps %%zmm30, %%zmm31, %%zmm" #i "\n"
#define PERM	"vpermps %%zmm28, %%zmm29, %%zmm16\n"
#define SHIFT	"vpsrld $4, %%zmm29, %%zmm17\n"
#define AND	"vpandd %%zmm28, %%zmm29, %%zmm18\n"
#define BYTES	"vpermb %%zmm28, %%zmm29, %%zmm19\n"
#define UNPACK	"vpunpcklbw %%zmm28, %%zmm29, %%zmm20\n"
#define MAX	"vpmaxud %%zmm28, %%zmm29, %%zmm21\n"

/* Set k of the products of one decoded vector with 1, 2, 4, 8 rows of x: enough chains in turn. */
#define X1(k)	X1_##k
#define X1_0 FMA(0)
#define X1_1 FMA(1)
#define X1_2 FMA(2)
#define X1_3 FMA(3)
#define X1_4 FMA(4)
#define X1_5 FMA(5)
#define X1_6 FMA(6)
#define X1_7 FMA(7)
#define X1_8 FMA(8)
#define X2(k)	X2_##k
#define X2_0 FMA(0) FMA(1)
#define X2_1 FMA(2) FMA(3)
#define X2_2 FMA(4) FMA(5)
#define X2_3 FMA(6) FMA(7)
#define X2_4 FMA(8) FMA(9)
#define X2_5 FMA(10) FMA(11)
#define X2_6 X2_0
#define X2_7 X2_1
#define X2_8 X2_2
#define X4(k)	X4_##k
#define X4_0 X2_0 X2_1
#define X4_1 X2_2 X2_3
#define X4_2 X2_4 X2_5
#define X4_3 X4_0
#define X4_4 X4_1
#define X4_5 X4_2
#define X4_6 X4_0
#define X4_7 X4_1
#define X4_8 X4_2
#define X8(k)	X4_0 X4_1

/* Decoding of vector k: bf16 by a shift and a mask; codes of MXFP4 shifted for each number, or for
 * every second one while the others are loads at an offset, or made of bytes, unpacked and (not
 * counted) spread by stores. */
#define BF16(k)		BF16_##k
#define BF16_0 SHIFT
#define BF16_1 AND
#define SHIFTED(k)	SHIFTED_##k
#define SHIFTED_0 PERM
#define SHIFTED_1 SHIFT PERM
#define SHIFTED_2 SHIFTED_1
#define SHIFTED_3 SHIFTED_1
#define SHIFTED_4 SHIFTED_1
#define SHIFTED_5 SHIFTED_1
#define SHIFTED_6 SHIFTED_1
#define SHIFTED_7 SHIFTED_1
#define NEAR(k)		NEAR_##k
#define NEAR_0 PERM
#define NEAR_1 SHIFT PERM
#define NEAR_2 NEAR_0
#define NEAR_3 NEAR_1
#define NEAR_4 NEAR_0
#define NEAR_5 NEAR_1
#define NEAR_6 NEAR_0
#define NEAR_7 NEAR_1
#define WORDS(k)	WORDS_##k
#define WORDS_0 SHIFT BYTES
#define WORDS_1 BYTES
#define WORDS_2 UNPACK
#define WORDS_3 UNPACK
#define WORDS_4 BYTES
#define WORDS_5 BYTES
#define WORDS_6 UNPACK
#define WORDS_7 UNPACK

#define BF16_TURN(D, X)	D(0) X(0) D(1) X(1) D(0) X(2) D(1) X(3) D(0) X(4) D(1) X(5)
/* Eight numbers of each lane, then their scale; the scales of four lines are made together. */
#define MX_LINE(D, X)	D(0) X(0) D(1) X(1) D(2) X(2) D(3) X(3) D(4) X(4) D(5) X(5) D(6) X(6) \
			D(7) X(7) PERM X(8)
#define MX_TURN(D, X)	PERM SHIFT MAX MX_LINE(D, X) MX_LINE(D, X) MX_LINE(D, X) MX_LINE(D, X)
/* clang-format on */

#define LOOP(name, body)                                                                        \
	static void name(long turns)                                                            \
	{                                                                                       \
		__asm__ volatile(                                                               \
			"vpxord %%xmm28, %%xmm28, %%xmm28\n vpxord %%xmm29, %%xmm29, %%xmm29\n" \
			"vpxord %%xmm30, %%xmm30, %%xmm30\n vpxord %%xmm31, %%xmm31, %%xmm31\n" \
			"vzeroall\n"                                                            \
			"1:\n" body "dec %0\n jnz 1b\n"                                         \
			"vzeroall\n"                                                            \
			: "+r"(turns)::"cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",    \
			  "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",   \
			  "xmm14", "xmm15");                                                    \
	}

/* Registers 16 to 31 are used by nothing else: this file is built without AVX-512. */
#define BF16_MIX(m)                                          \
	{                                                    \
		"bf16", "shift and mask", m, 6 * m, bf16_##m \
	}
#define MX_MIX(name, way, m)                           \
	{                                              \
		"mxfp4", way, m, 4 * 8 * m, name##_##m \
	}
#define FOR_ROWS(X) X(1) X(2) X(4) X(8)

#define DEFINE(m)                                 \
	LOOP(bf16_##m, BF16_TURN(BF16, X##m))     \
	LOOP(shifted_##m, MX_TURN(SHIFTED, X##m)) \
	LOOP(near_##m, MX_TURN(NEAR, X##m))       \
	LOOP(words_##m, MX_TURN(WORDS, X##m))
FOR_ROWS(DEFINE)

#define ENTRY(m)                                                                  \
	BF16_MIX(m), MX_MIX(shifted, "shifts", m),                                \
		MX_MIX(near, "shifts and loads at an offset (as the kernel)", m), \
		MX_MIX(words, "bytes, unpacked, spread by stores", m),
static const struct port_mix mixes[] = { FOR_ROWS(ENTRY){ 0 } };

const struct port_mix *port_mixes(void)
{
	static const struct port_mix none;

	return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
			       __builtin_cpu_supports("avx512vbmi")
		       ? mixes
		       : &none;
}

#else

const struct port_mix *port_mixes(void)
{
	static const struct port_mix none;

	return &none;
}

#endif
