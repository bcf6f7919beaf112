#include "bench/loops.h"

#if defined(__x86_64__)
#include <immintrin.h>

static volatile float sink;

/* Written out: a compiler that keeps an accumulator in memory would measure something else. */
#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

__attribute__((target("avx512f"))) void loop_fma_avx512(void)
{
	const __m512 c = _mm512_set1_ps(1.0001f);
	float out[16];
#define START(i) __m512 a##i = _mm512_set1_ps((float)i);
#define STEP(i)                             \
	a##i = _mm512_fmadd_ps(a##i, c, c); \
	__asm__ volatile("" : "+v"(a##i));
#define ADD(i) a0 = _mm512_add_ps(a0, a##i);
	CHAINS(START)

	for (long k = 0; k < LOOP_TURNS; k++) {
		CHAINS(STEP)
	}
	CHAINS(ADD)
	_mm512_storeu_ps(out, a0);
	sink = out[0];
#undef START
#undef STEP
#undef ADD
}

__attribute__((target("avx2,fma"))) void loop_fma_avx2(void)
{
	const __m256 c = _mm256_set1_ps(1.0001f);
	float out[8];
#define START(i) __m256 a##i = _mm256_set1_ps((float)i);
#define STEP(i)                             \
	a##i = _mm256_fmadd_ps(a##i, c, c); \
	__asm__ volatile("" : "+x"(a##i));
#define ADD(i) a0 = _mm256_add_ps(a0, a##i);
	CHAINS(START)

	for (long k = 0; k < LOOP_TURNS; k++) {
		CHAINS(STEP)
	}
	CHAINS(ADD)
	_mm256_storeu_ps(out, a0);
	sink = out[0];
#undef START
#undef STEP
#undef ADD
}

/* One row of bf16 as one would write it: four numbers become doubles, two sums. */
__attribute__((target("avx2,fma"))) float loop_dot_double(const uint16_t *w, const float *x,
							  size_t n)
{
	__m256d a = _mm256_setzero_pd(), b = a;
	double out[4];

	for (size_t i = 0; i + 8 <= n; i += 8) {
		__m128i q = _mm_loadu_si128((const __m128i *)(const void *)(w + i));
		__m128i low = _mm_slli_epi32(_mm_cvtepu16_epi32(q), 16);
		__m128i high = _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_srli_si128(q, 8)), 16);

		a = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_castsi128_ps(low)),
				    _mm256_cvtps_pd(_mm_loadu_ps(x + i)), a);
		b = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_castsi128_ps(high)),
				    _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4)), b);
	}
	_mm256_storeu_pd(out, _mm256_add_pd(a, b));
	return (float)(out[0] + out[1] + out[2] + out[3]);
}

#else

void loop_fma_avx512(void)
{
}

void loop_fma_avx2(void)
{
}

float loop_dot_double(const uint16_t *w, const float *x, size_t n)
{
	(void)w;
	(void)x;
	(void)n;
	return 0;
}

#endif
