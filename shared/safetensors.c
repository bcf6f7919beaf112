/*
 * The safetensors header scan: one object of tensors, each with dtype, shape and data_offsets, and
 * an optional __metadata__ that is skipped. The text passes through the window of jscan.c, so a
 * header may be of any size; what is kept per tensor is its region and a hash of its name. Every
 * number is checked before it is used and nothing past the header is read. Called by source.c for
 * each shard.
 */
#include "shared/safetensors.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/jscan.h"
#include "shared/must.h"

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
	uint64_t name_off; /* in the file, after the opening quote: for messages */
};

struct scan {
	struct jscan j;
	uint64_t header_end; /* 8 + length of the JSON */
	uint64_t data_size;  /* bytes of the file after the header */
	struct region *regions;
	size_t n_regions, n_allocated;
	uint64_t name_off; /* of the tensor that is read */
};

static void scan_freep(struct scan **p)
{
	if (!*p)
		return;
	(void)XXH3_freeState((*p)->j.digest);
	free((*p)->regions);
	free(*p);
	*p = NULL;
}

/* ---- one tensor -------------------------------------------------------------------------- */

static int read_dtype(struct scan *s, enum st_dtype *ret)
{
	char text[16];
	int r = jscan_expect(&s->j, '"');

	if (r < 0)
		return r;
	r = jscan_read_string(&s->j, text, sizeof(text) - 1);
	if (r < 0)
		return r;
	text[r] = '\0';
	for (unsigned i = 0; i < ST_DTYPE_N_; i++) {
		if (text[0] == dtypes[i].name[0] && strcmp(text, dtypes[i].name) == 0) {
			*ret = (enum st_dtype)i;
			return 0;
		}
	}
	return jscan_fail(&s->j, "dtype %s is not known", text);
}

/* Bytes of the shape, or a sentence when that overflows. */
static int shape_size(struct scan *s, const struct st_entry *e, uint64_t *ret)
{
	uint64_t v = dtypes[e->dtype].size;

	for (uint32_t i = 0; i < e->rank; i++)
		if (__builtin_mul_overflow(v, e->shape[i], &v))
			return jscan_fail(&s->j, "the shape overflows 64 bits");
	*ret = v;
	return 0;
}

static int keep_region(struct scan *s, uint64_t begin, uint64_t end)
{
	if (s->n_regions == s->n_allocated) {
		size_t n = s->n_allocated ? 2 * s->n_allocated : 1024;
		struct region *grown = reallocarray(s->regions, n, sizeof(*grown));

		if (!grown)
			return err_set(s->j.err, ERR_NO_MEMORY, "%s: no memory for %zu tensors",
				       s->j.path, n);
		s->regions = grown;
		s->n_allocated = n;
	}
	s->regions[s->n_regions++] =
		(struct region){ begin, end, XXH3_64bits(s->j.subject, s->j.subject_len),
				 s->name_off };
	return 0;
}

/* The name of a region as it stands in the header; "?" when it cannot be read any more. Only
 * messages want it, so it is not kept. */
static size_t recall_name(const struct scan *s, const struct region *g, char *buf, size_t size)
{
	uint64_t room = s->header_end - g->name_off;
	const char *end;

	if (room > size)
		room = size;
	if (fd_pread_all(s->j.fd, buf, (size_t)room, g->name_off) == 0) {
		end = memchr(buf, '"', (size_t)room);
		if (end)
			return (size_t)(end - buf);
	}
	buf[0] = '?';
	return 1;
}

/* The three fields of an entry, each exactly once, in any order. */
static int read_fields(struct scan *s, struct st_entry *e, uint64_t offsets[2])
{
	enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };
	unsigned has = 0;
	int c, r = jscan_expect(&s->j, '{');

	if (r < 0)
		return r;
	for (c = jscan_next_token(&s->j); c != '}'; c = jscan_next_token(&s->j)) {
		char field[32];
		unsigned bit;

		if (has && c == ',')
			c = jscan_next_token(&s->j);
		else if (has)
			return jscan_fail_byte(&s->j, "',' or '}'", c);
		if (c != '"')
			return jscan_fail_byte(&s->j, "a field name", c);
		r = jscan_read_string(&s->j, field, sizeof(field) - 1);
		if (r < 0)
			return r;
		field[r] = '\0';
		r = jscan_expect(&s->j, ':');
		if (r < 0)
			return r;
		if (strcmp(field, "dtype") == 0) {
			bit = HAS_DTYPE;
			r = read_dtype(s, &e->dtype);
		} else if (strcmp(field, "shape") == 0) {
			bit = HAS_SHAPE;
			r = jscan_read_numbers(&s->j, "a size of shape", e->shape, ST_RANK_MAX);
			e->rank = r < 0 ? 0 : (uint32_t)r;
		} else if (strcmp(field, "data_offsets") == 0) {
			bit = HAS_OFFSETS;
			r = jscan_read_numbers(&s->j, "a number of data_offsets", offsets, 2);
			if (r >= 0 && r != 2)
				return jscan_fail(&s->j, "data_offsets has %d numbers instead of 2",
						  r);
		} else {
			return jscan_fail(&s->j, "field \"%s\" is not known", field);
		}
		if (r < 0)
			return r;
		if (has & bit)
			return jscan_fail(&s->j, "field %s stands there twice", field);
		has |= bit;
	}
	if (has != HAS_ALL)
		return jscan_fail(&s->j, "field %s is missing",
				  !(has & HAS_DTYPE)   ? "dtype"
				  : !(has & HAS_SHAPE) ? "shape"
						       : "data_offsets");
	return 0;
}

