/* The sidecar as a file: see sums.h. Refused unless every number of it fits the source at hand. */
#include "shared/sums.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/sums_make.h"

enum { HEADER_ROOM = 4096 };

/* NULL when the file is sound and of this source; else why not. Out of memory too. */
static const char *read_file(const struct source *s, int fd, uint64_t magic, struct sums **ret)
{
	CLEANUP(sums_freep) struct sums *m = NULL;
	struct sums_header h, mine;
	uint64_t checksum;

	if (fd_pread_all(fd, &h, sizeof(h), 0) < 0)
		return "it is too short";
	if (h.magic != magic)
		return "it is no finished file of checksums";
	if (h.version != SUMS_VERSION || h.header_size != sizeof(h) || h.incompat)
		return "it has a version or features this program does not know";
	checksum = h.header_checksum;
	h.header_checksum = 0;
	if (XXH3_64bits(&h, sizeof(h)) != checksum)
		return "its header is damaged";
	if (memcmp(h.model_digest, s->model_digest, sizeof(h.model_digest)) != 0)
		return "it was made from another checkpoint or config.json";
	if (h.n_layers > s->config.n_layers || h.n_layers < s->catalog.header->n_layers)
		return "it has not the layers that are asked for";
	if (sums_make(s, h.n_layers, &m) < 0)
		return "there is no memory for it";
	mine = m->header;
	if (h.n_blocks != mine.n_blocks || h.n_experts != mine.n_experts ||
	    h.n_rows != mine.n_rows || h.file_size != mine.file_size)
		return "its tables have other sizes than the config says";
	m->header = h;
	if (fd_pread_all(fd, m->tables, h.file_size - HEADER_ROOM, HEADER_ROOM) < 0)
		return "it is cut short";
	if (XXH3_64bits(m->tables, h.file_size - HEADER_ROOM) != h.table_checksum)
		return "its tables are damaged";
	*ret = TAKE(m);
	return NULL;
}

int sums_load(const struct source *s, const char *path, struct sums **ret, struct err *err)
{
	CLEANUP(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	const char *why;

	if (fd < 0)
		return err_set(err, errno == ENOENT ? ERR_CHECKPOINT : ERR_IO,
			       "%s: %s; write it with: k3-store verify --write MODEL", path,
			       strerror(errno));
	why = read_file(s, fd, SUMS_MAGIC, ret);
	if (!why)
		return 0;
	return err_set(err, ERR_CHECKPOINT,
		       "%s: %s; write it anew with: k3-store verify --write MODEL", path, why);
}

int sums_load_partial(const struct source *s, const char *path, struct sums **ret)
{
	CLEANUP(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	return fd < 0 || read_file(s, fd, SUMS_PARTIAL_MAGIC, ret) ? -ENODATA : 0;
}

int sums_save(struct sums *m, const char *path, uint64_t n_done)
{
	CLEANUP(freep) char *page = calloc(1, HEADER_ROOM);
	uint64_t size = m->header.file_size - HEADER_ROOM;
	struct sums_header *h = &m->header;
	struct fd_piece pieces[2];

	if (!page)
		return -ENOMEM;
	h->magic = n_done == UINT64_MAX ? SUMS_MAGIC : SUMS_PARTIAL_MAGIC;
	h->n_done = n_done == UINT64_MAX ? 0 : n_done;
	h->table_checksum = XXH3_64bits(m->tables, size);
	h->header_checksum = 0;
	h->header_checksum = XXH3_64bits(h, sizeof(*h));
	memcpy(page, h, sizeof(*h));
	pieces[0] = (struct fd_piece){ page, HEADER_ROOM };
	pieces[1] = (struct fd_piece){ m->tables, size };
	return fd_replace_file(path, pieces, 2);
}

char *sums_find(const char *const *trunks, uint32_t n_trunks, const char *const *dirs,
		uint32_t n_dirs)
{
	char *path;

	for (uint32_t i = 0; i < n_trunks; i++) {
		if (asprintf(&path, "%s.sums", trunks[i]) < 0)
			return NULL;
		if (access(path, F_OK) == 0)
			return path;
		free(path);
	}
	for (uint32_t i = 0; i < n_dirs; i++) {
		if (asprintf(&path, "%s/k3.sums", dirs[i]) < 0)
			return NULL;
		if (access(path, F_OK) == 0)
			return path;
		free(path);
	}
	return NULL;
}
