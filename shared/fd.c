#include "shared/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/attr.h"

int fd_close(int fd)
{
	int saved = errno;

	if (fd >= 0)
		(void)close(fd);
	errno = saved;
	return -1;
}

void fd_closep(int *fd)
{
	*fd = fd_close(*fd);
}

void freep(void *p)
{
	free(*(void **)p);
}

int fd_pread_all(int fd, void *buf, size_t size, uint64_t offset)
{
	char *at = buf;

	while (size > 0) {
		ssize_t n = pread(fd, at, size, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -ENODATA;
		at += n;
		offset += (uint64_t)n;
		size -= (size_t)n;
	}
	return 0;
}

int fd_pwrite_all(int fd, const void *buf, size_t size, uint64_t offset)
{
	const char *at = buf;

	while (size > 0) {
		ssize_t n = pwrite(fd, at, size, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		at += n;
		offset += (uint64_t)n;
		size -= (size_t)n;
	}
	return 0;
}

int fd_slurp(int fd, size_t max, char **ret, size_t *ret_size)
{
	CLEANUP(freep) char *buf = NULL;
	struct stat st;
	size_t size;
	int r;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	size = (size_t)st.st_size;
	if (size > max)
		return -EFBIG;
	buf = malloc(size + 1);
	if (!buf)
		return -ENOMEM;
	r = fd_pread_all(fd, buf, size, 0);
	if (r < 0)
		return r;
	buf[size] = '\0';
	*ret = TAKE(buf);
	*ret_size = size;
	return 0;
}

int fd_read_file(int dir_fd, const char *path, size_t max, char **ret, size_t *ret_size)
{
	CLEANUP(fd_closep) int fd = -1;

	/* never waiting for a writer of a pipe, which fd_slurp refuses */
	fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	return fd_slurp(fd, max, ret, ret_size);
}

const char *fd_strerror(int error)
{
	return error == EMFILE ? "too many open files; raise the limit (RLIMIT_NOFILE) with "
				 "ulimit -n 4096, or LimitNOFILE=4096 in a unit"
			       : strerror(error);
}

const char *fd_why(int r)
{
	return r == -EINVAL ? "it is no regular file" : fd_strerror(-r);
}

int fd_sync_directory_of(const char *path)
{
	CLEANUP(freep) char *dir = strdup(path);
	CLEANUP(fd_closep) int fd = -1;
	char *slash;

	if (!dir)
		return -ENOMEM;
	slash = strrchr(dir, '/');
	if (slash)
		slash[slash == dir ? 1 : 0] = '\0';
	fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

static int write_pieces(const char *path, const struct fd_piece *pieces, size_t n_pieces)
{
	CLEANUP(fd_closep)
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	uint64_t at = 0;

	if (fd < 0)
		return -errno;
	for (size_t i = 0; i < n_pieces; i++) {
		int r = fd_pwrite_all(fd, pieces[i].bytes, pieces[i].size, at);

		if (r < 0)
			return r;
		at += pieces[i].size;
	}
	return fdatasync(fd) < 0 ? -errno : 0;
}

int fd_replace_file(const char *path, const struct fd_piece *pieces, size_t n_pieces)
{
	CLEANUP(freep) char *fresh = NULL;
	struct stat st;
	int r;

	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode) ? -EISDIR : -EEXIST;
	if (asprintf(&fresh, "%s.new", path) < 0) {
		fresh = NULL;
		return -ENOMEM;
	}
	r = write_pieces(fresh, pieces, n_pieces);
	if (r == 0 && rename(fresh, path) < 0)
		r = -errno;
	if (r < 0) {
		(void)unlink(fresh);
		return r;
	}
	return fd_sync_directory_of(path);
}

int fd_memfd(const char *name, uint64_t size, unsigned more)
{
	CLEANUP(fd_closep) int fd = -1;

	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | more);
	if (fd < 0)
		return -errno;
	if (fchmod(fd, 0600) < 0)
		return -errno;
	if (ftruncate(fd, (off_t)size) < 0)
		return -errno;
	return TAKE_FD(fd);
}

int fd_seal(int fd, int read_only)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW | (read_only ? F_SEAL_WRITE : 0);

	return fcntl(fd, F_ADD_SEALS, seals) < 0 ? -errno : 0;
}

int fd_reopen_read_only(int fd)
{
	char path[64];
	int r;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = open(path, O_RDONLY | O_CLOEXEC);
	return r < 0 ? -errno : r;
}
