/*
 * Byte-pair merging by rank: start from single bytes and merge the adjacent pair whose bytes
 * together have the lowest rank, the leftmost of equals, until no pair is a rank. Parts are always
 * ranks themselves, so a pair is known by its bytes alone.
 *
 * Two ways with the same result. Short pieces (nearly all) scan an array for the minimum. Long ones
 * keep pairs in a heap ordered by (rank, place); an entry is stale when the rank noted at its place
 * has changed. Every merge makes at most two new entries, so a piece of n bytes costs
 * O(n log n) whatever it looks like.
 */
#include "compute/text/bpe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shared/must.h"

enum { SHORT_PIECE = 96 };

int k3_ids_reserve(struct k3_ids *ids, size_t n)
{
	size_t capacity = ids->capacity ? ids->capacity : 64;
	uint32_t *grown;

	if (n <= ids->capacity - ids->n)
		return 0;
	while (capacity - ids->n < n)
		capacity *= 2;
	grown = realloc(ids->ids, capacity * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	ids->ids = grown;
	ids->capacity = capacity;
	return 0;
}

void k3_bpe_deinit(struct k3_bpe *b)
{
	free(b->heap);
	free(b->next);
	free(b->prev);
	free(b->pair);
	memset(b, 0, sizeof(*b));
}

/* Rank of the bytes [from, to) of piece. */
static uint32_t rank_of(const struct k3_vocabulary *v, const char *piece, size_t from, size_t to)
{
	const unsigned char *s = (const unsigned char *)piece + from;

	if (to - from == 1)
		return v->byte_rank[s[0]];
	if (to - from == 2)
		return v->pair_rank[s[0] << 8 | s[1]];
	return k3_vocabulary_find(v, piece + from, to - from);
}

static void encode_short(const struct k3_vocabulary *v, const char *piece, size_t size,
			 struct k3_ids *ids)
{
	uint8_t start[SHORT_PIECE + 1]; /* part i is [start[i], start[i + 1]) */
	uint32_t pair[SHORT_PIECE];     /* rank of parts i and i + 1 */
	size_t n = size;

	for (size_t i = 0; i <= size; i++)
		start[i] = (uint8_t)i;
	for (size_t i = 0; i + 1 < size; i++)
		pair[i] = rank_of(v, piece, i, i + 2);
	for (;;) {
		uint32_t best = K3_NO_RANK;
		size_t at = 0;

		for (size_t i = 0; i + 1 < n; i++) {
			if (pair[i] < best) {
				best = pair[i];
				at = i;
			}
		}
		if (best == K3_NO_RANK)
			break;
		memmove(start + at + 1, start + at + 2, n - at - 1);
		memmove(pair + at, pair + at + 1, (n - at - 2) * sizeof(*pair));
		n--;
		if (at + 1 < n)
			pair[at] = rank_of(v, piece, start[at], start[at + 2]);
		if (at > 0)
			pair[at - 1] = rank_of(v, piece, start[at - 1], start[at + 1]);
	}
	for (size_t i = 0; i < n; i++)
		ids->ids[ids->n++] = rank_of(v, piece, start[i], start[i + 1]);
}

static int make_room(struct k3_bpe *b, size_t size)
{
	if (size <= b->capacity)
		return 0;
	k3_bpe_deinit(b);
	b->heap = malloc(3 * size * sizeof(*b->heap));
	b->next = malloc((size + 1) * sizeof(*b->next));
	b->prev = malloc((size + 1) * sizeof(*b->prev));
	b->pair = malloc((size + 1) * sizeof(*b->pair));
	if (!b->heap || !b->next || !b->prev || !b->pair) {
		k3_bpe_deinit(b);
		return -ENOMEM;
	}
	b->capacity = size;
	return 0;
}

/* Put entry into the hole at the place at, or above it up to top. */
static void sift_up(uint64_t *heap, size_t top, size_t at, uint64_t entry)
{
	while (at > top && heap[(at - 1) / 2] > entry) {
		heap[at] = heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap[at] = entry;
}

/*
 * Put entry into the hole at the place at. The hole first sinks to the bottom along the smaller
 * children, then entry rises from there: it comes from the bottom and mostly belongs there, and
 * without a comparison to stop at the way down has no branch that is hard to guess.
 */
static void sift_down(uint64_t *heap, size_t n, size_t at, uint64_t entry)
{
	size_t top = at, child;

	while ((child = 2 * at + 2) < n) {
		child -= heap[child - 1] < heap[child];
		heap[at] = heap[child];
		at = child;
	}
	if (child == n) {
		heap[at] = heap[child - 1];
		at = child - 1;
	}
	sift_up(heap, top, at, entry);
}

static uint64_t pop(uint64_t *heap, size_t *n)
{
	uint64_t top = heap[0];

	--*n;
	if (*n > 0)
		sift_down(heap, *n, 0, heap[*n]);
	return top;
}

/* The pair that starts at place changed: note its rank and queue it. */
static void renew(struct k3_bpe *b, const struct k3_vocabulary *v, const char *piece, size_t size,
		  uint32_t place, size_t *n_heap)
{
	uint32_t middle = b->next[place];

	b->pair[place] = K3_NO_RANK;
	if (middle < size)
		b->pair[place] = rank_of(v, piece, place, b->next[middle]);
	if (b->pair[place] != K3_NO_RANK)
		sift_up(b->heap, 0, (*n_heap)++, (uint64_t)b->pair[place] << 32 | place);
}

static void encode_long(struct k3_bpe *b, const struct k3_vocabulary *v, const char *piece,
			size_t size, struct k3_ids *ids)
{
	size_t n_heap = 0;

	for (uint32_t i = 0; i < size; i++) {
		b->next[i] = i + 1;
		b->prev[i] = i - 1; /* of place 0: never used */
		b->pair[i] = i + 1 < size ? rank_of(v, piece, i, i + 2) : K3_NO_RANK;
		if (b->pair[i] != K3_NO_RANK)
			b->heap[n_heap++] = (uint64_t)b->pair[i] << 32 | i;
	}
	for (size_t i = n_heap / 2; i > 0; i--)
		sift_down(b->heap, n_heap, i - 1, b->heap[i - 1]);
	while (n_heap > 0) {
		uint64_t entry = pop(b->heap, &n_heap);
		uint32_t place = (uint32_t)entry, gone;

		if (b->pair[place] != (uint32_t)(entry >> 32))
			continue; /* stale */
		gone = b->next[place];
		b->next[place] = b->next[gone];
		b->pair[gone] = K3_NO_RANK;
		if (b->next[place] < size)
			b->prev[b->next[place]] = place;
		/* n_heap stays below 3 * size: size entries to begin with, and each of at most
		 * size - 1 merges adds two after it took one. */
		renew(b, v, piece, size, place, &n_heap);
		if (place > 0)
			renew(b, v, piece, size, b->prev[place], &n_heap);
	}
	for (uint32_t i = 0; i < size; i = b->next[i])
		ids->ids[ids->n++] = rank_of(v, piece, i, b->next[i]);
}

int k3_bpe_encode(struct k3_bpe *b, const struct k3_vocabulary *v, const char *piece, size_t size,
		  struct k3_ids *ids)
{
	uint32_t whole = rank_of(v, piece, 0, size);
	int r = k3_ids_reserve(ids, whole == K3_NO_RANK ? size : 1);

	if (r < 0)
		return r;
	if (whole != K3_NO_RANK) {
		ids->ids[ids->n++] = whole;
		return 0;
	}
	if (size <= SHORT_PIECE) {
		encode_short(v, piece, size, ids);
		return 0;
	}
	r = make_room(b, size);
	if (r < 0)
		return r;
	encode_long(b, v, piece, size, ids);
	return 0;
}
