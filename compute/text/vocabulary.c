/*
 * Ranks. tiktoken.model is a text file, a line for each rank in order: base64 of the bytes, a
 * space, the rank. Whatever is not exactly that is refused with its line: a vocabulary that is off
 * by one gives fluent nonsense. Lookup is one hash and, on a hit, one comparison.
 */
#include "compute/text/vocabulary.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/must.h"

enum { RANKS_MAX = 1u << 24 };

static uint64_t hash(const char *bytes, size_t size)
{
	return XXH3_64bits(bytes, size);
}

uint32_t k3_vocabulary_find(const struct k3_vocabulary *v, const char *bytes, size_t size)
{
	uint64_t h;
	uint32_t tag;

	if (size > v->max_size)
		return K3_NO_RANK;
	h = hash(bytes, size);
	tag = (uint32_t)(h >> 32);
	for (size_t at = h & v->slot_mask;; at = (at + 1) & v->slot_mask) {
		const struct k3_vocabulary_slot *slot = &v->slots[at];
		const uint32_t *o;

		if (slot->rank == K3_NO_RANK)
			return K3_NO_RANK;
		if (slot->tag != tag)
			continue;
		o = &v->offsets[slot->rank];
		if (o[1] - o[0] == size && memcmp(v->bytes + o[0], bytes, size) == 0)
			return slot->rank;
	}
}

/* Insert a rank whose bytes are in place; returns the rank that has the same bytes already, or
 * K3_NO_RANK. */
static uint32_t insert(struct k3_vocabulary *v, uint32_t rank)
{
	const char *bytes = v->bytes + v->offsets[rank];
	size_t size = v->offsets[rank + 1] - v->offsets[rank];
	uint64_t h = hash(bytes, size);
	uint32_t tag = (uint32_t)(h >> 32);
	size_t at = h & v->slot_mask;

	for (; v->slots[at].rank != K3_NO_RANK; at = (at + 1) & v->slot_mask) {
		const uint32_t *o = &v->offsets[v->slots[at].rank];

		if (v->slots[at].tag == tag && o[1] - o[0] == size &&
		    memcmp(v->bytes + o[0], bytes, size) == 0)
			return v->slots[at].rank;
	}
	v->slots[at].tag = tag;
	v->slots[at].rank = rank;
	return K3_NO_RANK;
}

