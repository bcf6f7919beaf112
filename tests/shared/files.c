#include "tests/shared/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/test.h"

const char *files_tmp(const char *name)
{
	static char paths[8][4096];
	static unsigned at;
	char *p = paths[at++ % 8];

	(void)snprintf(p, sizeof(paths[0]), "%s/%s", test_tmpdir(), name);
	return p;
}

void files_write(const char *path, const void *bytes, size_t size)
{
	FILE *f = fopen(path, "wb");

	CHECK_MSG(f, "%s cannot be written", path);
	CHECK(fwrite(bytes, 1, size, f) == size);
	CHECK(fclose(f) == 0);
}

void files_link_all(const char *src, const char *dst)
{
	DIR *d = opendir(src);
	const struct dirent *e;

	CHECK(mkdir(dst, 0755) == 0 && d);
	while ((e = readdir(d))) {
		char from[4096], to[4096];

		if (e->d_name[0] == '.')
			continue;
		(void)snprintf(from, sizeof(from), "%s/%s", src, e->d_name);
		(void)snprintf(to, sizeof(to), "%s/%s", dst, e->d_name);
		CHECK(symlink(from, to) == 0);
		if (strcmp(e->d_name, "config.json") == 0)
			files_own(to);
	}
	(void)closedir(d);
}

void files_own(const char *path)
{
	size_t size;
	char *bytes = test_read_file(path, &size);

	CHECK(unlink(path) == 0);
	files_write(path, bytes, size);
	free(bytes);
}

void files_patch(const char *path, unsigned nth, const char *from, const char *to)
{
	size_t size, len = strlen(from);
	char *bytes = test_read_file(path, &size), *at = bytes;

	CHECK(strlen(to) == len);
	for (;; at++) {
		at = memmem(at, size - (size_t)(at - bytes), from, len);
		CHECK_MSG(at, "%s: \"%s\" is not there to be patched", path, from);
		if (nth-- == 0)
			break;
	}
	memcpy(at, to, len);
	files_write(path, bytes, size);
	free(bytes);
}

void files_write_shard(const char *path, const char *header, size_t header_size, uint64_t data_size)
{
	char *bytes = malloc(8 + header_size + data_size);

	CHECK(bytes);
	for (unsigned i = 0; i < 8; i++)
		bytes[i] = (char)((uint64_t)header_size >> 8 * i);
	memcpy(bytes + 8, header, header_size);
	for (uint64_t i = 0; i < data_size; i++)
		bytes[8 + header_size + i] = (char)(i * 7 + 1);
	files_write(path, bytes, 8 + header_size + data_size);
	free(bytes);
}

static void add_headers(json_t *all, const char *path)
{
	FILE *f = fopen(path, "rb");
	unsigned char prefix[8];
	uint64_t n = 0;
	json_t *header, *v;
	const char *name;
	char *text;

	CHECK(f && fread(prefix, 1, 8, f) == 8);
	for (int i = 7; i >= 0; i--)
		n = n << 8 | prefix[i];
	text = malloc(n);
	CHECK(text && fread(text, 1, n, f) == n);
	(void)fclose(f);
	header = json_loadb(text, n, JSON_DISABLE_EOF_CHECK, NULL);
	CHECK(header);
	json_object_foreach(header, name, v)
	{
		json_t *offsets = json_object_get(v, "data_offsets");
		json_int_t begin = json_integer_value(json_array_get(offsets, 0));
		json_int_t end = json_integer_value(json_array_get(offsets, 1));

		if (strcmp(name, "__metadata__") == 0)
			continue;
		CHECK(json_object_set_new(all, name,
					  json_pack("{s:s, s:O, s:O, s:I, s:I}", "path", path,
						    "dtype", json_object_get(v, "dtype"), "shape",
						    json_object_get(v, "shape"), "off",
						    (json_int_t)(8 + n) + begin, "size",
						    end - begin)) == 0);
	}
	json_decref(header);
	free(text);
}

json_t *files_headers(const char *dir)
{
	json_t *all = json_object(), *index, *seen = json_object(), *v;
	char path[4096];
	const char *name;

	(void)snprintf(path, sizeof(path), "%s/model.safetensors.index.json", dir);
	index = json_load_file(path, 0, NULL);
	if (index) {
		json_object_foreach(json_object_get(index, "weight_map"), name, v)(void)
			json_object_set_new(seen, json_string_value(v), json_true());
		json_decref(index);
	} else {
		DIR *d = opendir(dir);
		const struct dirent *e;

		CHECK(d);
		while ((e = readdir(d)))
			if (strstr(e->d_name, ".safetensors"))
				(void)json_object_set_new(seen, e->d_name, json_true());
		(void)closedir(d);
	}
	json_object_foreach(seen, name, v)
	{
		(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
		add_headers(all, path);
	}
	json_decref(seen);
	return all;
}

char *files_tensor(json_t *headers, const char *name, size_t *ret_size)
{
	json_t *h = json_object_get(headers, name);
	size_t size;
	char *bytes;
	int fd;

	CHECK_MSG(h, "no tensor %s", name);
	size = (size_t)json_integer_value(json_object_get(h, "size"));
	bytes = malloc(size + 1);
	fd = open(json_string_value(json_object_get(h, "path")), O_RDONLY | O_CLOEXEC);
	CHECK(bytes && fd >= 0);
	CHECK(pread(fd, bytes, size, json_integer_value(json_object_get(h, "off"))) ==
	      (ssize_t)size);
	(void)close(fd);
	*ret_size = size;
	return bytes;
}
