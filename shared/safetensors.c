/*
 * The safetensors header scan. A small JSON reader that knows only this one document: one object of
 * tensors, each with dtype, shape and data_offsets, and an optional __metadata__ that is skipped.
 * The text passes through one fixed window, so a header may be of any size; what is kept per tensor
 * is its region and a hash of its name (24 bytes). Every number is checked before it is used and
 * nothing past the header is read. Called by source.c for each shard.
 */
#include "shared/safetensors.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/must.h"

enum { WINDOW_SIZE = 256 << 10, NAME_SIZE = 4096, METADATA_DEPTH_MAX = 32 };

static const struct {
	const char *name;
	uint32_t size;
} dtypes[ST_DTYPE_N_] = {
	[ST_F64] = { "F64", 8 },   [ST_F32] = { "F32", 4 },         [ST_F16] = { "F16", 2 },
	[ST_BF16] = { "BF16", 2 }, [ST_I64] = { "I64", 8 },         [ST_I32] = { "I32", 4 },
	[ST_I16] = { "I16", 2 },   [ST_I8] = { "I8", 1 },           [ST_U64] = { "U64", 8 },
	[ST_U32] = { "U32", 4 },   [ST_U16] = { "U16", 2 },         [ST_U8] = { "U8", 1 },
	[ST_BOOL] = { "BOOL", 1 }, [ST_F8_E4M3] = { "F8_E4M3", 1 }, [ST_F8_E5M2] = { "F8_E5M2", 1 },
};

uint32_t st_dtype_size(enum st_dtype t)
{
	must((unsigned)t < ST_DTYPE_N_);
	return dtypes[t].size;
}

const char *st_dtype_name(enum st_dtype t)
{
	return (unsigned)t < ST_DTYPE_N_ ? dtypes[t].name : "?";
}

/* What is remembered of a tensor until the file ends. */
struct region {
	uint64_t begin, end; /* relative to the data area */
	uint64_t name_hash;
};

struct scan {
	int fd;
	const char *path;
	struct err *err;
	uint64_t header_end;  /* 8 + length of the JSON */
	uint64_t data_size;   /* bytes of the file after the header */
	uint64_t window_off;  /* of the next byte to load into the window */
	const char *at, *end; /* unread part of the window */
	XXH3_state_t *digest; /* NULL: not asked for */
	struct region *regions;
	size_t n_regions, n_allocated;
	size_t name_len;
	char name[NAME_SIZE]; /* the entry being read, for messages too */
	char window[WINDOW_SIZE];
};

static void scan_freep(struct scan **p)
{
	if (!*p)
		return;
	(void)XXH3_freeState((*p)->digest);
	free((*p)->regions);
	free(*p);
	*p = NULL;
}

