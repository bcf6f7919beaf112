/*
 * Fills the kernel table: the reference first, then whatever is better, in rising order of
 * instruction set, so that an operation without a variant keeps the one below it and no pointer is
 * ever NULL.
 */
#include "compute/kernel/variants.h"

#ifndef KERN_HAVE_NEON
#define KERN_HAVE_NEON 0
#endif
#ifndef KERN_HAVE_AVX2
#define KERN_HAVE_AVX2 0
#endif
#ifndef KERN_HAVE_AVX512
#define KERN_HAVE_AVX512 0
#endif

static const char *const isa_names[KERN_ISA_N_] = { "ref", "neon", "avx2", "avx512" };

int kern_isa_parse(const char *name)
{
	for (int i = 0; i < KERN_ISA_N_; i++) {
		if (__builtin_strcmp(name, isa_names[i]) == 0)
			return i;
	}
	return -1;
}

const char *kern_isa_name(enum kern_isa isa)
{
	return isa < KERN_ISA_N_ ? isa_names[isa] : "?";
}

static bool is_built(enum kern_isa isa)
{
	switch (isa) {
	case KERN_ISA_REF:
		return true;
	case KERN_ISA_NEON:
		return KERN_HAVE_NEON;
	case KERN_ISA_AVX2:
		return KERN_HAVE_AVX2;
	case KERN_ISA_AVX512:
		return KERN_HAVE_AVX512;
	case KERN_ISA_N_:
		break;
	}
	return false;
}

bool kern_isa_is_available(enum kern_isa isa)
{
	return is_built(isa) && kern_cpu_has(isa);
}

/* Each op's place in KERN_OPS is its place in names. */
#define FILL(suffix)                        \
	do {                                \
		size_t i = 0;               \
		KERN_OPS(FILL_##suffix)     \
		t->isa = KERN_ISA_##suffix; \
		(void)i;                    \
	} while (0)
#define FILL_REF(decl, op)       \
	t->op = kern_##op##_ref; \
	t->names[i++] = #op " ref";
#define FILL_NEON(decl, op)       \
	t->op = kern_##op##_neon; \
	t->names[i++] = #op " neon";
#define FILL_AVX2(decl, op)       \
	t->op = kern_##op##_avx2; \
	t->names[i++] = #op " avx2";
#define FILL_AVX512(decl, op)       \
	t->op = kern_##op##_avx512; \
	t->names[i++] = #op " avx512";

int kern_table_init(struct kern_table *t, enum kern_isa isa, struct err *err)
{
	if (isa != KERN_ISA_N_ && !kern_isa_is_available(isa))
		return err_set(err, ERR_UNSUPPORTED,
			       "kernels \"%s\" cannot be used: %s; use --isa ref or leave it out",
			       kern_isa_name(isa),
			       is_built(isa) ? "this CPU or its operating system lacks them"
					     : "this program was built without them");
	*t = (struct kern_table){ 0 };
	for (int f = 0; f < KERN_FORMAT_N_; f++)
		t->turned_from[f] = SIZE_MAX; /* f32 has none, with NEON it was not measured */
	FILL(REF);
#if KERN_HAVE_NEON
	if (isa >= KERN_ISA_NEON && kern_isa_is_available(KERN_ISA_NEON))
		FILL(NEON);
#endif
#if KERN_HAVE_AVX2
	if (isa >= KERN_ISA_AVX2 && kern_isa_is_available(KERN_ISA_AVX2)) {
		FILL(AVX2);
		t->turned_from[KERN_BF16] = 40;
		t->turned_from[KERN_MXFP4] = 8;
	}
#endif
#if KERN_HAVE_AVX512
	if (isa >= KERN_ISA_AVX512 && kern_isa_is_available(KERN_ISA_AVX512)) {
		FILL(AVX512);
		t->turned_from[KERN_BF16] = 48;
		t->turned_from[KERN_MXFP4] = 16;
	}
#endif
	return 0;
}
