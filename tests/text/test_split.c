/*
 * The whole way from text to ids against a second, naive implementation written from the
 * description: a hand-written matcher of the eight alternatives over an alphabet whose classes are
 * listed here, and merging by scanning all pairs. Then the cuts of very long texts, special tokens,
 * and characters whose class is easily got wrong.
 */
#include "tests/text/vocabularies.h"

#include "compute/text/pretoken.h"

enum char_class { UPPER, LOWER, BOTH, HAN, HAN_LETTER, NUMBER, SPACE, NEWLINE, OTHER, MARK };

/* Classes by the Unicode character database; HAN_LETTER: Han and a letter, HAN: Han, no letter. */
static const struct {
	uint32_t c;
	enum char_class class;
} alphabet[] = {
	{ 'a', LOWER },          { 's', LOWER },
	{ 't', LOWER },          { 'l', LOWER },
	{ 'r', LOWER },          { 'e', LOWER },
	{ 'v', LOWER },          { 'm', LOWER },
	{ 'D', UPPER },          { 'S', UPPER },
	{ 'L', UPPER },          { 'T', UPPER },
	{ '\'', OTHER },         { '\'', OTHER },
	{ '.', OTHER },          { '/', OTHER },
	{ '1', NUMBER },         { '9', NUMBER },
	{ 0xbd, NUMBER },        { 0x663, NUMBER },
	{ ' ', SPACE },          { ' ', SPACE },
	{ '\t', SPACE },         { 0xa0, SPACE },
	{ 0x3000, SPACE },       { 0x85, SPACE },
	{ 0x2028, SPACE },       { '\n', NEWLINE },
	{ '\r', NEWLINE },       { 0x180e, OTHER },
	{ 0x200b, OTHER },       { 0x1c, OTHER },
	{ 0xe9, LOWER },         { 0xc9, UPPER },
	{ 0x17f, LOWER },        { 0x1c5, UPPER },
	{ 0x2b0, BOTH },         { 0x3042, BOTH },
	{ 0xac00, BOTH },        { 0x5d0, BOTH },
	{ 0x30fc, BOTH },        { 0x3006, BOTH },
	{ 0x301, MARK },         { 0x5b0, MARK },
	{ 0x302a, MARK },        { 0x20dd, MARK },
	{ 0x4e00, HAN_LETTER },  { 0x3005, HAN_LETTER },
	{ 0x20000, HAN_LETTER }, { 0x3400, HAN_LETTER },
	{ 0x3007, HAN },         { 0x3021, HAN },
	{ 0x2e80, HAN },         { 0x3001, OTHER },
	{ 0x30fb, OTHER },       { 0x3190, OTHER },
	{ 0x3220, NUMBER },      { 0x1f600, OTHER },
	{ 0x1d400, UPPER },      { 0x10428, LOWER },
	{ 0xe000, OTHER },       { 0x10ffff, OTHER },
	{ 0x378, OTHER },        { 0, OTHER },
	{ 0x24b6, OTHER },       { 0xaa, BOTH },
	{ 0x31350, HAN_LETTER }, { 0x11f04, BOTH },
	{ 0x11f00, MARK },       { 0x11f50, NUMBER },
	{ 0xa7cb, UPPER },       { 0x1c8a, LOWER },
};

enum { N_ALPHABET = sizeof(alphabet) / sizeof(alphabet[0]), LENGTH = 48 };

/* A string as indices into the alphabet; n is its end. */
struct string {
	uint8_t at[LENGTH];
	size_t n;
};

static enum char_class class_at(const struct string *s, size_t i)
{
	return alphabet[s->at[i]].class;
}

static bool is_han(enum char_class c)
{
	return c == HAN || c == HAN_LETTER;
}

static bool is_space(enum char_class c)
{
	return c == SPACE || c == NEWLINE;
}

static bool in_upper(enum char_class c)
{
	return c == UPPER || c == BOTH || c == MARK;
}

static bool in_lower(enum char_class c)
{
	return c == LOWER || c == BOTH || c == MARK;
}

