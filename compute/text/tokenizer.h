#pragma once
/*
 * The K3 tokenizer: rank BPE over tiktoken.model with the released split pattern, special tokens
 * from tokenizer_config.json. k3-architecture sections 5.1 to 5.3.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"

struct k3_tokenizer;

/* vocabulary: bytes of tiktoken.model; config: bytes of tokenizer_config.json or NULL (then all
 * special ids have reserved names and control text is refused). Names are for messages. n_vocab:
 * rows of the model's embedding (0: not checked). ERR_VOCABULARY. The bytes may be freed
 * afterwards. */
int k3_tokenizer_new(struct k3_tokenizer **ret, const char *vocabulary, size_t vocabulary_size,
		     const char *config, size_t config_size, uint32_t n_vocab, struct err *err);
struct k3_tokenizer *k3_tokenizer_free(struct k3_tokenizer *t);
void k3_tokenizer_freep(struct k3_tokenizer **t);

struct k3_ids {
	uint32_t *ids; /* owned; free() */
	size_t n, capacity;
};
void k3_ids_deinit(struct k3_ids *ids);

/* Append the ids of text (size bytes of UTF-8). control: special strings become their ids;
 * otherwise they are ordinary text. ERR_TEXT with the byte offset of the first invalid sequence.
 * Linear time. */
int k3_tokenizer_encode(struct k3_tokenizer *t, const char *text, size_t size, bool control,
			struct k3_ids *ids, struct err *err);

/* Bytes of one id: borrowed, *ret_size bytes, not NUL-terminated; special ids give their name. NULL
 * for an id that does not exist. A token may end inside a UTF-8 sequence. */
const char *k3_tokenizer_bytes(const struct k3_tokenizer *t, uint32_t id, size_t *ret_size);
bool k3_tokenizer_is_special(const struct k3_tokenizer *t, uint32_t id);
/* The id of a special token by its exact text, or UINT32_MAX. */
uint32_t k3_tokenizer_special(const struct k3_tokenizer *t, const char *text);

/* Streaming output: collects token bytes and gives out whole UTF-8 characters only; what never
 * becomes one is given out as U+FFFD. */
struct k3_decoder {
	char pending[8];
	size_t n_pending;
};
/* Append text for id to out (heap string, owned by the caller, grown by us; start with NULL and 0).
 * final: flush. id UINT32_MAX: nothing to add. 0, -EINVAL for an id that does not exist, or
 * -ENOMEM. */
int k3_decoder_push(struct k3_decoder *d, const struct k3_tokenizer *t, uint32_t id, bool final,
		    char **out, size_t *out_len);
