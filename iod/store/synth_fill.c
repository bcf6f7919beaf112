/* See synth_fill.h. */
#include "iod/store/synth_fill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { N_QUANTILES = 65536 };

struct iod_filler {
	struct iod_fill fill;
	uint32_t element_size;
	uint64_t state[4];
	uint64_t at;                  /* elements made so far */
	float quantiles[N_QUANTILES]; /* of N(0, 1) */
	float f32[N_QUANTILES];
	uint16_t bf16[N_QUANTILES];
	uint8_t scale[256];
};

/* xoshiro256++, by Blackman and Vigna (public domain algorithm). */
static inline uint64_t rotate(uint64_t x, int k)
{
	return x << k | x >> (64 - k);
}

static inline uint64_t next_random(uint64_t s[4])
{
	uint64_t result = rotate(s[0] + s[3], 23) + s[0], t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotate(s[3], 45);
	return result;
}

/* The distribution function of N(0, 1) inverted by bisection: 32,768 times at start, 10 ms. */
static double quantile(double p)
{
	double low = -6, high = 6;

	for (int i = 0; i < 32; i++) {
		double middle = (low + high) / 2;

		if (0.5 * erfc(-middle / sqrt(2)) < p)
			low = middle;
		else
			high = middle;
	}
	return (low + high) / 2;
}

static uint16_t round_bf16(float value)
{
	uint32_t u;

	memcpy(&u, &value, sizeof(u));
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

struct iod_filler *iod_filler_new(void)
{
	struct iod_filler *f = malloc(sizeof(*f));

	if (!f)
		return NULL;
	for (unsigned i = 0; i < N_QUANTILES / 2; i++) {
		float q = (float)quantile((i + 0.5) / N_QUANTILES);

		f->quantiles[i] = q;
		f->quantiles[N_QUANTILES - 1 - i] = -q;
	}
	return f;
}

void iod_filler_freep(struct iod_filler **f)
{
	free(*f);
	*f = NULL;
}

void iod_filler_start(struct iod_filler *f, const struct iod_fill *fill, uint32_t element_size,
		      uint64_t seed, const char *name)
{
	f->fill = *fill;
	f->element_size = element_size;
	f->at = 0;
	for (unsigned i = 0; i < 4; i++)
		f->state[i] = XXH3_64bits_withSeed(name, strlen(name), seed * 4 + i) | (i == 0);
	if (fill->kind == IOD_FILL_NORMAL) {
		for (unsigned i = 0; i < N_QUANTILES; i++) {
			f->f32[i] = fill->center + fill->spread * f->quantiles[i];
			f->bf16[i] = round_bf16(f->f32[i]);
		}
	}
	if (fill->kind == IOD_FILL_SCALE)
		for (unsigned i = 0; i < 256; i++)
			f->scale[i] = (uint8_t)(fill->base + i % 3 - 1);
}

static void fill_f32(struct iod_filler *f, float *out, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++, f->at++) {
		uint64_t bits = next_random(f->state);

		if (f->fill.kind == IOD_FILL_NORMAL)
			out[i] = f->f32[bits >> 48];
		else if (f->at < f->fill.n_real)
			out[i] = logf(0.3f + 2.7f * (float)(bits >> 40) / (float)(1 << 24));
		else
			out[i] = 0;
	}
}

static void fill_bf16(struct iod_filler *f, uint16_t *out, uint64_t n)
{
	uint64_t i = 0;

	for (; i + 4 <= n; i += 4) {
		uint64_t bits = next_random(f->state);

		out[i] = f->bf16[bits & 0xffff];
		out[i + 1] = f->bf16[bits >> 16 & 0xffff];
		out[i + 2] = f->bf16[bits >> 32 & 0xffff];
		out[i + 3] = f->bf16[bits >> 48];
	}
	for (; i < n; i++)
		out[i] = f->bf16[next_random(f->state) >> 48];
}

static void fill_bytes(struct iod_filler *f, uint8_t *out, uint64_t n)
{
	for (uint64_t i = 0; i < n; i += 8) {
		uint64_t bits = next_random(f->state);
		uint8_t bytes[8];

		memcpy(bytes, &bits, 8);
		for (unsigned k = 0; f->fill.kind == IOD_FILL_SCALE && k < 8; k++)
			bytes[k] = f->scale[bytes[k]];
		memcpy(out + i, bytes, n - i < 8 ? n - i : 8);
	}
}

void iod_filler_next(struct iod_filler *f, void *buf, uint64_t size)
{
	if (f->element_size == 4)
		fill_f32(f, buf, size / 4);
	else if (f->element_size == 2)
		fill_bf16(f, buf, size / 2);
	else
		fill_bytes(f, buf, size);
}