static bool is_number(const struct string *s, size_t i)
{
	/* U+3007 and U+3021 are Han and numbers, U+2E80 is a Han symbol. */
	return class_at(s, i) == NUMBER ||
	       (class_at(s, i) == HAN && alphabet[s->at[i]].c >= 0x3000);
}

static bool is_letter(enum char_class c)
{
	return c == UPPER || c == LOWER || c == BOTH || c == HAN_LETTER;
}

static uint32_t folded(const struct string *s, size_t i)
{
	uint32_t c = i < s->n ? alphabet[s->at[i]].c : 0;

	return c == 0x17f ? 's' : c >= 'A' && c <= 'Z' ? c + 32 : c;
}

static size_t contraction(const struct string *s, size_t i)
{
	static const char *const tails[] = { "s", "t", "re", "ve", "m", "ll", "d" };

	if (i >= s->n || alphabet[s->at[i]].c != '\'')
		return i;
	for (size_t k = 0; k < sizeof(tails) / sizeof(tails[0]); k++)
		if (folded(s, i + 1) == (uint32_t)tails[k][0] &&
		    (!tails[k][1] || folded(s, i + 2) == (uint32_t)tails[k][1]))
			return i + 1 + strlen(tails[k]);
	return i;
}

/* Alternatives 2 and 3 from i (behind the optional character): end, or 0. */
static size_t word(const struct string *s, size_t i, bool second)
{
	size_t from = i, uppers;

	while (i < s->n && in_upper(class_at(s, i)))
		i++;
	uppers = i;
	if (second) {
		/* Give back until a lower one follows. */
		while (!(i < s->n && in_lower(class_at(s, i)))) {
			if (i == from)
				return 0;
			i--;
		}
	} else if (uppers == from) {
		return 0;
	}
	while (i < s->n && in_lower(class_at(s, i)))
		i++;
	return contraction(s, i);
}

static size_t piece_end(const struct string *s, size_t from)
{
	enum char_class first = class_at(s, from);
	size_t i = from, end;

	while (i < s->n && is_han(class_at(s, i)))
		i++;
	if (i > from)
		return i;
	for (int second = 1; second >= 0; second--) {
		if (first != NEWLINE && !is_letter(first) && !is_number(s, from) &&
		    (end = word(s, from + 1, second)))
			return end;
		if ((end = word(s, from, second)))
			return end;
	}
	while (i < s->n && i < from + 3 && is_number(s, i))
		i++;
	if (i > from)
		return i;
	i = from + (alphabet[s->at[from]].c == ' ');
	end = i;
	while (end < s->n && !is_space(class_at(s, end)) && !is_letter(class_at(s, end)) &&
	       !is_number(s, end))
		end++;
	if (end > i) {
		while (end < s->n && class_at(s, end) == NEWLINE)
			end++;
		return end;
	}
	for (end = from; end < s->n && is_space(class_at(s, end)); end++)
		;
	for (i = end; i > from; i--)
		if (class_at(s, i - 1) == NEWLINE)
			return i;
	return end < s->n && end > from + 1 ? end - 1 : end;
}

/* Merge by scanning: parts are [start[i], start[i + 1]). */
static uint32_t find(const struct k3_tokenizer *t, uint32_t n_ranks, const char *s, size_t size)
{
	for (uint32_t id = 0; id < n_ranks; id++) {
		size_t n;
		const char *b = k3_tokenizer_bytes(t, id, &n);

		if (n == size && memcmp(b, s, n) == 0)
			return id;
	}
	return UINT32_MAX;
}

static void merge_naively(const struct k3_tokenizer *t, const char *s, size_t size,
			  struct k3_ids *ids)
{
	size_t start[LENGTH * 4 + 1], n = size;
	uint32_t whole = find(t, 1792, s, size);

