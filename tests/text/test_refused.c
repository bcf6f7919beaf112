/* What must be refused: text that is not UTF-8 (with its offset) and damaged vocabulary files. */
#include "compute/text/utf8.h"
#include "shared/err.h"
#include "tests/text/vocabularies.h"

static const struct {
	const char *bytes;
	size_t size, offset; /* of the first invalid sequence; size: valid */
} texts[] = {
	{ "abc\x80", 4, 3 }, /* continuation without a lead */
	{ "\xbf", 1, 0 },
	{ "a\xc0\x80", 3, 1 },             /* overlong NUL */
	{ "\xc1\xbf", 2, 0 },              /* overlong, two bytes */
	{ "abcdefgh\xe0\x80\x80", 11, 8 }, /* overlong, three bytes */
	{ "\xe0\x9f\xbf", 3, 0 },
	{ "\xe0\xa0\x80", 3, 3 },   /* U+0800: valid */
	{ "ab\xed\xa0\x80", 5, 2 }, /* surrogates */
	{ "ab\xed\xbf\xbf", 5, 2 },
	{ "ab\xed\x9f\xbf", 5, 5 },      /* U+D7FF: valid */
	{ "\xf0\x8f\xbf\xbf", 4, 0 },    /* overlong, four bytes */
	{ "\xf0\x90\x80\x80", 4, 4 },    /* U+10000: valid */
	{ "\xf4\x8f\xbf\xbf", 4, 4 },    /* U+10FFFF: valid */
	{ "xyz\xf4\x90\x80\x80", 7, 3 }, /* beyond U+10FFFF */
	{ "\xf5\x80\x80\x80", 4, 0 },
	{ "\xf8\x88\x80\x80\x80", 5, 0 }, /* five bytes */
	{ "\xfe", 1, 0 },
	{ "\xff", 1, 0 },
	{ "good \xc3", 6, 5 }, /* cut off */
	{ "good \xe2\x82", 7, 5 },
	{ "good \xf0\x9f\x98", 8, 5 },
	{ "\xe2\x82\x41", 3, 0 }, /* broken by a letter */
	{ "\xc3\xa9\xe2\x28\xa1", 5, 2 },
	{ "\xf0\x9f\x98\x80\xf0\x9f\x28", 7, 4 },
	{ "a\0b\xff", 4, 3 }, /* NUL is a character */
	{ "aaaaaaaaaaaaaaaa\xa4"
	  "aaaaaaaa",
	  25, 16 }, /* behind whole words of ASCII */
};

static void case_utf8(void)
{
	struct k3_tokenizer *t = demo_tokenizer();

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		/* A heap copy without anything behind it: reading on is an error there. */
		char *copy = malloc(texts[i].size), offset[32];
		struct k3_ids ids = { 0 };
		struct err err = { 0 };
		int r;

		CHECK(copy);
		memcpy(copy, texts[i].bytes, texts[i].size);
		CHECK_MSG(k3_utf8_check(copy, texts[i].size) == texts[i].offset,
			  "text %zu: offset %zu", i, k3_utf8_check(copy, texts[i].size));
		r = k3_tokenizer_encode(t, copy, texts[i].size, false, &ids, &err);
		if (texts[i].offset == texts[i].size) {
			CHECK_EQ(r, 0);
		} else {
			(void)snprintf(offset, sizeof(offset), "offset %zu", texts[i].offset);
			CHECK(r < 0);
			CHECK_EQ(err.code, ERR_TEXT);
			CHECK_MSG(strstr(err.text, offset), "\"%s\" lacks \"%s\"", err.text,
				  offset);
			CHECK_EQ(ids.n, 0);
		}
		free(copy);
		k3_ids_deinit(&ids);
	}
	k3_tokenizer_free(t);
}

