#pragma once
/* What the user gave us to read: lists of token ids, tokenizer files, the prompt. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/text/tokenizer.h"
#include "shared/err.h"
#include "shared/option.h"

struct k3_options;

/* Append one id; 0 or ERR_NO_MEMORY. */
int k3_ids_push(struct k3_ids *ids, uint32_t id, struct err *err);
bool k3_ids_contain(const uint32_t *ids, size_t n, uint32_t id);
/* Append the ids in size bytes of text: decimal numbers separated by commas, white space or
 * brackets. name is for messages ("--ids"). ERR_USAGE with the place of anything else. */
int k3_ids_parse(const char *text, size_t size, const char *name, struct k3_ids *ids,
		 struct err *err);

/* The bytes of a file, a pipe, or with "-" of standard input. ERR_USAGE. Caller frees. */
int k3_input_read(const char *path, char **ret, size_t *ret_size, struct err *err);

enum { K3_TOKENIZER_NONE = 1 };
/* Open the tokenizer of the first directory that has a tiktoken.model; K3_TOKENIZER_NONE when none
 * has. n_vocab as in k3_tokenizer_new. */
int k3_tokenizer_open(struct k3_tokenizer **ret, const struct option_list *dirs, uint32_t n_vocab,
		      struct err *err);

/* The ids of the one prompt that o gives (checked by the caller). t may be NULL: then text is
 * refused. Every id is < n_vocab; an empty prompt is refused. */
int k3_prompt_read(const struct k3_options *o, struct k3_tokenizer *t, uint32_t n_vocab,
		   struct k3_ids *ids, struct err *err);
