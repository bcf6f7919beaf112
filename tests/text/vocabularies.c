#include "tests/text/vocabularies.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "shared/err.h"

static struct k3_tokenizer *load(const char *vocabulary, const char *config, uint32_t n_vocab)
{
	struct k3_tokenizer *t = NULL;
	struct err err = { 0 };
	size_t vocabulary_size, config_size;
	char *v = test_read_file(vocabulary, &vocabulary_size),
	     *c = test_read_file(config, &config_size);

	CHECK_MSG(k3_tokenizer_new(&t, v, vocabulary_size, c, config_size, n_vocab, &err) == 0,
		  "%s: %s", vocabulary, err.text);
	free(v);
	free(c);
	return t;
}

struct k3_tokenizer *real_tokenizer(void)
{
	return load(test_data("tokenizer/tiktoken.model"),
		    test_data("tokenizer/tokenizer_config.json"), 163840);
}

struct k3_tokenizer *demo_tokenizer(void)
{
	return load(test_source("deploy/demo/tiktoken.model"),
		    test_source("deploy/demo/tokenizer_config.json"), 2048);
}

void encode(struct k3_tokenizer *t, const char *text, size_t size, bool control, struct k3_ids *ids)
{
	struct err err = { 0 };

	CHECK_MSG(k3_tokenizer_encode(t, text, size, control, ids, &err) == 0, "%s", err.text);
}

void check_ids(const struct k3_ids *ids, const json_t *expected, const char *what)
{
	size_t n = json_array_size(expected), i = 0;

	while (i < n && i < ids->n &&
	       ids->ids[i] == json_integer_value(json_array_get(expected, i)))
		i++;
	if (i < n || i < ids->n)
		test_fail(__FILE__, __LINE__,
			  "%s: %zu ids, expected %zu; the first difference is at %zu: %lld, "
			  "expected %lld",
			  what, ids->n, n, i, i < ids->n ? (long long)ids->ids[i] : -1,
			  i < n ? (long long)json_integer_value(json_array_get(expected, i)) : -1);
}

char *decode(const struct k3_tokenizer *t, const struct k3_ids *ids, size_t *ret_size)
{
	struct k3_decoder d = { .n_pending = 0 };
	char *out = NULL;
	size_t len = 0;

	for (size_t i = 0; i < ids->n; i++)
		CHECK_EQ(k3_decoder_push(&d, t, ids->ids[i], false, &out, &len), 0);
	CHECK_EQ(k3_decoder_push(&d, t, UINT32_MAX, true, &out, &len), 0);
	*ret_size = len;
	return out;
}

uint32_t random_below(uint64_t *state, uint32_t n)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((*state >> 33) % n);
}

size_t put_char(char *out, uint32_t c)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 0x3f));
		out[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 0x3f));
	out[2] = (char)(0x80 | (c >> 6 & 0x3f));
	out[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}
