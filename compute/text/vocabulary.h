#pragma once
/*
 * The vocabulary: ranks (tiktoken.model; rank = token id) and the 256 special ids behind them
 * (tokenizer_config.json). Private to compute/text; read only once built.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"

enum { K3_N_SPECIALS = 256 };

#define K3_NO_RANK UINT32_MAX

struct k3_vocabulary_slot {
	uint32_t tag;  /* high half of the hash, compared before the bytes */
	uint32_t rank; /* K3_NO_RANK: free */
};

struct k3_vocabulary {
	char *bytes;       /* all ranks one after the other */
	uint32_t *offsets; /* n_ranks + 1 places in bytes */
	uint32_t n_ranks;
	size_t max_size;                  /* of the longest rank, in bytes */
	struct k3_vocabulary_slot *slots; /* open addressing, slot_mask + 1 of them */
	size_t slot_mask;
	uint32_t byte_rank[256]; /* rank of each single byte */
	uint32_t *pair_rank;     /* [256 * 256] rank of two bytes, or K3_NO_RANK */

	char *special[K3_N_SPECIALS];   /* owned names of ids n_ranks + i */
	bool has_names;                 /* a tokenizer_config.json was read */
	bool starts_special[256];       /* first bytes of the names */
	uint8_t by_size[K3_N_SPECIALS]; /* indices into special, longest name first */
};

/* Fill *v (zeroed by us). ERR_VOCABULARY, ERR_NO_MEMORY; then *v is deinitialised. */
int k3_vocabulary_init(struct k3_vocabulary *v, const char *ranks, size_t ranks_size,
		       const char *config, size_t config_size, struct err *err);
void k3_vocabulary_deinit(struct k3_vocabulary *v);

/* The rank whose bytes are exactly these, or K3_NO_RANK. */
uint32_t k3_vocabulary_find(const struct k3_vocabulary *v, const char *bytes, size_t size);

/* The special token whose name starts at text (the longest such), or K3_NO_RANK; *ret_size is its
 * length. */
uint32_t k3_vocabulary_special_at(const struct k3_vocabulary *v, const char *text, size_t size,
				  size_t *ret_size);

/* vocabulary_special.c: give every special id its name. config NULL: reserved names only. */
int k3_vocabulary_name_specials(struct k3_vocabulary *v, const char *config, size_t config_size,
				struct err *err);
