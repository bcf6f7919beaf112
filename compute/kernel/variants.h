#pragma once
/*
 * Names of the variants: kern_<op>_<isa>, declared for every instruction set; a build defines those
 * of the sets it was made for. table.c is the only caller.
 */
#include "compute/kernel/kernel.h"

#define KERN_DECLARE_REF(decl, op)    KERN_DECL_##decl(kern_##op##_ref);
#define KERN_DECLARE_NEON(decl, op)   KERN_DECL_##decl(kern_##op##_neon);
#define KERN_DECLARE_AVX2(decl, op)   KERN_DECL_##decl(kern_##op##_avx2);
#define KERN_DECLARE_AVX512(decl, op) KERN_DECL_##decl(kern_##op##_avx512);

KERN_OPS(KERN_DECLARE_REF)
KERN_OPS(KERN_DECLARE_NEON)
KERN_OPS(KERN_DECLARE_AVX2)
KERN_OPS(KERN_DECLARE_AVX512)

#undef KERN_DECLARE_REF
#undef KERN_DECLARE_NEON
#undef KERN_DECLARE_AVX2
#undef KERN_DECLARE_AVX512

/* What this CPU and its operating system allow (cpu.c). */
bool kern_cpu_has(enum kern_isa isa);