/* Every sequence of two bytes, and of three and four by sampling, against the rule itself. */
static size_t valid_prefix(const unsigned char *s, size_t n)
{
	size_t at = 0;

	while (at < n) {
		unsigned len = s[at] < 0x80   ? 1
			       : s[at] < 0xc0 ? 0
			       : s[at] < 0xe0 ? 2
			       : s[at] < 0xf0 ? 3
					      : 4;
		static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
		uint32_t c = len <= 1 ? s[at] : s[at] & (0x7fu >> len);

		if (len == 0 || at + len > n || s[at] >= 0xf8)
			return at;
		for (unsigned i = 1; i < len; i++) {
			if ((s[at + i] & 0xc0) != 0x80)
				return at;
			c = c << 6 | (s[at + i] & 0x3f);
		}
		if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
			return at;
		at += len;
	}
	return n;
}

static void case_utf8_all(void)
{
	uint64_t seed = 3;

	for (uint32_t i = 0; i < 0x1000000; i++) {
		unsigned char s[4] = { (unsigned char)(i >> 16), (unsigned char)(i >> 8),
				       (unsigned char)i, 0 };

		CHECK_EQ(k3_utf8_check((char *)s, 3), valid_prefix(s, 3));
	}
	for (uint32_t i = 0; i < 0x1000000; i++) {
		unsigned char s[4] = { (unsigned char)(0xee + i % 8), (unsigned char)(i >> 8),
				       (unsigned char)(i >> 16),
				       (unsigned char)random_below(&seed, 256) };

		CHECK_EQ(k3_utf8_check((char *)s, 4), valid_prefix(s, 4));
	}
}

static char *vocabulary;
static size_t vocabulary_size;

/* The file must be refused with a sentence that has word in it. */
static void refused(const char *v, size_t v_size, const char *config, uint32_t n_vocab,
		    const char *word)
{
	struct k3_tokenizer *t = NULL;
	struct err err = { 0 };
	int r = k3_tokenizer_new(&t, v, v_size, config, config ? strlen(config) : 0, n_vocab, &err);

	CHECK_MSG(r < 0, "accepted where \"%s\" was expected", word);
	CHECK_EQ(err.code, ERR_VOCABULARY);
	CHECK_MSG(strstr(err.text, word), "\"%s\" lacks \"%s\"", err.text, word);
	CHECK(!t);
}

/* A copy of the vocabulary with line (from 0) replaced by text (no newline added). */
static void refused_line(unsigned line, const char *text, const char *word)
{
	char *copy = malloc(vocabulary_size + strlen(text) + 1), *p = vocabulary;
	size_t n;

	CHECK(copy);
	for (unsigned i = 0; i < line; i++)
		p = strchr(p, '\n') + 1;
	n = (size_t)(p - vocabulary);
	memcpy(copy, vocabulary, n);
	memcpy(copy + n, text, strlen(text));
	p = strchr(p, '\n') + 1;
	memcpy(copy + n + strlen(text), p, vocabulary_size - (size_t)(p - vocabulary));
	n += strlen(text) + vocabulary_size - (size_t)(p - vocabulary);
	refused(copy, n, NULL, 0, word);
	free(copy);
}