/* Set a sentence with the file and, when one is being read, the tensor. */
static int fail(struct scan *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
static int fail(struct scan *s, const char *fmt, ...)
{
	char why[512], name[256];
	size_t n = s->name_len < sizeof(name) - 1 ? s->name_len : sizeof(name) - 1;
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	for (size_t i = 0; i < n; i++)
		name[i] = (unsigned char)s->name[i] < ' ' || s->name[i] == 127 ? '?' : s->name[i];
	name[n] = '\0';
	if (n)
		return err_set(s->err, ERR_CHECKPOINT, "%s: tensor \"%s\": %s", s->path, name, why);
	return err_set(s->err, ERR_CHECKPOINT, "%s: %s", s->path, why);
}

/* ---- bytes ------------------------------------------------------------------------------- */

/* Load the next piece of the header: 1 when there is some, 0 at its end. */
static int load_window(struct scan *s)
{
	uint64_t left = s->header_end - s->window_off;
	size_t n = left < WINDOW_SIZE ? (size_t)left : WINDOW_SIZE;
	int r;

	if (n == 0)
		return 0;
	r = fd_pread_all(s->fd, s->window, n, s->window_off);
	if (r == -ENODATA)
		return fail(s, "the file became shorter while its header was read");
	if (r < 0)
		return err_set(s->err, ERR_IO, "%s: reading the header failed: %s", s->path,
			       strerror(-r));
	if (s->digest)
		(void)XXH3_128bits_update(s->digest, s->window, n);
	s->window_off += n;
	s->at = s->window;
	s->end = s->window + n;
	return 1;
}

/* The next byte (0..255), consumed; a negative error at the header's end. */
static inline int next_byte(struct scan *s)
{
	int r;

	if (s->at == s->end) {
		r = load_window(s);
		if (r < 0)
			return r;
		if (r == 0)
			return fail(s, "the header's JSON ends too early");
	}
	return (unsigned char)*s->at++;
}

/* The next byte that is not white space, consumed. */
static int next_token(struct scan *s)
{
	int c;

	do
		c = next_byte(s);
	while (c == ' ' || c == '\t' || c == '\n' || c == '\r');
	return c;
}

static int fail_byte(struct scan *s, const char *wanted, int got)
{
	if (got < 0)
		return got;
	if (got > ' ' && got < 127)
		return fail(s, "the header's JSON has '%c' where %s belongs", got, wanted);
	return fail(s, "the header's JSON has byte 0x%02x where %s belongs", (unsigned)got, wanted);
}

static int expect(struct scan *s, char wanted)
{
	char text[4] = { '\'', wanted, '\'', '\0' };
	int c = next_token(s);

	return c == wanted ? 0 : fail_byte(s, text, c);
}

/* ---- strings ----------------------------------------------------------------------------- */

static int read_hex4(struct scan *s, uint32_t *ret)
{
	uint32_t v = 0;

	for (int i = 0; i < 4; i++) {
		int c = next_byte(s);

		if (c < 0)
			return c;
		if (c >= '0' && c <= '9')
			v = v * 16 + (uint32_t)(c - '0');
		else if ((c | 32) >= 'a' && (c | 32) <= 'f')
			v = v * 16 + (uint32_t)((c | 32) - 'a' + 10);
		else
			return fail_byte(s, "a hexadecimal digit", c);
	}
	*ret = v;
	return 0;
}

/* After "\u": the code point in UTF-8; returns its length. */
static int read_unicode(struct scan *s, char utf8[4])
{
	uint32_t v = 0, low = 0;
	int r = read_hex4(s, &v);

	if (r < 0)
		return r;
	if (v >= 0xd800 && v < 0xdc00) {
		int c = next_byte(s);

		c = c == '\\' ? next_byte(s) : c;
		r = c == 'u' ? read_hex4(s, &low) : fail_byte(s, "a low surrogate", c);
		if (r < 0)
			return r;
		if (low < 0xdc00 || low > 0xdfff)
			return fail(s, "half a surrogate pair in a string");
		v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
	} else if (v >= 0xdc00 && v < 0xe000) {
		return fail(s, "half a surrogate pair in a string");
	} else if (v == 0) {
		return fail(s, "a zero character in a string");
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
static int read_escape(struct scan *s, char utf8[4])
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	int c = next_byte(s);
	const char *at;

	if (c == 'u')
		return read_unicode(s, utf8);
	at = c > 0 ? strchr(from, c) : NULL;
	if (!at)
		return fail_byte(s, "an escape", c);
	utf8[0] = to[at - from];
	return 1;
}

/* After the opening quote, to the closing one. buf NULL: skipped. Returns the unescaped length. */
static int read_string(struct scan *s, char *buf, size_t size)
{
	size_t len = 0;

	for (;;) {
		char utf8[4];
		int n = 1, c;

		/* The common bytes, straight from the window. */
		while (buf && s->at < s->end && len < size && (unsigned char)*s->at >= ' ' &&
		       *s->at != '"' && *s->at != '\\')
			buf[len++] = *s->at++;
		c = next_byte(s);
		if (c == '"')
			return (int)len;
		if (c < ' ')
			return fail_byte(s, "a string character", c);
		utf8[0] = (char)c;
		if (c == '\\') {
			n = read_escape(s, utf8);
			if (n < 0)
				return n;
		}
		if (!buf)
			continue;
		if (len + (size_t)n > size)
			return fail(s, "a string is longer than %zu bytes", size);
		memcpy(buf + len, utf8, (size_t)n);
		len += (size_t)n;
	}
}

/* ---- numbers and values ------------------------------------------------------------------ */

/* A whole number without sign, fraction or exponent, whose first byte is c; *ret_next is the byte
 * after it (white space skipped). */
static int read_number(struct scan *s, int c, const char *what, uint64_t *ret, int *ret_next)
{
	uint64_t v = 0;
	unsigned n = 0;
	bool is_padded = c == '0';

	if (c == '-')
		return fail(s, "%s is negative", what);
	for (; c >= '0' && c <= '9'; c = next_byte(s), n++)
		if (__builtin_mul_overflow(v, 10U, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(c - '0'), &v))
			return fail(s, "%s does not fit 64 bits", what);
	if (c < 0)
		return c;
	if (n == 0)
		return fail_byte(s, what, c);
	if (is_padded && n > 1)
		return fail(s, "%s has a leading zero", what);
	if (c == '.' || c == 'e' || c == 'E')
		return fail(s, "%s is not a whole number", what);
	if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
		c = next_token(s);
	if (c < 0)
		return c;
	*ret = v;
	*ret_next = c;
	return 0;
}

/* "[1, 2, 3]" of at most max numbers; returns how many. */
static int read_numbers(struct scan *s, const char *what, uint64_t *ret, uint32_t max)
{
	uint32_t n = 0;
	int c, next, r = expect(s, '[');

	if (r < 0)
		return r;
	c = next_token(s);
	if (c == ']')
		return 0;
	for (;;) {
		if (n == max)
			return fail(s, "%s has more than %u numbers", what, max);
		r = read_number(s, c, what, &ret[n], &next);
		if (r < 0)
			return r;
		n++;
		if (next == ']')
			return (int)n;
		if (next != ',')
			return fail_byte(s, "',' or ']'", next);
		c = next_token(s);
	}
}

/* Skip __metadata__, a flat object of strings; deeper values are skipped too, to a bounded depth,
 * since nothing in them concerns us. */
static int skip_metadata(struct scan *s)
{
	char open[METADATA_DEPTH_MAX];
	int depth = 0, c = next_token(s), r;

	if (c != '{')
		return fail_byte(s, "the object __metadata__", c);
	for (;; c = next_token(s)) {
		if (c < 0)
			return c;
		if (c == '"') {
			r = read_string(s, NULL, 0);
			if (r < 0)
				return r;
		} else if (c == '{' || c == '[') {
			if (depth == METADATA_DEPTH_MAX)
				return fail(s, "__metadata__ is nested too deeply");
			open[depth++] = c == '{' ? '}' : ']';
		} else if (c == '}' || c == ']') {
			if (open[--depth] != c)
				return fail_byte(s, "the other bracket", c);
			if (depth == 0)
				return 0;
		} else if (c == 0 || !strchr(":,+-.0123456789truefalsnE", c)) {
			return fail_byte(s, "a value of __metadata__", c);
		}
	}
}

/* ---- one tensor -------------------------------------------------------------------------- */

static int read_dtype(struct scan *s, enum st_dtype *ret)
{
	char text[16];
	int r = expect(s, '"');

	if (r < 0)
		return r;
	r = read_string(s, text, sizeof(text) - 1);
	if (r < 0)
		return r;
	text[r] = '\0';
	for (unsigned i = 0; i < ST_DTYPE_N_; i++) {
		if (strcmp(text, dtypes[i].name) == 0) {
			*ret = (enum st_dtype)i;
			return 0;
		}
	}
	return fail(s, "dtype %s is not known", text);
}

/* Bytes of the shape, or a sentence when that overflows. */
static int shape_size(struct scan *s, const struct st_entry *e, uint64_t *ret)
{
	uint64_t v = dtypes[e->dtype].size;

	for (uint32_t i = 0; i < e->rank; i++)
		if (__builtin_mul_overflow(v, e->shape[i], &v))
			return fail(s, "the shape overflows 64 bits");
	*ret = v;
	return 0;
}

static int keep_region(struct scan *s, uint64_t begin, uint64_t end)
{
	if (s->n_regions == s->n_allocated) {
		size_t n = s->n_allocated ? 2 * s->n_allocated : 1024;
		struct region *grown = reallocarray(s->regions, n, sizeof(*grown));

		if (!grown)
			return err_set(s->err, ERR_NO_MEMORY, "%s: no memory for %zu tensors",
				       s->path, n);
		s->regions = grown;
		s->n_allocated = n;
	}
	s->regions[s->n_regions++] =
		(struct region){ begin, end, XXH3_64bits(s->name, s->name_len) };
	return 0;
}

/* The three fields of an entry, each exactly once, in any order. */
static int read_fields(struct scan *s, struct st_entry *e, uint64_t offsets[2])
{
	enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };
	unsigned has = 0;
	int c, r = expect(s, '{');

	if (r < 0)
		return r;
	for (c = next_token(s); c != '}'; c = next_token(s)) {
		char field[32];
		unsigned bit;

		if (has && c == ',')
			c = next_token(s);
		else if (has)
			return fail_byte(s, "',' or '}'", c);
		if (c != '"')
			return fail_byte(s, "a field name", c);
		r = read_string(s, field, sizeof(field) - 1);
		if (r < 0)
			return r;
		field[r] = '\0';
		r = expect(s, ':');
		if (r < 0)
			return r;
		if (strcmp(field, "dtype") == 0) {
			bit = HAS_DTYPE;
			r = read_dtype(s, &e->dtype);
		} else if (strcmp(field, "shape") == 0) {
			bit = HAS_SHAPE;
			r = read_numbers(s, "a size of shape", e->shape, ST_RANK_MAX);
			e->rank = r < 0 ? 0 : (uint32_t)r;
		} else if (strcmp(field, "data_offsets") == 0) {
			bit = HAS_OFFSETS;
			r = read_numbers(s, "a number of data_offsets", offsets, 2);
			if (r >= 0 && r != 2)
				return fail(s, "data_offsets has %d numbers instead of 2", r);
		} else {
			return fail(s, "field \"%s\" is not known", field);
		}
		if (r < 0)
			return r;
		if (has & bit)
			return fail(s, "field %s stands there twice", field);
		has |= bit;
	}
	if (has != HAS_ALL)
		return fail(s, "field %s is missing",
			    !(has & HAS_DTYPE)   ? "dtype"
			    : !(has & HAS_SHAPE) ? "shape"
						 : "data_offsets");
	return 0;
}

static int read_entry(struct scan *s, st_entry_fn *fn, void *data)
{
	struct st_entry e = { .name = s->name, .name_len = s->name_len };
	uint64_t offsets[2] = { 0, 0 }, wanted = 0;
	int r = read_fields(s, &e, offsets);

	if (r < 0)
		return r;
	r = shape_size(s, &e, &wanted);
	if (r < 0)
		return r;
	if (offsets[0] > offsets[1])
		return fail(s, "data_offsets end before they begin");
	if (offsets[1] > s->data_size)
		return fail(s,
			    "its data ends at byte %llu of %llu: the file is cut short or the "
			    "header lies",
			    (unsigned long long)offsets[1], (unsigned long long)s->data_size);
	if (offsets[1] - offsets[0] != wanted)
		return fail(s, "dtype and shape make %llu bytes, data_offsets %llu",
			    (unsigned long long)wanted,
			    (unsigned long long)(offsets[1] - offsets[0]));
	r = keep_region(s, offsets[0], offsets[1]);
	if (r < 0)
		return r;
	e.offset = s->header_end + offsets[0];
	e.size = wanted;
	return fn ? fn(data, &e, s->err) : 0;
}

/* ---- the whole file ---------------------------------------------------------------------- */

static int compare_begin(const void *a, const void *b)
{
	const struct region *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->end > y->end) - (x->end < y->end);
}