static int read_entry(struct scan *s, st_entry_fn *fn, void *data)
{
	struct st_entry e = { .name = s->j.subject, .name_len = s->j.subject_len };
	uint64_t offsets[2] = { 0, 0 }, wanted = 0;
	int r = read_fields(s, &e, offsets);

	if (r < 0)
		return r;
	r = shape_size(s, &e, &wanted);
	if (r < 0)
		return r;
	if (offsets[0] > offsets[1])
		return jscan_fail(&s->j, "data_offsets end before they begin");
	if (offsets[1] > s->data_size)
		return jscan_fail(
			&s->j,
			"its data ends at byte %llu of %llu: the file is cut short or the "
			"header lies",
			(unsigned long long)offsets[1], (unsigned long long)s->data_size);
	if (offsets[1] - offsets[0] != wanted)
		return jscan_fail(&s->j, "dtype and shape make %llu bytes, data_offsets %llu",
				  (unsigned long long)wanted,
				  (unsigned long long)(offsets[1] - offsets[0]));
	r = keep_region(s, offsets[0], offsets[1]);
	if (r < 0)
		return r;
	e.offset = s->header_end + offsets[0];
	e.size = wanted;
	return fn ? fn(data, &e, s->j.err) : 0;
}

/* ---- the whole file ---------------------------------------------------------------------- */

static int compare_begin(const void *a, const void *b)
{
	const struct region *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->end > y->end) - (x->end < y->end);
}

static int fail_overlap(struct scan *s, const struct region *a, const struct region *b)
{
	char name[256];
	size_t n = recall_name(s, a, name, sizeof(name));

	s->j.subject_len = recall_name(s, b, s->j.subject, sizeof(s->j.subject));
	return jscan_fail(&s->j, "its data overlap those of %.*s at data byte %llu", (int)n, name,
			  (unsigned long long)b->begin);
}

/* The regions must cover the data area exactly: no hole, no overlap, nothing after the last. */
static int check_regions(struct scan *s)
{
	const struct region *before = NULL;
	uint64_t at = 0;
	bool is_sorted = true;

	for (size_t i = 1; i < s->n_regions && is_sorted; i++)
		is_sorted = compare_begin(&s->regions[i - 1], &s->regions[i]) <= 0;
	if (!is_sorted)
		qsort(s->regions, s->n_regions, sizeof(*s->regions), compare_begin);
	s->j.subject_len = 0;
	for (size_t i = 0; i < s->n_regions; i++) {
		const struct region *g = &s->regions[i];

		if (g->begin == g->end)
			continue; /* empty tensors lie anywhere */
		if (g->begin < at)
			return fail_overlap(s, before, g);
		if (g->begin > at)
			return jscan_fail(&s->j, "data bytes %llu to %llu belong to no tensor",
					  (unsigned long long)at, (unsigned long long)g->begin);
		at = g->end;
		before = g;
	}
	if (at != s->data_size)
		return jscan_fail(&s->j, "%llu bytes after the last tensor belong to none",
				  (unsigned long long)(s->data_size - at));
	return 0;
}

/* Names are compared by a 64-bit hash: a chance collision (1e-12 a file) refuses a good file, it
 * never accepts a bad one. */
