/* Header scan: odd files that are right, and broken ones that each get a sentence. */
#include "shared/safetensors.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/harness/test.h"
#include "tests/shared/files.h"

static struct err err;
static uint8_t digest[16];

struct seen {
	unsigned n;
	struct st_entry last;
	char names[64][128];
	struct st_entry entries[64];
};

static int see(void *data, const struct st_entry *e, struct err *e_err)
{
	struct seen *s = data;

	(void)e_err;
	if (s->n < 64) {
		(void)snprintf(s->names[s->n], sizeof(s->names[0]), "%.*s", (int)e->name_len,
			       e->name);
		s->entries[s->n] = *e;
	}
	s->n++;
	return 0;
}

static int scan(const char *path, struct seen *s)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), r;

	CHECK_MSG(fd >= 0, "%s", path);
	memset(s, 0, sizeof(*s));
	err_clear(&err);
	r = st_scan(fd, path, see, s, digest, &err);
	(void)close(fd);
	return r;
}

static int find(const struct seen *s, const char *name)
{
	for (unsigned i = 0; i < s->n; i++)
		if (strcmp(s->names[i], name) == 0)
			return (int)i;
	test_fail(__FILE__, __LINE__, "no entry %s", name);
}

static void odd_files(void)
{
	struct seen s;
	const struct st_entry *e;
	const char *path = test_data("safetensors/model-00001-of-00002.safetensors");
	XXH128_canonical_t canonical;
	size_t size;
	char *bytes;

	CHECK_MSG(scan(path, &s) == 0, "%s", err.text);
	CHECK_EQ(s.n, 10);
	e = &s.entries[find(&s, "plain.bf16.1d")];
	CHECK(e->dtype == ST_BF16 && e->rank == 1 && e->shape[0] == 128);
	CHECK(e->offset == 8 + 1022 + 1024 && e->size == 256);
	e = &s.entries[find(&s, "scalar.f32")];
	CHECK(e->rank == 0 && e->size == 4 && e->offset == 8 + 1022 + 1632);
	e = &s.entries[find(&s, "empty.f32")];
	CHECK(e->rank == 2 && e->shape[0] == 0 && e->size == 0);
	bytes = test_read_file(path, &size);
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, 8 + 1022));
	CHECK(memcmp(canonical.digest, digest, 16) == 0);
	free(bytes);
	CHECK_MSG(scan(test_data("safetensors/model-00002-of-00002.safetensors"), &s) == 0, "%s",
		  err.text);
	(void)find(&s, "weird\\name.\"with\"quotes");
	CHECK_MSG(scan(test_data("cache/model-00001-of-00001.safetensors"), &s) == 0, "%s",
		  err.text);
	CHECK_EQ(s.n, 144);
}

static int scan_text(const char *header, uint64_t data_size, struct seen *s)
{
	const char *path = files_tmp("x.safetensors");

	files_write_shard(path, header, strlen(header), data_size);
	return scan(path, s);
}