static int compare_hash(const void *a, const void *b)
{
	const struct region *x = a, *y = b;

	return (x->name_hash > y->name_hash) - (x->name_hash < y->name_hash);
}

/* The regions must cover the data area exactly: no hole, no overlap, nothing after the last. */
static int check_regions(struct scan *s)
{
	uint64_t at = 0;
	bool is_sorted = true;

	for (size_t i = 1; i < s->n_regions && is_sorted; i++)
		is_sorted = compare_begin(&s->regions[i - 1], &s->regions[i]) <= 0;
	if (!is_sorted)
		qsort(s->regions, s->n_regions, sizeof(*s->regions), compare_begin);
	s->name_len = 0;
	for (size_t i = 0; i < s->n_regions; i++) {
		const struct region *g = &s->regions[i];

		if (g->begin == g->end)
			continue; /* empty tensors lie anywhere */
		if (g->begin < at)
			return fail(s, "two tensors overlap at data byte %llu",
				    (unsigned long long)g->begin);
		if (g->begin > at)
			return fail(s, "data bytes %llu to %llu belong to no tensor",
				    (unsigned long long)at, (unsigned long long)g->begin);
		at = g->end;
	}
	if (at != s->data_size)
		return fail(s, "%llu bytes after the last tensor belong to none",
			    (unsigned long long)(s->data_size - at));
	return 0;
}

