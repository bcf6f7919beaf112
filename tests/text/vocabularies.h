#pragma once
/* What the text tests have in common: vocabularies, encoding that must succeed, comparing ids. */
#include <jansson.h>

#include "compute/text/tokenizer.h"
#include "tests/harness/test.h"

/* The real vocabulary; skips the case when it is not here. */
struct k3_tokenizer *real_tokenizer(void);
/* deploy/demo. */
struct k3_tokenizer *demo_tokenizer(void);

/* Encode, which must succeed; the ids are appended. */
void encode(struct k3_tokenizer *t, const char *text, size_t size, bool control,
	    struct k3_ids *ids);
/* Fails with both lists and what unless ids are the numbers of the JSON array. */
void check_ids(const struct k3_ids *ids, const json_t *expected, const char *what);

/* Bytes of the ids one after the other, through the streaming decoder; heap string. */
char *decode(const struct k3_tokenizer *t, const struct k3_ids *ids, size_t *ret_size);

/* A small generator with a fixed seed, the same everywhere. */
uint32_t random_below(uint64_t *state, uint32_t n);
/* Append the UTF-8 of c, returns its length. */
size_t put_char(char *out, uint32_t c);
