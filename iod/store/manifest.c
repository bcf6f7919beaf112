/* See manifest.h. SHA-256 is libcrypto's (docs/decisions). */
#include "iod/store/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "shared/attr.h"
#include "shared/fd.h"

enum { MANIFEST_MAX = 64 << 20, ROWS_MAX = 1 << 20, PIECE_SIZE = 8 << 20 };

void iod_manifest_deinit(struct iod_manifest *m)
{
	free(m->rows);
	memset(m, 0, sizeof(*m));
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)(c | 32);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_hex(const char *text, uint8_t bytes[32])
{
	for (unsigned i = 0; i < 32; i++) {
		int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);

		if (low < 0)
			return false;
		bytes[i] = (uint8_t)(high * 16 + low);
	}
	return text[64] == '\0' || text[64] == '\t' || text[64] == '\r';
}

/* A comment, or a file that is no shard. */
static bool is_passed_over(const char *line)
{
	static const char suffix[] = ".safetensors";
	size_t len = strcspn(line, "\t"), n = sizeof(suffix) - 1;

	return *line == '#' || *line == '\0' ||
	       (line[len] == '\t' && (len < n || memcmp(line + len - n, suffix, n) != 0));
}

/* One line, NUL-terminated. */
static bool parse_row(char *line, struct iod_manifest_row *row)
{
	char *tab = strchr(line, '\t'), *end;

	if (!tab || tab == line || (size_t)(tab - line) >= sizeof(row->name))
		return false;
	memcpy(row->name, line, (size_t)(tab - line));
	row->name[tab - line] = '\0';
	if (tab[1] < '0' || tab[1] > '9')
		return false;
	errno = 0;
	row->size = strtoull(tab + 1, &end, 10);
	return errno == 0 && *end == '\t' && parse_hex(end + 1, row->sha256);
}

int iod_manifest_read(const char *path, struct iod_manifest *ret, struct err *err)
{
	CLEANUP(iod_manifest_deinit) struct iod_manifest m = { 0 };
	CLEANUP(freep) char *text = NULL;
	uint32_t n_allocated = 0, number = 0;
	size_t size = 0;
	int r = fd_read_file(AT_FDCWD, path, MANIFEST_MAX, &text, &size);

	if (r < 0)
		return err_set(err, ERR_USAGE, "--manifest %s: %s", path, fd_why(r));
	for (char *line = text, *next; line && *line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		number++;
		if (is_passed_over(line))
			continue;
		if (m.n == n_allocated) {
			uint32_t more = n_allocated ? 2 * n_allocated : 128;
			void *grown = reallocarray(m.rows, more, sizeof(*m.rows));

			if (!grown || more > ROWS_MAX)
				return err_set(err, ERR_NO_MEMORY, "%s: too many lines", path);
			m.rows = grown;
			n_allocated = more;
		}
		if (!parse_row(line, &m.rows[m.n++]))
			return err_set(err, ERR_USAGE,
				       "%s, line %u: not a name, a size and a SHA-256, separated "
				       "by tabs",
				       path, number);
	}
	if (m.n == 0)
		return err_set(err, ERR_USAGE, "%s: no file is in this manifest", path);
	*ret = m;
	m.rows = NULL;
	return 0;
}

const struct iod_manifest_row *iod_manifest_find(const struct iod_manifest *m, const char *path)
{
	const char *slash = strrchr(path, '/');

	for (uint32_t i = 0; i < m->n; i++)
		if (strcmp(m->rows[i].name, slash ? slash + 1 : path) == 0)
			return &m->rows[i];
	return NULL;
}

static int hash_file(int fd, EVP_MD_CTX *ctx, uint8_t *buf,
		     void (*progress)(void *data, uint64_t bytes), void *data)
{
	off_t at = 0;

	for (;;) {
		ssize_t n = pread(fd, buf, PIECE_SIZE, at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : 0;
		if (EVP_DigestUpdate(ctx, buf, (size_t)n) != 1)
			return -EINVAL;
		(void)posix_fadvise(fd, at, n, POSIX_FADV_DONTNEED);
		at += n;
		if (progress)
			progress(data, (uint64_t)n);
	}
}

int iod_manifest_hash(int fd, void (*progress)(void *data, uint64_t bytes), void *data,
		      uint8_t ret[32])
{
	CLEANUP(freep) uint8_t *buf = malloc(PIECE_SIZE);
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	unsigned len = 0;
	int r = -ENOMEM;

	if (buf && ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1) {
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
		r = hash_file(fd, ctx, buf, progress, data);
	}
	if (r == 0 && EVP_DigestFinal_ex(ctx, ret, &len) != 1)
		r = -EINVAL;
	EVP_MD_CTX_free(ctx);
	return r;
}
