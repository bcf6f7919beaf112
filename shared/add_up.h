#pragma once
/* A plain read of memory, as wide as this CPU reads: what plans and benches measure by. */
#include <stddef.h>
#include <stdint.h>

enum { ADD_UP_LINE = 8, ADD_UP_WORDS = 4 * ADD_UP_LINE }; /* words of a cache line, of a turn */

typedef uint64_t line __attribute__((vector_size(64)));

/* The sum of n words, a multiple of ADD_UP_WORDS, at a multiple of 64 bytes. Which clone serves is
 * found while the program is loaded, when ThreadSanitizer is not ready for instrumented code. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static uint64_t
add_up(const uint64_t *at, size_t n)
{
	const line *lines = (const line *)(const void *)at;
	line a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };

	for (size_t i = 0; i < n / ADD_UP_LINE; i += 4) {
		a += lines[i];
		b += lines[i + 1];
		c += lines[i + 2];
		d += lines[i + 3];
	}
	a += b + c + d;
	return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}
