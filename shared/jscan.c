/* See jscan.h. Callers: safetensors.c for headers, shards.c for the index. */
#include "shared/jscan.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "shared/fd.h"

enum { DEPTH_MAX = 32 };

void jscan_init(struct jscan *j, int fd, const char *path, uint64_t offset, uint64_t end,
		struct err *err)
{
	memset(j, 0, offsetof(struct jscan, subject));
	j->fd = fd;
	j->path = path;
	j->err = err;
	j->window_off = offset;
	j->end_off = end;
}

int jscan_fail(struct jscan *j, const char *fmt, ...)
{
	char why[512], name[256];
	size_t n = j->subject_len < sizeof(name) - 1 ? j->subject_len : sizeof(name) - 1;
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)j->subject[i];

		name[i] = (char)(c < ' ' || c == 127 ? '?' : c);
	}
	name[n] = '\0';
	if (n)
		return err_set(j->err, ERR_CHECKPOINT, "%s: tensor \"%s\": %s; fetch it again",
			       j->path, name, why);
	return err_set(j->err, ERR_CHECKPOINT, "%s: %s; fetch it again", j->path, why);
}

/* ---- bytes ------------------------------------------------------------------------------- */

/* Load the next piece of the header: 1 when there is some, 0 at its end. */
int jscan_load(struct jscan *j)
{
	uint64_t left = j->end_off - j->window_off;
	size_t n = left < JSCAN_WINDOW_SIZE ? (size_t)left : JSCAN_WINDOW_SIZE;
	int r;

	if (n == 0)
		return 0;
	r = fd_pread_all(j->fd, j->window, n, j->window_off);
	if (r == -ENODATA)
		return jscan_fail(j, "the file became shorter while its header was read");
	if (r < 0)
		return err_set(j->err, ERR_IO, "%s: reading the header failed: %s", j->path,
			       strerror(-r));
	if (j->digest)
		(void)XXH3_128bits_update(j->digest, j->window, n);
	j->window_off += n;
	j->at = j->window;
	j->end = j->window + n;
	return 1;
}

/* The next byte (0..255), consumed; a negative error at the header's end. */
int jscan_next_byte(struct jscan *j)
{
	int r;

	if (j->at == j->end) {
		r = jscan_load(j);
		if (r < 0)
			return r;
		if (r == 0)
			return jscan_fail(j, "the header's JSON ends too early");
	}
	return (unsigned char)*j->at++;
}

/* The next byte that is not white space, consumed. */
int jscan_next_token(struct jscan *j)
{
	int c;

	do
		c = jscan_next_byte(j);
	while (c == ' ' || c == '\t' || c == '\n' || c == '\r');
	return c;
}

int jscan_fail_byte(struct jscan *j, const char *wanted, int got)
{
	if (got < 0)
		return got;
	if (got > ' ' && got < 127)
		return jscan_fail(j, "the header's JSON has '%c' where %s belongs", got, wanted);
	return jscan_fail(j, "the header's JSON has byte 0x%02x where %s belongs", (unsigned)got,
			  wanted);
}

int jscan_expect(struct jscan *j, char wanted)
{
	char text[4] = { '\'', wanted, '\'', '\0' };
	int c = jscan_next_token(j);

	return c == wanted ? 0 : jscan_fail_byte(j, text, c);
}

/* ---- strings ----------------------------------------------------------------------------- */

static int read_hex4(struct jscan *j, uint32_t *ret)
{
	uint32_t v = 0;

	for (int i = 0; i < 4; i++) {
		int c = jscan_next_byte(j);

		if (c < 0)
			return c;
		if (c >= '0' && c <= '9')
			v = v * 16 + (uint32_t)(c - '0');
		else if ((c | 32) >= 'a' && (c | 32) <= 'f')
			v = v * 16 + (uint32_t)((c | 32) - 'a' + 10);
		else
			return jscan_fail_byte(j, "a hexadecimal digit", c);
	}
	*ret = v;
	return 0;
}

/* After "\u": the code point in UTF-8; returns its length. */
static int read_unicode(struct jscan *j, char utf8[4])
{
	uint32_t v = 0, low = 0;
	int r = read_hex4(j, &v);

	if (r < 0)
		return r;
	if (v >= 0xd800 && v < 0xdc00) {
		int c = jscan_next_byte(j);

		c = c == '\\' ? jscan_next_byte(j) : c;
		r = c == 'u' ? read_hex4(j, &low) : jscan_fail_byte(j, "a low surrogate", c);
		if (r < 0)
			return r;
		if (low < 0xdc00 || low > 0xdfff)
			return jscan_fail(j, "half a surrogate pair in a string");
		v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
	} else if (v >= 0xdc00 && v < 0xe000) {
		return jscan_fail(j, "half a surrogate pair in a string");
	} else if (v == 0) {
		return jscan_fail(j, "a zero character in a string");
	}
	if (v < 0x80) {
		utf8[0] = (char)v;
		return 1;
	}
	if (v < 0x800) {
		utf8[0] = (char)(0xc0 | v >> 6);
		utf8[1] = (char)(0x80 | (v & 63));
		return 2;
	}
	if (v < 0x10000) {
		utf8[0] = (char)(0xe0 | v >> 12);
		utf8[1] = (char)(0x80 | (v >> 6 & 63));
		utf8[2] = (char)(0x80 | (v & 63));
		return 3;
	}
	utf8[0] = (char)(0xf0 | v >> 18);
	utf8[1] = (char)(0x80 | (v >> 12 & 63));
	utf8[2] = (char)(0x80 | (v >> 6 & 63));
	utf8[3] = (char)(0x80 | (v & 63));
	return 4;
}