static int check_names(struct scan *s)
{
	CLEANUP(freep) size_t *table = NULL; /* index + 1; open addressing */
	size_t n = 16;

	while (n < 2 * s->n_regions)
		n *= 2;
	table = calloc(n, sizeof(*table));
	if (!table)
		return err_set(s->j.err, ERR_NO_MEMORY, "%s: out of memory", s->j.path);
	for (size_t i = 0; i < s->n_regions; i++) {
		size_t at = s->regions[i].name_hash & (n - 1);

		for (; table[at]; at = (at + 1) & (n - 1)) {
			const struct region *other = &s->regions[table[at] - 1];

			if (other->name_hash != s->regions[i].name_hash)
				continue;
			s->j.subject_len =
				recall_name(s, other, s->j.subject, sizeof(s->j.subject));
			return jscan_fail(&s->j,
					  "two tensors have this name (at data bytes %llu and "
					  "%llu)",
					  (unsigned long long)other->begin,
					  (unsigned long long)s->regions[i].begin);
		}
		table[at] = i + 1;
	}
	return 0;
}

/* The length prefix; leaves the window at the first byte of the JSON. */
static int open_header(struct scan *s)
{
	uint8_t prefix[8];
	struct stat st;
	uint64_t n = 0, size;
	int r;

	if (fstat(s->j.fd, &st) < 0)
		return err_set(s->j.err, ERR_IO, "%s: %s", s->j.path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return jscan_fail(&s->j, "not a regular file");
	size = (uint64_t)st.st_size;
	if (size < 8)
		return jscan_fail(&s->j, "%llu bytes are too few for a safetensors file",
				  (unsigned long long)size);
	r = fd_pread_all(s->j.fd, prefix, sizeof(prefix), 0);
	if (r < 0)
		return err_set(s->j.err, ERR_IO, "%s: reading failed: %s", s->j.path, strerror(-r));
	for (int i = 7; i >= 0; i--)
		n = n << 8 | prefix[i];
	if (n > size - 8)
		return jscan_fail(
			&s->j, "the header claims %llu bytes, the file has %llu after the length",
			(unsigned long long)n, (unsigned long long)(size - 8));
	s->header_end = 8 + n;
	s->data_size = size - s->header_end;
	s->j.window_off = 8;
	s->j.end_off = s->header_end;
	if (s->j.digest) {
		(void)XXH3_128bits_reset(s->j.digest);
		(void)XXH3_128bits_update(s->j.digest, prefix, sizeof(prefix));
	}
	return 0;
}

/* The names and entries up to the closing bracket of the header. */
static int read_entries(struct scan *s, st_entry_fn *fn, void *data)
{
	bool is_first = true, has_metadata = false;
	int c, r;

	c = jscan_next_byte(&s->j); /* the format wants the bracket first, without white space */
	if (c != '{')
		return jscan_fail_byte(&s->j, "'{'", c);
	for (c = jscan_next_token(&s->j); c != '}'; c = jscan_next_token(&s->j)) {
		s->j.subject_len = 0;
		if (!is_first && c == ',')
			c = jscan_next_token(&s->j);
		else if (!is_first)
			return jscan_fail_byte(&s->j, "',' or '}'", c);
		if (c != '"')
			return jscan_fail_byte(&s->j, "a tensor's name", c);
		is_first = false;
		s->name_off = s->j.window_off - (uint64_t)(s->j.end - s->j.at);
		r = jscan_read_string(&s->j, s->j.subject, sizeof(s->j.subject));
		if (r < 0)
			return r;
		s->j.subject_len = (size_t)r;
		r = jscan_expect(&s->j, ':');
		if (r < 0)
			return r;
		if (s->j.subject_len == 12 && memcmp(s->j.subject, "__metadata__", 12) == 0) {
			if (has_metadata)
				return jscan_fail(&s->j, "it stands there twice");
			has_metadata = true;
			c = jscan_next_token(&s->j);
			r = c == '{' ? jscan_skip_container(&s->j, c)
				     : jscan_fail_byte(&s->j, "an object", c);
		} else {
			r = read_entry(s, fn, data);
		}
		if (r < 0)
			return r;
	}
	s->j.subject_len = 0;
	return 0;
}

/* After the closing bracket only padding may follow. */
static int check_padding(struct scan *s)
{
	int r = 1;

	do {
		for (; s->j.at < s->j.end; s->j.at++)
			if (!strchr(" \t\r\n", *s->j.at) || *s->j.at == '\0')
				return jscan_fail(&s->j,
						  "something follows the header's JSON object");
		r = jscan_load(&s->j);
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
	jscan_init(&s->j, fd, path, 8, 8, err);
	s->regions = NULL;
	s->n_regions = s->n_allocated = 0;
	if (ret_header_digest) {
		s->j.digest = XXH3_createState();
		if (!s->j.digest)
			return err_set(err, ERR_NO_MEMORY, "%s: out of memory", path);
	}
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
		XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(s->j.digest));
		memcpy(ret_header_digest, canonical.digest, 16);
	}
	return 0;
}
