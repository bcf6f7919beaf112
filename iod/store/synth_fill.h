#pragma once
/*
 * Random bytes of one tensor, a piece at a time. Normal numbers come from a table of 65,536
 * quantiles, already scaled and rounded to the tensor's dtype, looked up with 16 random bits each:
 * fast, and the same on every machine.
 */
#include <stdint.h>

enum iod_fill_kind {
	IOD_FILL_NORMAL, /* center + spread * N(0, 1), bf16 or f32 */
	IOD_FILL_A_LOG,  /* log of uniform 0.3 to 3 for the first n_real, then 0; f32 */
	IOD_FILL_PACKED, /* all bytes alike */
	IOD_FILL_SCALE,  /* base - 1, base, base + 1 */
};

struct iod_fill {
	enum iod_fill_kind kind;
	float center, spread; /* NORMAL */
	uint32_t n_real;      /* A_LOG */
	uint8_t base;         /* SCALE */
};

struct iod_filler; /* tables and the state of the generator */

struct iod_filler *iod_filler_new(void);
void iod_filler_freep(struct iod_filler **f);
/* Begin a tensor: its numbers depend on seed and name alone. element_size: 4, 2 or 1. */
void iod_filler_start(struct iod_filler *f, const struct iod_fill *fill, uint32_t element_size,
		      uint64_t seed, const char *name);
/* The next size bytes (a multiple of 8, or the last ones) into buf. */
void iod_filler_next(struct iod_filler *f, void *buf, uint64_t size);
