/*
 * UTF-8 by the table of well-formed byte sequences of the Unicode standard (chapter 3, table 3-7):
 * only the second byte has ranges that depend on the first. The encoder checks its whole input with
 * it once, everything behind it may then step without checks; the decoder uses it on pieces.
 */
#include "compute/text/utf8.h"

#include <string.h>

/* Length of the sequence that byte starts and the range of its second byte; 0: starts none. */
static unsigned lead(unsigned char byte, unsigned char *ret_low, unsigned char *ret_high)
{
	*ret_low = 0x80;
	*ret_high = 0xbf;
	if (byte < 0xc2)
		return 0;
	if (byte < 0xe0)
		return 2;
	if (byte < 0xf0) {
		if (byte == 0xe0)
			*ret_low = 0xa0; /* below: overlong */
		else if (byte == 0xed)
			*ret_high = 0x9f; /* above: surrogates */
		return 3;
	}
	if (byte > 0xf4)
		return 0;
	if (byte == 0xf0)
		*ret_low = 0x90; /* below: overlong */
	else if (byte == 0xf4)
		*ret_high = 0x8f; /* above: beyond U+10FFFF */
	return 4;
}

int k3_utf8_step(const unsigned char *s, size_t size, uint32_t *ret_char)
{
	unsigned char low, high;
	unsigned n;
	uint32_t c;

	if (s[0] < 0x80) {
		*ret_char = s[0];
		return 1;
	}
	n = lead(s[0], &low, &high);
	if (n == 0)
		return -1;
	c = s[0] & (0xffu >> (n + 1));
	for (unsigned i = 1; i < n; i++) {
		if (i == size)
			return 0;
		if (s[i] < low || s[i] > high)
			return -(int)i;
		c = c << 6 | (s[i] & 0x3fu);
		low = 0x80;
		high = 0xbf;
	}
	*ret_char = c;
	return (int)n;
}

size_t k3_utf8_check(const char *text, size_t size)
{
	const unsigned char *s = (const unsigned char *)text;
	size_t at = 0;

	while (at < size) {
		uint64_t eight;
		uint32_t c;
		int n;

		if (size - at >= sizeof(eight)) {
			memcpy(&eight, s + at, sizeof(eight));
			if ((eight & 0x8080808080808080u) == 0) {
				at += sizeof(eight);
				continue;
			}
		}
		n = k3_utf8_step(s + at, size - at, &c);
		if (n <= 0)
			return at;
		at += (size_t)n;
	}
	return size;
}
