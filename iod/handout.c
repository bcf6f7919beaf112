#include "iod/handout.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"

enum { HANDOUT_FILE_MAX = 256 << 20 };

void iod_handout_init(struct iod_handout *h)
{
	*h = (struct iod_handout){ -1, -1, -1, -1, -1 };
}

void iod_handout_deinit(struct iod_handout *h)
{
	(void)fd_close(h->slab_fd);
	(void)fd_close(h->catalog_fd);
	(void)fd_close(h->config_fd);
	(void)fd_close(h->vocabulary_fd);
	(void)fd_close(h->tokenizer_config_fd);
	iod_handout_init(h);
}

/* A memfd with these bytes that nobody can change; opened read-only. */
static int seal_copy(const char *name, const void *bytes, size_t size)
{
	CLEANUP(fd_closep) int fd = fd_memfd(name, size, 0);
	int r;

	if (fd < 0)
		return fd;
	r = fd_pwrite_all(fd, bytes, size, 0);
	if (r < 0)
		return r;
	r = fd_seal(fd, 1);
	if (r < 0)
		return r;
	return fd_reopen_read_only(fd);
}

static int copy_file(const char *path)
{
	CLEANUP(freep) char *text = NULL;
	const char *name = strrchr(path, '/');
	size_t size;
	int r = fd_read_file(AT_FDCWD, path, HANDOUT_FILE_MAX, &text, &size);

	return r < 0 ? r : seal_copy(name ? name + 1 : path, text, size);
}

/* The first of the directories that has the file; -ENOENT. path receives what was opened last. */
static int copy_first(const char *const *dirs, size_t n_dirs, const char *name, char *path)
{
	int r = -ENOENT;

	for (size_t i = 0; i < n_dirs && r == -ENOENT; i++) {
		(void)snprintf(path, PATH_MAX, "%s/%s", dirs[i], name);
		r = copy_file(path);
	}
	return r;
}

static int open_tokenizer(struct iod_handout *h, const struct iod_handout_want *want,
			  struct err *err)
{
	const char *const *dirs = want->tokenizer_dir ? &want->tokenizer_dir : want->model_dirs;
	size_t n_dirs = want->tokenizer_dir ? 1 : want->n_model_dirs;
	char path[PATH_MAX];

	h->vocabulary_fd = copy_first(dirs, n_dirs, "tiktoken.model", path);
	if (h->vocabulary_fd < 0 && (want->tokenizer_dir || h->vocabulary_fd != -ENOENT))
		return err_set(err, ERR_VOCABULARY, "%s: %s", path, fd_why(h->vocabulary_fd));
	h->tokenizer_config_fd = copy_first(dirs, n_dirs, "tokenizer_config.json", path);
	if (h->tokenizer_config_fd < 0 &&
	    (want->tokenizer_dir || h->tokenizer_config_fd != -ENOENT))
		return err_set(err, ERR_VOCABULARY, "%s: %s", path, fd_why(h->tokenizer_config_fd));
	return 0;
}

int iod_handout_open(struct iod_handout *h, const struct iod_handout_want *want, struct err *err)
{
	char path[PATH_MAX];

	if (access("/proc/self/fd", F_OK) < 0)
		return err_set(err, ERR_UNSUPPORTED,
			       "/proc is not mounted: without it no memory can be handed out "
			       "read-only; mount it");
	h->catalog_fd =
		seal_copy("k3-catalog", want->source->catalog_bytes, want->source->catalog_size);
	if (h->catalog_fd < 0)
		return err_set(err, ERR_NO_MEMORY, "a copy of the catalog: %s",
			       fd_strerror(-h->catalog_fd));
	if (want->config_path) {
		(void)snprintf(path, sizeof(path), "%s", want->config_path);
		h->config_fd = copy_file(path);
	} else {
		h->config_fd =
			copy_first(want->model_dirs, want->n_model_dirs, "config.json", path);
	}
	if (h->config_fd < 0)
		return err_set(err, ERR_CONFIG, "%s: %s", path, fd_why(h->config_fd));
	return open_tokenizer(h, want, err);
}

int iod_handout_add_slab(struct iod_handout *h, const struct slab *slab, struct err *err)
{
	h->slab_fd = fd_reopen_read_only(slab->fd);
	if (h->slab_fd < 0)
		return err_set(err, ERR_NO_MEMORY, "reopening the slab read-only: %s",
			       fd_strerror(-h->slab_fd));
	return 0;
}
