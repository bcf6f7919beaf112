#pragma once
/* Byte-pair merging of one piece of text. Private to compute/text. */
#include <stddef.h>
#include <stdint.h>

#include "compute/text/tokenizer.h"
#include "compute/text/vocabulary.h"

/* Working memory, kept from piece to piece; all zero is a valid start. */
struct k3_bpe {
	uint64_t *heap;  /* [3 * capacity] rank << 32 | place */
	uint32_t *next;  /* [capacity + 1] place where the part that starts here ends */
	uint32_t *prev;  /* [capacity + 1] */
	uint32_t *pair;  /* [capacity + 1] rank of this part with the next one, or K3_NO_RANK */
	size_t capacity; /* bytes of the longest piece so far */
};
void k3_bpe_deinit(struct k3_bpe *b);

/* Append the ids of piece (size > 0 bytes). 0 or -ENOMEM. */
int k3_bpe_encode(struct k3_bpe *b, const struct k3_vocabulary *v, const char *piece, size_t size,
		  struct k3_ids *ids);

/* Room for n more ids. 0 or -ENOMEM. */
int k3_ids_reserve(struct k3_ids *ids, size_t n);
