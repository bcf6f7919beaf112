/*
 * Text to ids: check the UTF-8, cut into stretches, in control text cut those at special tokens,
 * split what is left into pieces by the pattern and merge each piece. Every step looks at a
 * character a bounded number of times, so the whole is linear in the text.
 * Called by the command line; one tokenizer serves one thread (it keeps working memory).
 */
#include "compute/text/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "compute/text/bpe.h"
#include "compute/text/pretoken.h"
#include "compute/text/utf8.h"
#include "compute/text/vocabulary.h"
#include "shared/attr.h"

struct k3_tokenizer {
	struct k3_vocabulary vocabulary;
	struct k3_pretoken *pretoken;
	struct k3_bpe bpe;
};

struct k3_tokenizer *k3_tokenizer_free(struct k3_tokenizer *t)
{
	if (!t)
		return NULL;
	k3_vocabulary_deinit(&t->vocabulary);
	k3_pretoken_free(t->pretoken);
	k3_bpe_deinit(&t->bpe);
	free(t);
	return NULL;
}

void k3_tokenizer_freep(struct k3_tokenizer **t)
{
	*t = k3_tokenizer_free(*t);
}

int k3_tokenizer_new(struct k3_tokenizer **ret, const char *vocabulary, size_t vocabulary_size,
		     const char *config, size_t config_size, uint32_t n_vocab, struct err *err)
{
	CLEANUP(k3_tokenizer_freep) struct k3_tokenizer *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return err_set(err, ERR_NO_MEMORY, "no memory for a tokenizer");
	r = k3_vocabulary_init(&t->vocabulary, vocabulary, vocabulary_size, config, config_size,
			       err);
	if (r < 0)
		return r;
	if (n_vocab != 0 && n_vocab != t->vocabulary.n_ranks + K3_N_SPECIALS)
		return err_set(
			err, ERR_VOCABULARY,
			"tiktoken.model has %u ranks and %d special ids follow them, but the "
			"model's vocabulary (vocab_size) is %u: these files are not of one "
			"model; give the right tokenizer directory",
			t->vocabulary.n_ranks, K3_N_SPECIALS, n_vocab);
	r = k3_pretoken_new(&t->pretoken, err);
	if (r < 0)
		return r;
	*ret = TAKE(t);
	return 0;
}

void k3_ids_deinit(struct k3_ids *ids)
{
	free(ids->ids);
	memset(ids, 0, sizeof(*ids));
}

static int no_memory(struct err *err)
{
	return err_set(err, ERR_NO_MEMORY, "no memory for the ids of the text");
}

/* A run of text without special tokens. */
static int encode_run(struct k3_tokenizer *t, const char *text, size_t size, struct k3_ids *ids,
		      struct err *err)
{
	if (k3_pretoken_set(t->pretoken, text, size) < 0)
		return no_memory(err);
	for (size_t from = 0, to; from < size; from = to) {
		int r = k3_pretoken_next(t->pretoken, from, &to, err);

		if (r < 0)
			return r;
		r = k3_bpe_encode(&t->bpe, &t->vocabulary, text + from, to - from, ids);
		if (r < 0)
			return no_memory(err);
	}
	return 0;
}

/* One stretch of control text: runs and special tokens in turn. */
static int encode_control(struct k3_tokenizer *t, const char *text, size_t size, struct k3_ids *ids,
			  struct err *err)
{
	size_t from = 0, at = 0;

	while (at < size) {
		size_t n = 0;
		uint32_t id = k3_vocabulary_special_at(&t->vocabulary, text + at, size - at, &n);
		int r;

		if (id == K3_NO_RANK) {
			at++;
			continue;
		}
		r = encode_run(t, text + from, at - from, ids, err);
		if (r < 0)
			return r;
		if (k3_ids_reserve(ids, 1) < 0)
			return no_memory(err);
		ids->ids[ids->n++] = id;
		from = at += n;
	}
	return encode_run(t, text + from, size - from, ids, err);
}

/* The sentence says what the bytes are, for the person who looks for them in a file. */
static int refuse_text(const char *text, size_t size, size_t at, struct err *err)
{
	uint32_t c;
	int n = k3_utf8_step((const unsigned char *)text + at, size - at, &c);

	if (n == 0)
		return err_set(err, ERR_TEXT,
			       "the text is not valid UTF-8: it ends inside the character that "
			       "starts at byte offset %zu",
			       at);
	return err_set(err, ERR_TEXT,
		       "the text is not valid UTF-8: byte 0x%02x at offset %zu starts no character",
		       (unsigned char)text[at], at);
}

int k3_tokenizer_encode(struct k3_tokenizer *t, const char *text, size_t size, bool control,
			struct k3_ids *ids, struct err *err)
{
	struct k3_stretches stretches = { .text = text, .size = size };
	size_t n_before = ids->n, invalid = k3_utf8_check(text, size), from, to;
	int r = 0;

	if (invalid < size)
		return refuse_text(text, size, invalid, err);
	if (control && !t->vocabulary.has_names)
		return err_set(err, ERR_VOCABULARY,
			       "control text needs the names of the special tokens, which are in "
			       "tokenizer_config.json; put that file beside tiktoken.model");
	while (r == 0 && k3_stretches_next(&stretches, &from, &to)) {
		if (control)
			r = encode_control(t, text + from, to - from, ids, err);
		else
			r = encode_run(t, text + from, to - from, ids, err);
	}
	if (r < 0)
		ids->n = n_before;
	return r;
}

const char *k3_tokenizer_bytes(const struct k3_tokenizer *t, uint32_t id, size_t *ret_size)
{
	const struct k3_vocabulary *v = &t->vocabulary;

	if (id < v->n_ranks) {
		*ret_size = v->offsets[id + 1] - v->offsets[id];
		return v->bytes + v->offsets[id];
	}
	if (!k3_tokenizer_is_special(t, id))
		return NULL;
	*ret_size = strlen(v->special[id - v->n_ranks]);
	return v->special[id - v->n_ranks];
}

bool k3_tokenizer_is_special(const struct k3_tokenizer *t, uint32_t id)
{
	return id >= t->vocabulary.n_ranks && id - t->vocabulary.n_ranks < K3_N_SPECIALS;
}

uint32_t k3_tokenizer_special(const struct k3_tokenizer *t, const char *text)
{
	for (unsigned i = 0; i < K3_N_SPECIALS; i++)
		if (strcmp(t->vocabulary.special[i], text) == 0)
			return t->vocabulary.n_ranks + i;
	return UINT32_MAX;
}