static void case_vocabulary(void)
{
	size_t half;

	vocabulary = test_read_file(test_source("deploy/demo/tiktoken.model"), &vocabulary_size);
	refused("", 0, NULL, 0, "no rank for the single byte");
	refused_line(300, "b!Rl 300\n", "line 301: the bytes are not base64");
	refused_line(300, "b3Rl= 300\n", "line 301: the bytes are not base64");
	refused_line(300, "=b3R 300\n", "line 301: the bytes are not base64");
	refused_line(300, "b3R= 300\n", "line 301: the bytes are not base64"); /* bits in the pad */
	refused_line(300, " 300\n", "line 301: the bytes are not base64");
	refused_line(300, "b3RlcXE=300\n", "line 301: no space");
	refused_line(300, "\n", "line 301: no space");
	refused_line(300, "b3RlcXE= \n", "line 301: the rank is not a number");
	refused_line(300, "b3RlcXE= 3x0\n", "line 301: the rank is not a number");
	refused_line(300, "b3RlcXE= -300\n", "line 301: the rank is not a number");
	refused_line(300, "b3RlcXE= 99999999999\n", "line 301: the rank is not a number");
	refused_line(300, "b3RlcXE= 301\n", "line 301 has rank 301 where 300 is expected");
	refused_line(300, "b3RlcXE= 299\n", "line 301 has rank 299 where 300 is expected");
	refused_line(300, "", "line 301 has rank 301");
	refused_line(300, "IQ== 300\n", "line 301 has the same bytes as line 1");
	refused_line(5, "b3RlcXF4 5\n", "no rank for the single byte 0x26");
	half = vocabulary_size / 2;
	while (vocabulary[half - 1] != ' ')
		half++;
	refused(vocabulary, half, NULL, 0, "the rank is not a number");
	refused(vocabulary, vocabulary_size, NULL, 163840, "1792 ranks");
	free(vocabulary);
}

static void case_config(void)
{
	vocabulary = test_read_file(test_source("deploy/demo/tiktoken.model"), &vocabulary_size);
#define REFUSED(config, word) refused(vocabulary, vocabulary_size, config, 2048, word)
	REFUSED("{", "tokenizer_config.json line 1");
	REFUSED("[]", "no object added_tokens_decoder");
	REFUSED("{\"added_tokens_decoder\": []}", "no object added_tokens_decoder");
	REFUSED("{\"added_tokens_decoder\": {\"x\": {\"content\": \"[BOS]\"}}}", "\"x\"");
	REFUSED("{\"added_tokens_decoder\": {\"1791\": {\"content\": \"[BOS]\"}}}", "1791");
	REFUSED("{\"added_tokens_decoder\": {\"2048\": {\"content\": \"[BOS]\"}}}", "2048");
	REFUSED("{\"added_tokens_decoder\": {\"163584\": {\"content\": \"[BOS]\"}}}", "same model");
	REFUSED("{\"added_tokens_decoder\": {\"1792\": {}}}", "no content");
	REFUSED("{\"added_tokens_decoder\": {\"1792\": {\"content\": \"\"}}}", "no content");
	REFUSED("{\"added_tokens_decoder\": {\"1792\": {\"content\": \"a\"},"
		"\"1793\": {\"content\": \"a\"}}}",
		"both named");
	REFUSED("{\"added_tokens_decoder\": {\"1792\": {\"content\": \"a\"},"
		"\"1792\": {\"content\": \"b\"}}}",
		"tokenizer_config.json line 1");
#undef REFUSED
	free(vocabulary);
}

static void case_control_without_names(void)
{
	struct k3_tokenizer *t = NULL;
	struct k3_ids ids = { 0 };
	struct err err = { 0 };
	size_t n;

	vocabulary = test_read_file(test_source("deploy/demo/tiktoken.model"), &vocabulary_size);
	CHECK_EQ(k3_tokenizer_new(&t, vocabulary, vocabulary_size, NULL, 0, 0, &err), 0);
	CHECK_STR(k3_tokenizer_bytes(t, 1794, &n), "<|reserved_token_1794|>");
	CHECK(k3_tokenizer_encode(t, "a", 1, true, &ids, &err) < 0);
	CHECK_EQ(err.code, ERR_VOCABULARY);
	CHECK(strstr(err.text, "tokenizer_config.json"));
	encode(t, "a", 1, false, &ids);
	CHECK_EQ(ids.n, 1);
	k3_ids_deinit(&ids);
	k3_tokenizer_free(t);
	free(vocabulary);
}

static const struct test_case cases[] = {
	{ "utf8", case_utf8 },
	{ "utf8_all", case_utf8_all },
	{ "vocabulary", case_vocabulary },
	{ "config", case_config },
	{ "control_without_names", case_control_without_names },
};
TEST_MAIN(cases)