static void right(void)
{
	static const struct {
		const char *header;
		uint64_t data_size;
		unsigned n;
	} rows[] = {
		{ "{}", 0, 0 },
		{ "{}      ", 0, 0 },
		{ "{ } \n\t\r ", 0, 0 },
		{ "{\"__metadata__\":{}}", 0, 0 },
		{ "{\"__metadata__\":{\"a\":\"}{][\\\"\",\"b\":{\"c\":[1,-2.5e3,null,true]}}}", 0,
		  0 },
		{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, 1 },
		{ "{\"a\" : {\n\"data_offsets\" : [ 0 , 3 ] , \"shape\" : [ 3 ] , \"dtype\" :"
		  "\"U8\"\n}\n}",
		  3, 1 },
		/* later in the file first; a hole-free cover in the end */
		{ "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[3,11]},"
		  "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
		  11, 2 },
		{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
		  "\"__metadata__\":{\"x\":\"y\"},"
		  "\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[1,1]}}",
		  3, 2 },
		{ "{\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, 1 },
		{ "{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1,1,1,1,1,1,2],\"data_offsets\":[0,2]"
		  "}}",
		  2, 1 },
	};
	struct seen s;

	for (size_t i = 0; i < N_ELEMENTS(rows); i++) {
		CHECK_MSG(scan_text(rows[i].header, rows[i].data_size, &s) == 0, "row %zu: %s", i,
			  err.text);
		CHECK_EQ(s.n, rows[i].n);
	}
	CHECK(scan_text(
		      "{\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\\/\\t\":{\"dtype\":\"U8\",\"shape\":"
		      "[],\"data_offsets\":[0,1]}}",
		      1, &s) == 0);
	CHECK_STR(s.names[0], "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80/\t");
}

#define ONE(dtype, shape, offsets) \
	"{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct {
	const char *header;
	uint64_t data_size;
	const char *says;
} broken_rows[] = {
	{ "", 0, "ends too early" },
	{ " {}", 0, "'{' belongs" },
	{ "[]", 0, "'{' belongs" },
	{ "{", 0, "ends too early" },
	{ "{}x", 0, "something follows" },
	{ "{}{}", 0, "something follows" },
	{ "{,}", 0, "tensor's name" },
	{ "{\"a\"}", 0, "':' belongs" },
	{ "{\"a\":}", 0, "'{' belongs" },
	{ "{\"a\":[]}", 0, "'{' belongs" },
	{ "{\"a\":{}}", 0, "dtype is missing" },
	{ "{\"a\":{\"dtype\":\"U8\"}}", 0, "shape is missing" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets is missing" },
	{ ONE("\"U8\"", "[3]", "[0,3]") ",", 3, "something follows" },
	{ ONE("\"U9\"", "[3]", "[0,3]"), 3, "dtype U9 is not known" },
	{ ONE("\"U888888888888888888888\"", "[3]", "[0,3]"), 3, "longer than" },
	{ ONE("8", "[3]", "[0,3]"), 3, "belongs" },
	{ ONE("\"U8\"", "[3]", "[0,4]"), 4, "make 3 bytes, data_offsets 4" },
	{ ONE("\"F32\"", "[3]", "[0,3]"), 3, "make 12 bytes" },
	{ ONE("\"U8\"", "[3]", "[0,3]"), 2, "cut short" },
	{ ONE("\"U8\"", "[3]", "[0,3]"), 4, "belong to none" },
	{ ONE("\"U8\"", "[3]", "[1,4]"), 4, "belong to no tensor" },
	{ ONE("\"U8\"", "[3]", "[3,0]"), 3, "end before they begin" },
	{ ONE("\"U8\"", "[3]", "[0]"), 3, "1 numbers instead of 2" },
	{ ONE("\"U8\"", "[3]", "[0,1,3]"), 3, "more than 2 numbers" },
	{ ONE("\"U8\"", "[3]", "[-1,2]"), 3, "is negative" },
	{ ONE("\"U8\"", "[-3]", "[0,3]"), 3, "is negative" },
	{ ONE("\"U8\"", "[3.0]", "[0,3]"), 3, "not a whole number" },
	{ ONE("\"U8\"", "[3e0]", "[0,3]"), 3, "not a whole number" },
	{ ONE("\"U8\"", "[03]", "[0,3]"), 3, "leading zero" },
	{ ONE("\"U8\"", "[3,]", "[0,3]"), 3, "belongs" },
	{ ONE("\"U8\"", "[3 4]", "[0,3]"), 3, "belongs" },
	{ ONE("\"U8\"", "[\"3\"]", "[0,3]"), 3, "belongs" },
	{ ONE("\"U8\"", "[[3]]", "[0,3]"), 3, "belongs" },
	{ ONE("\"U8\"", "3", "[0,3]"), 3, "'[' belongs" },
	{ ONE("\"U8\"", "[1,1,1,1,1,1,1,1,3]", "[0,3]"), 3, "more than 8 numbers" },
	{ ONE("\"U8\"", "[18446744073709551616]", "[0,3]"), 3, "does not fit 64 bits" },
	{ ONE("\"U8\"", "[18446744073709551615]", "[0,18446744073709551615]"), 3, "cut short" },
	{ ONE("\"F32\"", "[4611686018427387904]", "[0,0]"), 0, "overflows" },
	{ ONE("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, "overflows" },
	{ "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}"
	  "}",
	  3, "stands there twice" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3],\"x\":1}}", 3,
	  "\"x\" is not known" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},}", 3, "tensor's name" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]} \"b\":{}}", 3,
	  "belongs" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
	  "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[3,6]}}",
	  6, "have this name" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
	  "\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[3,6]}}",
	  6, "have this name" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
	  "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]}}",
	  5, "overlap" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
	  "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
	  3, "overlap" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
	  "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]}}",
	  7, "belong to no tensor" },
	{ "{\"__metadata__\":[]}", 0, "an object belongs" },
	{ "{\"__metadata__\":\"x\"}", 0, "an object belongs" },
	{ "{\"__metadata__\":{\"a\":[}]}}", 0, "other bracket" },
	{ "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice" },
	{ "{\"__metadata__\":{[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0, "too deeply" },
	{ "{\"a\\ud800\":{}}", 0, "surrogate" },
	{ "{\"a\\udc00\":{}}", 0, "surrogate" },
	{ "{\"a\\ud800\\u0041\":{}}", 0, "surrogate" },
	{ "{\"a\\u0000\":{}}", 0, "zero character" },
	{ "{\"a\\x\":{}}", 0, "an escape belongs" },
	{ "{\"a\\u00g0\":{}}", 0, "hexadecimal" },
	{ "{\"a\nb\":{}}", 0, "string character" },
	{ "{\"abc", 0, "ends too early" },
};

static void broken(void)
{
	struct seen s;

	CHECK(N_ELEMENTS(broken_rows) >= 30);
	for (size_t i = 0; i < N_ELEMENTS(broken_rows); i++) {
		CHECK_MSG(scan_text(broken_rows[i].header, broken_rows[i].data_size, &s) < 0,
			  "row %zu was accepted: %s", i, broken_rows[i].header);
		CHECK_EQ(err.code, ERR_CHECKPOINT);
		CHECK_MSG(strstr(err.text, broken_rows[i].says), "%s: \"%s\" does not say \"%s\"",
			  broken_rows[i].header, err.text, broken_rows[i].says);
		CHECK_MSG(strstr(err.text, "x.safetensors"), "%s: no file is named", err.text);
		CHECK_MSG(strstr(err.text, "; fetch it again"), "%s: no remedy", err.text);
	}
	/* The tensor is named where one is at fault. */
	CHECK(scan_text("{\"the.name\":{\"dtype\":\"U9\"}}", 0, &s) < 0);
	CHECK(strstr(err.text, "\"the.name\""));
}

/* Length prefixes that lie. */
static void lengths(void)
{
	static const unsigned char prefixes[][8] = {
		{ 3, 0, 0, 0, 0, 0, 0, 0 },
		{ 255, 255, 255, 255, 255, 255, 255, 255 },
		{ 248, 255, 255, 255, 255, 255, 255, 255 },
		{ 2, 0, 0, 0, 0, 0, 0, 128 },
		{ 0, 0, 0, 1, 0, 0, 0, 0 },
	};
	const char *path = files_tmp("x.safetensors");
	struct seen s;
	char bytes[10];

	for (size_t i = 0; i < N_ELEMENTS(prefixes); i++) {
		memcpy(bytes, prefixes[i], 8);
		memcpy(bytes + 8, "{}", 2);
		files_write(path, bytes, sizeof(bytes));
		CHECK(scan(path, &s) < 0);
		CHECK_MSG(strstr(err.text, "claims"), "%s", err.text);
	}
	for (size_t n = 0; n < 8; n++) {
		files_write(path, bytes, n);
		CHECK(scan(path, &s) < 0);
		CHECK_MSG(strstr(err.text, "too few"), "%s", err.text);
	}
}

/* Every shorter version of a good file is refused; so is a longer one. */
static void truncated(void)
{
	size_t size;
	char *bytes =
		test_read_file(test_data("safetensors/model-00002-of-00002.safetensors"), &size);
	const char *path = files_tmp("x.safetensors");
	struct seen s;

	for (size_t n = 0; n < size; n++) {
		files_write(path, bytes, n);
		CHECK_MSG(scan(path, &s) < 0, "%zu of %zu bytes were accepted", n, size);
	}
	files_write(path, bytes, size + 1); /* the terminating zero */
	CHECK(scan(path, &s) < 0);
	free(bytes);
}

/* Random damage: never a crash, and every accepted entry lies in the file. */
static void fuzz(void)
{
	size_t size;
	char *bytes =
		test_read_file(test_data("safetensors/model-00001-of-00002.safetensors"), &size);
	const char *path = files_tmp("x.safetensors");
	uint64_t random = 88172645463325252ull;
	unsigned accepted = 0;

	for (unsigned i = 0; i < 4000; i++) {
		char *copy = malloc(size);
		unsigned n = 1 + i % 4;
		struct seen s;

		memcpy(copy, bytes, size);
		while (n--) {
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			copy[random % 1030] = "{}[]\",:0123456789\\ux -e\xff"[random >> 32 & 15];
		}
		files_write(path, copy, size);
		if (scan(path, &s) == 0)
			accepted++;
		for (unsigned k = 0; k < s.n && k < 64; k++)
			CHECK(s.entries[k].offset <= size &&
			      s.entries[k].size <= size - s.entries[k].offset);
		free(copy);
	}
	CHECK(accepted < 4000);
	free(bytes);
}

/* A header of 12 MB whose names and numbers fall on every place of the window's border. */
static void large(void)
{
	const char *path = files_tmp("x.safetensors");
	char *header = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&header, &size);
	struct seen s;
	unsigned n = 0;

	CHECK(f && fputc('{', f) != EOF);
	for (; ftell(f) < 12000000; n++)
		CHECK(fprintf(f,
			      "%s\"layer.%u.\\\"%.*s\":{\"dtype\":\"U8\",\"shape\":[1,2],"
			      "\"data_offsets\":[%u,%u]}",
			      n ? "," : "", n, (int)(n % 61),
			      "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghi",
			      2 * n, 2 * n + 2) > 0);
	CHECK(fprintf(f, "}%*s", 300000, "") > 0 && fclose(f) == 0);
	files_write_shard(path, header, size, 2ull * n);
	CHECK_MSG(scan(path, &s) == 0, "%s", err.text);
	CHECK_EQ(s.n, n);
	free(header);
}

static int refuse(void *data, const struct st_entry *e, struct err *e_err)
{
	(void)e;
	(*(int *)data)++;
	return err_set(e_err, ERR_BIND, "not this one");
}

static void callback_stops(void)
{
	int fd = open(test_data("safetensors/model-00001-of-00002.safetensors"),
		      O_RDONLY | O_CLOEXEC);
	int n = 0;

	err_clear(&err);
	CHECK(st_scan(fd, "x", refuse, &n, NULL, &err) < 0);
	CHECK_EQ(n, 1);
	CHECK_EQ(err.code, ERR_BIND);
	(void)close(fd);
}

static const struct test_case cases[] = {
	{ "odd_files", odd_files }, { "right", right },
	{ "broken", broken },       { "lengths", lengths },
	{ "truncated", truncated }, { "fuzz", fuzz },
	{ "large", large },         { "callback_stops", callback_stops },
};
TEST_MAIN(cases)