/* After a backslash; returns the length of the bytes it stands for. */
static int read_escape(struct jscan *j, char utf8[4])
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	int c = jscan_next_byte(j);
	const char *at;

	if (c == 'u')
		return read_unicode(j, utf8);
	at = c > 0 ? strchr(from, c) : NULL;
	if (!at)
		return jscan_fail_byte(j, "an escape", c);
	utf8[0] = to[at - from];
	return 1;
}

/* How many bytes from at on are neither quote, backslash nor control character; eight at a time,
 * since names are most of a header. */
static size_t count_plain(const char *at, const char *end)
{
	const uint64_t ones = 0x0101010101010101U, tops = 0x8080808080808080U;
	const char *start = at;

	for (; end - at >= 8; at += 8) {
		uint64_t w, quote, slash, control;

		memcpy(&w, at, 8);
		quote = w ^ ones * '"';
		slash = w ^ ones * '\\';
		/* The top bit of each byte that is zero after the xor, or was below 32; a borrow
		 * can only mark a byte after a true hit. */
		quote = (quote - ones) & ~quote;
		slash = (slash - ones) & ~slash;
		control = (w - ones * ' ') & ~w;
		if ((quote | slash | control) & tops)
			break;
	}
	while (at < end && (unsigned char)*at >= ' ' && *at != '"' && *at != '\\')
		at++;
	return (size_t)(at - start);
}

int jscan_read_string(struct jscan *j, char *buf, size_t size)
{
	size_t len = 0;

	for (;;) {
		size_t run = count_plain(j->at, j->end);
		char utf8[4];
		int n = 1, c;

		if (buf && run > size - len)
			return jscan_fail(j, "a string is longer than %zu bytes", size);
		if (buf)
			memcpy(buf + len, j->at, run);
		len += run;
		j->at += run;
		c = jscan_next_byte(j);
		if (c == '"')
			return buf ? (int)len : 0;
		if (c < ' ')
			return jscan_fail_byte(j, "a string character", c);
		utf8[0] = (char)c; /* the first byte of a new window */
		if (c == '\\') {
			n = read_escape(j, utf8);
			if (n < 0)
				return n;
		}
		if (buf && (size_t)n > size - len)
			return jscan_fail(j, "a string is longer than %zu bytes", size);
		if (buf)
			memcpy(buf + len, utf8, (size_t)n);
		len += (size_t)n;
	}
}

/* ---- numbers and values ------------------------------------------------------------------ */

/* A whole number without sign, fraction or exponent, whose first byte is c; *ret_next is the byte
 * after it (white space skipped). */
int jscan_read_number(struct jscan *j, int c, const char *what, uint64_t *ret, int *ret_next)
{
	uint64_t v = 0;
	unsigned n = 0;
	bool is_padded = c == '0';

	if (c == '-')
		return jscan_fail(j, "%s is negative", what);
	for (; c >= '0' && c <= '9'; c = jscan_next_byte(j), n++)
		if (__builtin_mul_overflow(v, 10U, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(c - '0'), &v))
			return jscan_fail(j, "%s does not fit 64 bits", what);
	if (c < 0)
		return c;
	if (n == 0)
		return jscan_fail_byte(j, what, c);
	if (is_padded && n > 1)
		return jscan_fail(j, "%s has a leading zero", what);
	if (c == '.' || c == 'e' || c == 'E')
		return jscan_fail(j, "%s is not a whole number", what);
	if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
		c = jscan_next_token(j);
	if (c < 0)
		return c;
	*ret = v;
	*ret_next = c;
	return 0;
}

/* "[1, 2, 3]" of at most max numbers; returns how many. */
int jscan_read_numbers(struct jscan *j, const char *what, uint64_t *ret, uint32_t max)
{
	uint32_t n = 0;
	int c, next, r = jscan_expect(j, '[');

	if (r < 0)
		return r;
	c = jscan_next_token(j);
	if (c == ']')
		return 0;
	for (;;) {
		if (n == max)
			return jscan_fail(j, "%s has more than %u numbers", what, max);
		r = jscan_read_number(j, c, what, &ret[n], &next);
		if (r < 0)
			return r;
		n++;
		if (next == ']')
			return (int)n;
		if (next != ',')
			return jscan_fail_byte(j, "',' or ']'", next);
		c = jscan_next_token(j);
	}
}

int jscan_skip_container(struct jscan *j, int c)
{
	char open[DEPTH_MAX] = { 0 };
	int depth = 0, r;

	if (c != '{' && c != '[')
		return jscan_fail_byte(j, "an object or array", c);
	for (;; c = jscan_next_token(j)) {
		if (c < 0)
			return c;
		if (c == '"') {
			r = jscan_read_string(j, NULL, 0);
			if (r < 0)
				return r;
		} else if (c == '{' || c == '[') {
			if (depth == DEPTH_MAX)
				return jscan_fail(j, "the JSON is nested too deeply");
			open[depth++] = c == '{' ? '}' : ']';
		} else if (c == '}' || c == ']') {
			if (open[--depth] != c)
				return jscan_fail_byte(j, "the other bracket", c);
			if (depth == 0)
				return 0;
		} else if (c == 0 || !strchr(":,+-.0123456789truefalsnE", c)) {
			return jscan_fail_byte(j, "a value", c);
		}
	}
}
