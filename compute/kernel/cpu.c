/*
 * What the CPU can do and the operating system saves: the instruction bits from cpuid, the register
 * state from xgetbv. A bit without the state would fault on the first context switch, so both
 * count.
 */
#include "compute/kernel/variants.h"

#if defined(__x86_64__)
#include <cpuid.h>

enum {
	XCR0_AVX = 0x06,    /* xmm and ymm */
	XCR0_AVX512 = 0xe6, /* also opmask, upper zmm, zmm 16 to 31 */
};

static uint64_t read_xcr0(void)
{
	uint32_t lo, hi;

	__asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
	return (uint64_t)hi << 32 | lo;
}

bool kern_cpu_has(enum kern_isa isa)
{
	const unsigned avx2_bits = bit_AVX2;
	const unsigned avx512_bits = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
	unsigned a, b, c, d, b7;
	uint64_t xcr0;

	if (isa == KERN_ISA_REF)
		return true;
	if (isa != KERN_ISA_AVX2 && isa != KERN_ISA_AVX512)
		return false;
	if (!__get_cpuid(1, &a, &b, &c, &d))
		return false;
	if (!(c & bit_OSXSAVE) || !(c & bit_AVX) || !(c & bit_FMA))
		return false;
	if (!__get_cpuid_count(7, 0, &a, &b7, &c, &d))
		return false;
	xcr0 = read_xcr0();
	if ((xcr0 & XCR0_AVX) != XCR0_AVX || (b7 & avx2_bits) != avx2_bits)
		return false;
	if (isa == KERN_ISA_AVX2)
		return true;
	return (xcr0 & XCR0_AVX512) == XCR0_AVX512 && (b7 & avx512_bits) == avx512_bits;
}
#else
bool kern_cpu_has(enum kern_isa isa)
{
#if defined(__aarch64__)
	if (isa == KERN_ISA_NEON) /* part of the base architecture */
		return true;
#endif
	return isa == KERN_ISA_REF;
}
#endif