	if (whole != UINT32_MAX) {
		ids->ids[ids->n++] = whole;
		return;
	}
	for (size_t i = 0; i <= size; i++)
		start[i] = i;
	for (;;) {
		uint32_t best = UINT32_MAX;
		size_t at = 0;

		for (size_t i = 0; i + 2 <= n; i++) {
			uint32_t r = find(t, 1792, s + start[i], start[i + 2] - start[i]);

			if (r < best) {
				best = r;
				at = i;
			}
		}
		if (best == UINT32_MAX)
			break;
		memmove(&start[at + 1], &start[at + 2], (n - at - 1) * sizeof(*start));
		n--;
	}
	for (size_t i = 0; i < n; i++)
		ids->ids[ids->n++] = find(t, 1792, s + start[i], start[i + 1] - start[i]);
}

static size_t to_text(const struct string *s, size_t from, size_t to, char *out)
{
	size_t size = 0;

	for (size_t i = from; i < to; i++)
		size += put_char(out + size, alphabet[s->at[i]].c);
	return size;
}

static void fail_at(const struct string *s, const char *what)
{
	for (size_t i = 0; i < s->n; i++)
		fprintf(stderr, "U+%04X ", alphabet[s->at[i]].c);
	fprintf(stderr, "\n");
	test_fail(__FILE__, __LINE__, "%s", what);
}

/* Pieces of random strings; the classes decide, not the bytes, so most strings are short. */
static void case_pieces(void)
{
	struct k3_pretoken *p = NULL;
	uint64_t seed = 11;

	CHECK_EQ(k3_pretoken_new(&p, NULL), 0);
	for (unsigned round = 0; round < 300000; round++) {
		struct string s = { .n = 1 + random_below(&seed, LENGTH - 1) };
		uint32_t few = 2 + random_below(&seed, N_ALPHABET - 2), first;
		char text[LENGTH * 4];
		size_t size, at = 0;

		/* Some strings of few different characters, so that runs come up. */
		first = random_below(&seed, N_ALPHABET);
		for (size_t i = 0; i < s.n; i++)
			s.at[i] = (uint8_t)((first + random_below(&seed, few)) % N_ALPHABET);
		size = to_text(&s, 0, s.n, text);
		CHECK_EQ(k3_pretoken_set(p, text, size), 0);
		for (size_t i = 0, end; i < s.n; i = end) {
			size_t expected, got = 0;
			char piece[LENGTH * 4];

			end = piece_end(&s, i);
			expected = at + to_text(&s, i, end, piece);
			CHECK_EQ(k3_pretoken_next(p, at, &got, NULL), 0);
			if (got != expected)
				fail_at(&s, "pieces differ");
			at = got;
		}
	}
	k3_pretoken_free(p);
}

static void case_ids(void)
{
	struct k3_tokenizer *t = demo_tokenizer();
	uint64_t seed = 5;

	for (unsigned round = 0; round < 150; round++) {
		struct string s = { .n = 1 + random_below(&seed, LENGTH - 1) };
		uint32_t store[LENGTH * 4];
		struct k3_ids expected = { .ids = store }, ids = { 0 };
		char text[LENGTH * 4];

		/* Mostly the letters at the front of the alphabet. */
		for (size_t i = 0; i < s.n; i++)
			s.at[i] = (uint8_t)random_below(&seed, round % 4 ? 24 : N_ALPHABET);
		for (size_t i = 0, end; i < s.n; i = end) {
			end = piece_end(&s, i);
			merge_naively(t, text, to_text(&s, i, end, text), &expected);
		}
		encode(t, text, to_text(&s, 0, s.n, text), false, &ids);
		if (ids.n != expected.n || memcmp(ids.ids, store, ids.n * sizeof(*store)) != 0)
			fail_at(&s, "ids differ");
		k3_ids_deinit(&ids);
	}
	k3_tokenizer_free(t);
}

