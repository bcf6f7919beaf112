#pragma once
/*
 * Cutting text before byte-pair merging: first into stretches (blocks of 400,000 characters, runs
 * of at most 25,000), then by the split pattern into pieces. Text must be valid UTF-8 already.
 * Private to compute/text.
 */
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"

/* Walks over a text and hands out its stretches in order. */
struct k3_stretches {
	const char *text;
	size_t size;
	size_t at;      /* next byte not yet handed out */
	size_t n_block; /* characters handed out of the current block */
};
/* The next stretch is text[*ret_from, *ret_to); 0 at the end of the text, else 1. */
int k3_stretches_next(struct k3_stretches *s, size_t *ret_from, size_t *ret_to);

struct k3_pretoken;

/* Compile the pattern. ERR_NO_MEMORY, ERR_UNSUPPORTED (a PCRE2 that cannot do it). */
int k3_pretoken_new(struct k3_pretoken **ret, struct err *err);
struct k3_pretoken *k3_pretoken_free(struct k3_pretoken *p);

/*
 * Set the stretch that k3_pretoken_next() cuts: borrowed until the next call. 0 or -ENOMEM.
 * Its end is the end of the text as far as the pattern is concerned.
 */
int k3_pretoken_set(struct k3_pretoken *p, const char *stretch, size_t size);
/* End of the piece that starts at byte from < size. < 0: ERR_UNSUPPORTED, a limit of PCRE2. */
int k3_pretoken_next(struct k3_pretoken *p, size_t from, size_t *ret_to, struct err *err);
