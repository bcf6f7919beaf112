/*
 * decode(encode(x)) = x for any valid UTF-8; long and repetitive inputs; the streaming decoder.
 * The rates are printed for the reader, they decide nothing.
 */
#include <time.h>

#include "compute/text/utf8.h"
#include "tests/text/vocabularies.h"

static double now(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void check_roundtrip(struct k3_tokenizer *t, const char *text, size_t size)
{
	struct k3_ids ids = { 0 };
	size_t back_size;
	char *back;

	encode(t, text, size, false, &ids);
	back = decode(t, &ids, &back_size);
	CHECK_EQ(back_size, size);
	CHECK(memcmp(back, text, size) == 0);
	free(back);
	k3_ids_deinit(&ids);
}

/* A character of a plane or block chosen first, so that the few assigned ones come up as well. */
static uint32_t random_char(uint64_t *seed)
{
	static const uint32_t blocks[][2] = {
		{ 0x0, 0x7f },         { 0x80, 0x7ff },        { 0x800, 0xffff },
		{ 0x4e00, 0x9fff },    { 0x10000, 0x1ffff },   { 0x20000, 0x3ffff },
		{ 0x40000, 0x10ffff }, { 0x300, 0x36f },       { 0x9, 0xd },
		{ 0x2000, 0x202f },    { 0x10ff00, 0x10ffff },
	};
	uint32_t i = random_below(seed, sizeof(blocks) / sizeof(blocks[0]));
	uint32_t c = blocks[i][0] + random_below(seed, blocks[i][1] - blocks[i][0] + 1);

	return c >= 0xd800 && c <= 0xdfff ? 0xfffd : c;
}

static void roundtrip_random(struct k3_tokenizer *t)
{
	uint64_t seed = 1;
	char text[4096];

	for (unsigned round = 0; round < 2000; round++) {
		uint32_t n = random_below(&seed, 400);
		size_t size = 0;

		while (n--)
			size += put_char(text + size, random_char(&seed));
		check_roundtrip(t, text, size);
	}
	k3_tokenizer_free(t);
}

static void case_random_real(void)
{
	roundtrip_random(real_tokenizer());
}

static void case_random_demo(void)
{
	roundtrip_random(demo_tokenizer());
}

static void case_every_character(void)
{
	struct k3_tokenizer *t = demo_tokenizer();
	char *text = malloc(0x110000 * 4);
	size_t size = 0;

	CHECK(text);
	for (uint32_t c = 0; c < 0x110000; c++)
		if (c < 0xd800 || c > 0xdfff)
			size += put_char(text + size, c);
	check_roundtrip(t, text, size);
	free(text);
	k3_tokenizer_free(t);
}

/* Words from a held-out passage, in random order, size bytes of them. */
static char *make_prose(size_t size)
{
	json_t *golden = json_load_file(test_source("deploy/demo/golden.json"), 0, NULL);
	const char *source = json_string_value(
		json_object_get(json_object_get(golden, "teacher_forced"), "text"));
	uint64_t seed = 7;
	size_t n = 0;
	char *text = malloc(size);

	CHECK(source && text);
	while (n < size) {
		size_t from = random_below(&seed, (uint32_t)strlen(source)), len;

		from += strcspn(source + from, " \n");
		if (!source[from] || !source[from + 1])
			continue;
		len = 1 + strcspn(source + from + 1, " \n");
		if (len > size - n)
			len = size - n;
		memcpy(text + n, source + from, len);
		n += len;
	}
	json_decref(golden);
	return text;
}

static double encode_rate(struct k3_tokenizer *t, const char *text, size_t size, const char *what)
{
	struct k3_ids ids = { 0 };
	double start = now(), seconds;

	encode(t, text, size, false, &ids);
	seconds = now() - start;
	printf("%-28s %8zu bytes %8zu ids %8.2f MB/s\n", what, size, ids.n,
	       1e-6 * (double)size / seconds);
	k3_ids_deinit(&ids);
	return seconds;
}

static void megabytes(struct k3_tokenizer *t)
{
	enum { SIZE = 1000000 };
	static const char *const fills[] = {
		"a",  "A",   " ", "\n", "9", "=", "\xe4\xb8\x80", "\xcc\x81", "\xe0\xb8\x81",
		"aA", "\n ", "' "
	};
	char *text = make_prose(SIZE);

	check_roundtrip(t, text, SIZE);
	(void)encode_rate(t, text, SIZE, "prose");
	for (size_t i = 0; i < sizeof(fills) / sizeof(fills[0]); i++) {
		size_t n = strlen(fills[i]), size = SIZE / n * n;
		char what[40];
		double tenth;

		for (size_t at = 0; at < size; at += n)
			memcpy(text + at, fills[i], n);
		check_roundtrip(t, text, size);
		(void)snprintf(what, sizeof(what), "U+%02X... repeated",
			       (unsigned char)fills[i][0]);
		tenth = encode_rate(t, text, size / 10 / n * n, "a tenth of it");
		printf("time against ten tenths: %.2f\n",
		       encode_rate(t, text, size, what) / (10 * tenth));
	}
	free(text);
	k3_tokenizer_free(t);
}

static void case_megabyte_demo(void)
{
	megabytes(demo_tokenizer());
}

static void case_megabyte_real(void)
{
	megabytes(real_tokenizer());
}

/* The bytes of U+2764 U+FE0F, one token each, come out when their characters are whole. */
static void case_decoder(void)
{
	struct k3_tokenizer *t = demo_tokenizer();
	struct k3_decoder d = { .n_pending = 0 };
	uint32_t byte[256];
	char *out = NULL;
	size_t len = 0;

	for (uint32_t id = 0; id < 1792; id++) {
		size_t n;
		const char *b = k3_tokenizer_bytes(t, id, &n);

		if (n == 1)
			byte[(unsigned char)b[0]] = id;
	}
#define PUSH(value) CHECK_EQ(k3_decoder_push(&d, t, byte[value], false, &out, &len), 0)
	PUSH(0xe2);
	CHECK_EQ(len, 0);
	PUSH(0x9d);
	CHECK_EQ(len, 0);
	PUSH(0xa4);
	CHECK_STR(out, "\xe2\x9d\xa4");
	/* A stray continuation byte; a lead that is cut off by a letter; an impossible second byte.
	 */
	PUSH(0x80);
	CHECK_STR(out, "\xe2\x9d\xa4\xef\xbf\xbd");
	PUSH(0xf0);
	PUSH(0x9f);
	CHECK_EQ(len, 6);
	PUSH('a');
	CHECK_STR(out, "\xe2\x9d\xa4\xef\xbf\xbd\xef\xbf\xbd"
		       "a");
	len = 0;
	PUSH(0xed);
	PUSH(0xa0);
	CHECK_STR(out, "\xef\xbf\xbd\xef\xbf\xbd");
	len = 0;
	PUSH(0xf0);
	PUSH(0x9f);
	CHECK_EQ(k3_decoder_push(&d, t, UINT32_MAX, true, &out, &len), 0);
	CHECK_STR(out, "\xef\xbf\xbd");
	len = 0;
	CHECK_EQ(k3_decoder_push(&d, t, UINT32_MAX, true, &out, &len), 0);
	CHECK_EQ(len, 0);
	CHECK_EQ(k3_decoder_push(&d, t, 1794, true, &out, &len), 0);
	CHECK_STR(out, "<|end_of_msg|>");
	CHECK(k3_decoder_push(&d, t, 2048, false, &out, &len) < 0);
#undef PUSH
	free(out);
	k3_tokenizer_free(t);
}

static const struct test_case cases[] = {
	{ "random_real", case_random_real },         { "random_demo", case_random_demo },
	{ "every_character", case_every_character }, { "megabyte_demo", case_megabyte_demo },
	{ "megabyte_real", case_megabyte_real },     { "decoder", case_decoder },
};
TEST_MAIN(cases)
