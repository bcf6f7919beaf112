/* The files that k3-store bench reads. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "iod/store/bench.h"
#include "shared/attr.h"
#include "shared/catalog.h"
#include "shared/fd.h"

enum { LEAST_SIZE = 32 << 20 };
#define REMEDY                                                                                    \
	"give a larger file on that disk (head -c 1G /dev/urandom >FILE makes one), or the disk " \
	"itself (/dev/...)"

static int fail(const char *path, struct err *err)
{
	return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
}

/* Does the directory entry lead to a regular file? A directory's other contents are passed over. */
static bool is_wanted(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= LEAST_SIZE;
}

static int add_file(struct source *s, const char *path, struct err *err)
{
	CLEANUP(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct source_file *files;
	uint64_t size;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return fail(path, err);
	size = (uint64_t)st.st_size;
	if (S_ISBLK(st.st_mode) && ioctl(fd, BLKGETSIZE64, &size) < 0)
		return fail(path, err);
	if (size < LEAST_SIZE)
		return err_set(
			err, ERR_USAGE,
			"%s: %llu bytes are too few to measure, %d MiB is the least; " REMEDY, path,
			(unsigned long long)size, LEAST_SIZE >> 20);
	files = realloc(s->files, (s->n_files + 1) * sizeof(*files));
	if (!files)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	s->files = files;
	files[s->n_files] = (struct source_file){ .path = realpath(path, NULL), .size = size };
	if (!files[s->n_files].path)
		return fail(path, err);
	files[s->n_files++].fd = TAKE_FD(fd);
	return 0;
}

static int add_directory(struct source *s, const char *path, struct err *err)
{
	struct dirent **entries;
	int n = scandir(path, &entries, NULL, alphasort), r = 0;

	if (n < 0)
		return fail(path, err);
	for (int i = 0; i < n; i++) {
		CLEANUP(freep) char *name = NULL;

		if (r == 0 && asprintf(&name, "%s/%s", path, entries[i]->d_name) < 0) {
			name = NULL;
			r = err_set(err, ERR_NO_MEMORY, "out of memory");
		}
		if (r == 0 && is_wanted(name))
			r = add_file(s, name, err);
		free(entries[i]);
	}
	free(entries);
	return r;
}

int iod_bench_open(const char *const *paths, uint32_t n_paths, struct source **ret, struct err *err)
{
	CLEANUP(source_freep) struct source *s = calloc(1, sizeof(*s));
	struct stat st;

	if (!s)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	for (uint32_t i = 0; i < n_paths; i++) {
		uint32_t before = s->n_files;
		int r;

		if (stat(paths[i], &st) < 0)
			return fail(paths[i], err);
		r = S_ISDIR(st.st_mode) ? add_directory(s, paths[i], err)
					: add_file(s, paths[i], err);
		if (r < 0)
			return r;
		if (s->n_files == before)
			return err_set(err, ERR_USAGE,
				       "%s: no file of %d MiB or more in it; " REMEDY, paths[i],
				       LEAST_SIZE >> 20);
	}
	*ret = TAKE(s);
	return 0;
}