/* Names are compared by a 64-bit hash: a chance collision (1e-12 a file) refuses a good file, it
 * never accepts a bad one. */
static int check_names(struct scan *s)
{
	if (s->n_regions == 0)
		return 0;
	qsort(s->regions, s->n_regions, sizeof(*s->regions), compare_hash);
	for (size_t i = 1; i < s->n_regions; i++)
		if (s->regions[i].name_hash == s->regions[i - 1].name_hash)
			return fail(s, "two tensors have one name (at data bytes %llu and %llu)",
				    (unsigned long long)s->regions[i - 1].begin,
				    (unsigned long long)s->regions[i].begin);
	return 0;
}

/* The length prefix; leaves the window at the first byte of the JSON. */
static int open_header(struct scan *s)
{
	uint8_t prefix[8];
	struct stat st;
	uint64_t n = 0, size;
	int r;

	if (fstat(s->fd, &st) < 0)
		return err_set(s->err, ERR_IO, "%s: %s", s->path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return fail(s, "not a regular file");
	size = (uint64_t)st.st_size;
	if (size < 8)
		return fail(s, "%llu bytes are too few for a safetensors file",
			    (unsigned long long)size);
	r = fd_pread_all(s->fd, prefix, sizeof(prefix), 0);
	if (r < 0)
		return err_set(s->err, ERR_IO, "%s: reading failed: %s", s->path, strerror(-r));
	for (int i = 7; i >= 0; i--)
		n = n << 8 | prefix[i];
	if (n > size - 8)
		return fail(s, "the header claims %llu bytes, the file has %llu after the length",
			    (unsigned long long)n, (unsigned long long)(size - 8));
	s->header_end = 8 + n;
	s->data_size = size - s->header_end;
	s->window_off = 8;
	if (s->digest) {
		(void)XXH3_128bits_reset(s->digest);
		(void)XXH3_128bits_update(s->digest, prefix, sizeof(prefix));
	}
	return 0;
}

/* The names and entries up to the closing bracket of the header. */
static int read_entries(struct scan *s, st_entry_fn *fn, void *data)
{
	bool is_first = true, has_metadata = false;
	int c, r;

	c = next_byte(s); /* the format wants the bracket first, without white space */
	if (c != '{')
		return fail_byte(s, "'{'", c);
	for (c = next_token(s); c != '}'; c = next_token(s)) {
		s->name_len = 0;
		if (!is_first && c == ',')
			c = next_token(s);
		else if (!is_first)
			return fail_byte(s, "',' or '}'", c);
		if (c != '"')
			return fail_byte(s, "a tensor's name", c);
		is_first = false;
		r = read_string(s, s->name, sizeof(s->name));
		if (r < 0)
			return r;
		s->name_len = (size_t)r;
		r = expect(s, ':');
		if (r < 0)
			return r;
		if (s->name_len == 12 && memcmp(s->name, "__metadata__", 12) == 0) {
			if (has_metadata)
				return fail(s, "it stands there twice");
			has_metadata = true;
			r = skip_metadata(s);
		} else {
			r = read_entry(s, fn, data);
		}
		if (r < 0)
			return r;
	}
	s->name_len = 0;
	return 0;
}

/* After the closing bracket only padding may follow. */
static int check_padding(struct scan *s)
{
	int r = 1;

	do {
		for (; s->at < s->end; s->at++)
			if (!strchr(" \t\r\n", *s->at) || *s->at == '\0')
				return fail(s, "something follows the header's JSON object");
		r = load_window(s);
	} while (r > 0);
	return r;
}

int st_scan(int fd, const char *path, st_entry_fn *fn, void *data, uint8_t ret_header_digest[16],
	    struct err *err)
{
	CLEANUP(scan_freep) struct scan *s = malloc(sizeof(*s));
	XXH128_canonical_t canonical;
	int r;

	if (!s)
		return err_set(err, ERR_NO_MEMORY, "%s: out of memory", path);
	memset(s, 0, offsetof(struct scan, name));
	s->fd = fd;
	s->path = path;
	s->err = err;
	s->digest = ret_header_digest ? XXH3_createState() : NULL;
	if (ret_header_digest && !s->digest)
		return err_set(err, ERR_NO_MEMORY, "%s: out of memory", path);
	r = open_header(s);
	if (r == 0)
		r = read_entries(s, fn, data);
	if (r == 0)
		r = check_padding(s);
	if (r == 0)
		r = check_regions(s);
	if (r == 0)
		r = check_names(s);
	if (r < 0)
		return r;
	if (ret_header_digest) {
		XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(s->digest));
		memcpy(ret_header_digest, canonical.digest, 16);
	}
	return 0;
}