static int base64_digit(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decode size characters into out (3 bytes for each 4); returns the bytes, or 0 for anything but
 * canonical, padded, non-empty base64. */
static size_t base64_decode(const char *s, size_t size, char *out)
{
	size_t n = 0;

	if (size == 0 || size % 4 != 0)
		return 0;
	for (size_t i = 0; i < size; i += 4) {
		unsigned pad = 0, bits = 0;

		if (i + 4 == size)
			pad = s[i + 3] != '=' ? 0 : s[i + 2] != '=' ? 1 : 2;
		for (unsigned k = 0; k < 4; k++) {
			int digit = k >= 4 - pad ? 0 : base64_digit(s[i + k]);

			if (digit < 0)
				return 0;
			bits = bits << 6 | (unsigned)digit;
		}
		if (bits & ((1u << (8 * pad)) - 1))
			return 0;
		for (unsigned k = 0; k < 3 - pad; k++)
			out[n++] = (char)(bits >> (16 - 8 * k));
	}
	return n;
}

/* The decimal number s[0..size), without sign or leading zeros; UINT32_MAX when it is none. */
static uint32_t parse_rank(const char *s, size_t size)
{
	uint32_t n = 0;

	if (size == 0 || size > 8 || (s[0] == '0' && size > 1))
		return UINT32_MAX;
	for (size_t i = 0; i < size; i++) {
		if (s[i] < '0' || s[i] > '9')
			return UINT32_MAX;
		n = n * 10 + (uint32_t)(s[i] - '0');
	}
	return n;
}

static int refuse_line(struct err *err, uint32_t line, const char *what)
{
	return err_set(err, ERR_VOCABULARY,
		       "tiktoken.model line %u: %s; copy the file again from the release", line + 1,
		       what);
}

/* One line, newline excluded, which must be that of v->n_ranks. */
static int add_line(struct k3_vocabulary *v, const char *line, size_t size, struct err *err)
{
	uint32_t rank = v->n_ranks, start = v->offsets[rank], said, other;
	const char *space = memchr(line, ' ', size);
	size_t n;

	if (!space)
		return refuse_line(err, rank, "no space between bytes and rank");
	n = base64_decode(line, (size_t)(space - line), v->bytes + start);
	if (n == 0)
		return refuse_line(err, rank, "the bytes are not base64");
	said = parse_rank(space + 1, size - (size_t)(space - line) - 1);
	if (said == UINT32_MAX)
		return refuse_line(err, rank, "the rank is not a number");
	if (said != rank)
		return err_set(
			err, ERR_VOCABULARY,
			"tiktoken.model line %u has rank %u where %u is expected: ranks must "
			"be complete and in order; copy the file again from the release",
			rank + 1, said, rank);
	v->offsets[rank + 1] = start + (uint32_t)n;
	if (n > v->max_size)
		v->max_size = n;
	other = insert(v, rank);
	if (other != K3_NO_RANK)
		return err_set(err, ERR_VOCABULARY,
			       "tiktoken.model line %u has the same bytes as line %u; copy the "
			       "file again from the release",
			       rank + 1, other + 1);
	v->n_ranks++;
	return 0;
}

static int allocate(struct k3_vocabulary *v, const char *ranks, size_t size, struct err *err)
{
	size_t n_lines = 1, n_slots = 1024;

	for (const char *p = ranks; (p = memchr(p, '\n', size - (size_t)(p - ranks))); p++)
		n_lines++;
	if (n_lines > RANKS_MAX || size > UINT32_MAX)
		return err_set(err, ERR_VOCABULARY, "tiktoken.model has %zu lines: too many",
			       n_lines);
	while (n_slots < 2 * n_lines)
		n_slots *= 2;
	v->bytes = malloc(size + 1);
	v->offsets = malloc((n_lines + 1) * sizeof(*v->offsets));
	v->slots = malloc(n_slots * sizeof(*v->slots));
	v->pair_rank = malloc(256 * 256 * sizeof(*v->pair_rank));
	if (!v->bytes || !v->offsets || !v->slots || !v->pair_rank)
		return err_set(err, ERR_NO_MEMORY, "no memory for a vocabulary of %zu ranks",
			       n_lines);
	v->offsets[0] = 0;
	memset(v->slots, 0xff, n_slots * sizeof(*v->slots)); /* every rank K3_NO_RANK */
	v->slot_mask = n_slots - 1;
	return 0;
}

static int index_bytes(struct k3_vocabulary *v, struct err *err)
{
	for (unsigned i = 0; i < 256; i++) {
		char byte = (char)i;

		v->byte_rank[i] = k3_vocabulary_find(v, &byte, 1);
		if (v->byte_rank[i] == K3_NO_RANK)
			return err_set(err, ERR_VOCABULARY,
				       "tiktoken.model has no rank for the single byte 0x%02x, so "
				       "not every text has ids; copy the file again from the "
				       "release",
				       i);
	}
	for (unsigned i = 0; i < 256 * 256; i++) {
		char two[2] = { (char)(i >> 8), (char)i };

		v->pair_rank[i] = k3_vocabulary_find(v, two, 2);
	}
	return 0;
}

int k3_vocabulary_init(struct k3_vocabulary *v, const char *ranks, size_t ranks_size,
		       const char *config, size_t config_size, struct err *err)
{
	size_t at = 0;
	int r;

	memset(v, 0, sizeof(*v));
	r = allocate(v, ranks, ranks_size, err);
	while (r == 0 && at < ranks_size) {
		const char *end = memchr(ranks + at, '\n', ranks_size - at);
		size_t size = end ? (size_t)(end - ranks) - at : ranks_size - at;

		r = add_line(v, ranks + at, size, err);
		at += size + 1;
	}
	if (r == 0)
		r = index_bytes(v, err);
	if (r == 0)
		r = k3_vocabulary_name_specials(v, config, config_size, err);
	if (r < 0)
		k3_vocabulary_deinit(v);
	return r;
}

void k3_vocabulary_deinit(struct k3_vocabulary *v)
{
	free(v->bytes);
	free(v->offsets);
	free(v->slots);
	free(v->pair_rank);
	for (unsigned i = 0; i < K3_N_SPECIALS; i++)
		free(v->special[i]);
	memset(v, 0, sizeof(*v));
}