/* One long piece takes the other way of merging: it must agree with the naive one too. */
static void case_long_piece(void)
{
	struct k3_tokenizer *t = demo_tokenizer();
	uint64_t seed = 9;

	for (unsigned round = 0; round < 12; round++) {
		uint32_t store[LENGTH * 4];
		struct k3_ids expected = { .ids = store }, ids = { 0 };
		char text[LENGTH * 4];
		size_t size = 97 + random_below(&seed, sizeof(text) - 97);

		for (size_t i = 0; i < size; i++)
			text[i] = "etahonsir"[random_below(&seed, round < 6 ? 9 : 2)];
		merge_naively(t, text, size, &expected);
		encode(t, text, size, false, &ids);
		CHECK_EQ(ids.n, expected.n);
		CHECK(memcmp(ids.ids, store, ids.n * sizeof(*store)) == 0);
		k3_ids_deinit(&ids);
	}
	k3_tokenizer_free(t);
}

/* Lengths in characters of the stretches of n times fill[0], n times fill[1], ... */
static void check_stretches(const size_t *counts, const char *const *fills, size_t n_fills,
			    const size_t *expected, size_t n_expected)
{
	struct k3_stretches s = { 0 };
	size_t size = 0, from, to, i = 0;
	char *text;

	for (size_t k = 0; k < n_fills; k++)
		size += counts[k] * strlen(fills[k]);
	text = malloc(size + 1);
	CHECK(text);
	size = 0;
	for (size_t k = 0; k < n_fills; k++)
		for (size_t c = 0; c < counts[k]; c++, size += strlen(fills[k]))
			memcpy(text + size, fills[k], strlen(fills[k]));
	s.text = text;
	s.size = size;
	while (k3_stretches_next(&s, &from, &to)) {
		size_t chars = 0;

		for (size_t k = from; k < to; k++)
			chars += ((unsigned char)text[k] & 0xc0) != 0x80;
		CHECK_MSG(i < n_expected, "more than %zu stretches", n_expected);
		CHECK_EQ(chars, expected[i]);
		i++;
	}
	CHECK_EQ(i, n_expected);
	free(text);
}

static void case_stretches(void)
{
	static const char *const a[] = { "a", " ", "\xe4\xb8\x80", "\xe2\x80\x83" };
	static const char *const words[] = { "a", " ", "b", " ", "c" };

#define STRETCHES(fills, n, counts, ...)                                               \
	check_stretches((const size_t[])counts, fills, n, (const size_t[])__VA_ARGS__, \
			sizeof((const size_t[])__VA_ARGS__) / sizeof(size_t))
#define LIST(...) { __VA_ARGS__ }
	STRETCHES(a, 1, LIST(25000), { 25000 });
	STRETCHES(a, 1, LIST(25001), { 25000, 1 });
	STRETCHES(a, 1, LIST(60000), { 25000, 25000, 10000 });
	/* Runs of the two kinds are counted apart: no cut. */
	STRETCHES(a, 2, LIST(25000, 25000), { 50000 });
	STRETCHES(a, 2, LIST(25001, 25000), { 25000, 25001 });
	/* The cut starts a run, the text before it in the stretch stays with the first part. */
	STRETCHES(words, 3, LIST(10, 1, 25001), { 25011, 1 });
	/* Characters, not bytes; U+2003 is a blank. */
	STRETCHES(a, 4, LIST(1, 1, 25000, 25001), { 50002, 1 });
	/* Blocks of 400,000 from the start of the text, each with runs of its own: the run that
	 * crosses the border at 400,000 is cut there and counted afresh. */
	STRETCHES(words, 3, LIST(24999, 1, 24999), { 49999 });
	STRETCHES(a, 1, LIST(400001),
		  { 25000, 25000, 25000, 25000, 25000, 25000, 25000, 25000, 25000, 25000, 25000,
		    25000, 25000, 25000, 25000, 25000, 1 });
	STRETCHES(a, 1, LIST(390000),
		  { 25000, 25000, 25000, 25000, 25000, 25000, 25000, 25000, 25000, 25000, 25000,
		    25000, 25000, 25000, 25000, 15000 });
#undef STRETCHES
#undef LIST
}

