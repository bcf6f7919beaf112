/*
 * The split pattern asks for the class of a character, and the reference answers from the tables of
 * Unicode 16. PCRE2 10.42 has those of Unicode 14, where the characters below are unassigned, so it
 * is shown an older character of the same class instead. The stand-in has as many bytes in UTF-8:
 * offsets stay, and the bytes that are merged are those of the original text. With a newer PCRE2
 * the replacement changes nothing. New symbols and punctuation are not listed: the pattern treats
 * them like unassigned characters.
 *
 * The ranges are the differences of general category and script between the two versions.
 */
#include "compute/text/unicode_newer.h"

#include <stdint.h>
#include <string.h>

#include "compute/text/utf8.h"
#include "shared/attr.h"
#include "shared/must.h"

enum newer_class { UPPER, LOWER, LETTER, MARK, NUMBER, HAN };

/* One of each class among the three-byte and the four-byte characters. */
static const char stand_in[][2][5] = {
	[UPPER] = { "\xe1\xb8\x80", "\xf0\x90\x90\x80" },  /* U+1E00, U+10400 */
	[LOWER] = { "\xe1\xb8\x81", "\xf0\x90\x90\xa8" },  /* U+1E01, U+10428 */
	[LETTER] = { "\xe0\xa4\x84", "\xf0\x90\x80\x80" }, /* U+0904, U+10000 */
	[MARK] = { "\xe0\xa4\x80", "\xf0\x90\x87\xbd" },   /* U+0900, U+101FD */
	[NUMBER] = { "\xe0\xa5\xa6", "\xf0\x90\x84\x87" }, /* U+0966, U+10107 */
	[HAN] = { "\xe4\xb8\x80", "\xf0\xa0\x80\x80" },    /* U+4E00, U+20000 */
};

struct newer_range {
	uint32_t first, last;
	enum newer_class class;
};

/* clang-format off */
static const struct newer_range newer[] = {
	{ 0x0897, 0x0897, MARK }, { 0x0cf3, 0x0cf3, MARK }, { 0x0ece, 0x0ece, MARK },
	{ 0x1c89, 0x1c89, UPPER }, { 0x1c8a, 0x1c8a, LOWER }, { 0xa7cb, 0xa7cc, UPPER },
	{ 0xa7cd, 0xa7cd, LOWER }, { 0xa7da, 0xa7da, UPPER }, { 0xa7db, 0xa7db, LOWER },
	{ 0xa7dc, 0xa7dc, UPPER }, { 0x105c0, 0x105f3, LETTER }, { 0x10d40, 0x10d49, NUMBER },
	{ 0x10d4a, 0x10d4f, LETTER }, { 0x10d50, 0x10d65, UPPER }, { 0x10d69, 0x10d6d, MARK },
	{ 0x10d6f, 0x10d6f, LETTER }, { 0x10d70, 0x10d85, LOWER }, { 0x10ec2, 0x10ec4, LETTER },
	{ 0x10efc, 0x10eff, MARK }, { 0x1123f, 0x11240, LETTER }, { 0x11241, 0x11241, MARK },
	{ 0x11380, 0x11389, LETTER }, { 0x1138b, 0x1138b, LETTER }, { 0x1138e, 0x1138e, LETTER },
	{ 0x11390, 0x113b5, LETTER }, { 0x113b7, 0x113b7, LETTER }, { 0x113b8, 0x113c0, MARK },
	{ 0x113c2, 0x113c2, MARK }, { 0x113c5, 0x113c5, MARK }, { 0x113c7, 0x113ca, MARK },
	{ 0x113cc, 0x113d0, MARK }, { 0x113d1, 0x113d1, LETTER }, { 0x113d2, 0x113d2, MARK },
	{ 0x113d3, 0x113d3, LETTER }, { 0x113e1, 0x113e2, MARK }, { 0x116d0, 0x116e3, NUMBER },
	{ 0x11bc0, 0x11be0, LETTER }, { 0x11bf0, 0x11bf9, NUMBER }, { 0x11f00, 0x11f01, MARK },
	{ 0x11f02, 0x11f02, LETTER }, { 0x11f03, 0x11f03, MARK }, { 0x11f04, 0x11f10, LETTER },
	{ 0x11f12, 0x11f33, LETTER }, { 0x11f34, 0x11f3a, MARK }, { 0x11f3e, 0x11f42, MARK },
	{ 0x11f50, 0x11f59, NUMBER }, { 0x11f5a, 0x11f5a, MARK }, { 0x1342f, 0x1342f, LETTER },
	{ 0x13440, 0x13440, MARK }, { 0x13441, 0x13446, LETTER }, { 0x13447, 0x13455, MARK },
	{ 0x13460, 0x143fa, LETTER }, { 0x16100, 0x1611d, LETTER }, { 0x1611e, 0x1612f, MARK },
	{ 0x16130, 0x16139, NUMBER }, { 0x16d40, 0x16d6c, LETTER }, { 0x16d70, 0x16d79, NUMBER },
	{ 0x18cff, 0x18cff, LETTER }, { 0x1b132, 0x1b132, LETTER }, { 0x1b155, 0x1b155, LETTER },
	{ 0x1ccf0, 0x1ccf9, NUMBER }, { 0x1d2c0, 0x1d2d3, NUMBER }, { 0x1df25, 0x1df2a, LOWER },
	{ 0x1e030, 0x1e06d, LETTER }, { 0x1e08f, 0x1e08f, MARK }, { 0x1e4d0, 0x1e4eb, LETTER },
	{ 0x1e4ec, 0x1e4ef, MARK }, { 0x1e4f0, 0x1e4f9, NUMBER }, { 0x1e5d0, 0x1e5ed, LETTER },
	{ 0x1e5ee, 0x1e5ef, MARK }, { 0x1e5f0, 0x1e5f0, LETTER }, { 0x1e5f1, 0x1e5fa, NUMBER },
	{ 0x2b739, 0x2b739, HAN }, { 0x2ebf0, 0x2ee5d, HAN }, { 0x31350, 0x323af, HAN },
};
/* clang-format on */

static const struct newer_range *find_range(uint32_t c)
{
	size_t low = 0, high = N_ELEMENTS(newer);

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (c > newer[middle].last)
			low = middle + 1;
		else
			high = middle;
	}
	return low < N_ELEMENTS(newer) && c >= newer[low].first ? &newer[low] : NULL;
}

/* The first newer character at or after *at: sets *at and *ret_size; NULL when there is none. */
static const struct newer_range *next_newer(const char *text, size_t size, size_t *at,
					    size_t *ret_size)
{
	const unsigned char *s = (const unsigned char *)text;

	while (*at < size) {
		const struct newer_range *range;
		uint32_t c;
		int n;

		/* Continuation bytes and leads of other blocks need no decoding. */
		if (s[*at] < 0xe0 || (s[*at] > 0xe1 && s[*at] != 0xea && s[*at] != 0xf0)) {
			++*at;
			continue;
		}
		n = k3_utf8_step(s + *at, size - *at, &c);
		must(n > 0);
		range = find_range(c);
		if (range) {
			*ret_size = (size_t)n;
			return range;
		}
		*at += (size_t)n;
	}
	return NULL;
}

bool k3_unicode_has_newer(const char *text, size_t size)
{
	size_t at = 0, n;

	return next_newer(text, size, &at, &n) != NULL;
}

void k3_unicode_replace_newer(char *text, size_t size)
{
	const struct newer_range *range;
	size_t at = 0, n;

	while ((range = next_newer(text, size, &at, &n))) {
		memcpy(text + at, stand_in[range->class][n - 3], n);
		at += n;
	}
}