/* Words up to character 399,990, then a run of 30,000: cut at the block, then after 25,000. */
static void case_block_border(void)
{
	size_t n = 399990, size = n + 30000, i = 0, from, to;
	static const size_t expected[] = { 400000, 25000, 4990 };
	char *text = malloc(size);
	struct k3_stretches s = { .text = text, .size = size };

	CHECK(text);
	for (size_t k = 0; k < n; k++)
		text[k] = k % 5 == 4 ? ' ' : 'w';
	memset(text + n, 'x', 30000);
	while (k3_stretches_next(&s, &from, &to)) {
		CHECK(i < 3);
		CHECK_EQ(to - from, expected[i]);
		i++;
	}
	CHECK_EQ(i, 3);
	free(text);
}

/* The ids of a long text are those of its stretches one after the other. */
static void case_stretch_ids(void)
{
	struct k3_tokenizer *t = demo_tokenizer();
	enum { SIZE = 52001 };
	char *text = malloc(SIZE);
	struct k3_ids whole = { 0 }, parts = { 0 };

	CHECK(text);
	for (size_t i = 0; i < SIZE; i++)
		text[i] = "thelordand"[i * i % 10];
	encode(t, text, SIZE, false, &whole);
	encode(t, text, 25000, false, &parts);
	encode(t, text + 25000, 25000, false, &parts);
	encode(t, text + 50000, SIZE - 50000, false, &parts);
	CHECK_EQ(whole.n, parts.n);
	CHECK(memcmp(whole.ids, parts.ids, whole.n * sizeof(*whole.ids)) == 0);
	k3_ids_deinit(&whole);
	k3_ids_deinit(&parts);
	free(text);
	k3_tokenizer_free(t);
}

static void case_specials(void)
{
	struct k3_tokenizer *t = demo_tokenizer();
	struct k3_ids ids = { 0 };

	for (uint32_t id = 1792; id < 2048; id++) {
		size_t n;
		const char *name = k3_tokenizer_bytes(t, id, &n);

		CHECK(k3_tokenizer_is_special(t, id));
		CHECK_EQ(k3_tokenizer_special(t, name), id);
		ids.n = 0;
		encode(t, name, n, true, &ids);
		CHECK(ids.n == 1 && ids.ids[0] == id);
		/* Typed by a user they are text: no id of it is special. */
		ids.n = 0;
		encode(t, name, n, false, &ids);
		CHECK(ids.n > 1);
		for (size_t i = 0; i < ids.n; i++)
			CHECK(ids.ids[i] < 1792);
	}
	CHECK(!k3_tokenizer_is_special(t, 1791));
	CHECK(!k3_tokenizer_is_special(t, 2048));
	CHECK(!k3_tokenizer_is_special(t, UINT32_MAX));
	CHECK(!k3_tokenizer_bytes(t, 2048, &(size_t){ 0 }));
	CHECK_EQ(k3_tokenizer_special(t, "<|kimi_image_placeholder|>"), UINT32_MAX);
	CHECK_STR(k3_tokenizer_bytes(t, 1800, &(size_t){ 0 }), "<|reserved_token_1800|>");
	CHECK_EQ(k3_tokenizer_special(t, "<|sep|>"), 1797);

	/* In control text they cut the text; what is between is encoded for itself. */
	ids.n = 0;
	encode(t, "<|open|>the LORD  <|sep|><|sep|>  and[EOS", 41, true, &ids);
	{
		struct k3_ids parts = { 0 };

		encode(t, "the LORD  ", 10, false, &parts);
		CHECK(ids.ids[0] == 1795 && memcmp(ids.ids + 1, parts.ids, 4 * parts.n) == 0);
		CHECK(ids.ids[1 + parts.n] == 1797 && ids.ids[2 + parts.n] == 1797);
		encode(t, "  and[EOS", 9, false, &parts);
		CHECK_EQ(ids.n, parts.n + 3);
		k3_ids_deinit(&parts);
	}
	k3_ids_deinit(&ids);
	k3_tokenizer_free(t);
}

static const struct test_case cases[] = {
	{ "pieces", case_pieces },
	{ "ids", case_ids },
	{ "long_piece", case_long_piece },
	{ "stretches", case_stretches },
	{ "block_border", case_block_border },
	{ "stretch_ids", case_stretch_ids },
	{ "specials", case_specials },
};
TEST_MAIN(cases)
