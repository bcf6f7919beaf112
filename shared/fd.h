#pragma once
/* File descriptors: -1 is "none"; cleanup helpers for CLEANUP(). */
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

int fd_close(int fd); /* closes when >= 0, keeps errno; returns -1 to assign back */
void fd_closep(int *fd);

/* pread/pwrite/write of exactly size bytes (retries EINTR and short results): 0, -errno, or
 * -ENODATA at an early end of file. */
int fd_pread_all(int fd, void *buf, size_t size, uint64_t offset);
int fd_pwrite_all(int fd, const void *buf, size_t size, uint64_t offset);

/* Whole file into a fresh, NUL-terminated heap buffer; -EFBIG above max bytes. Caller frees. */
int fd_read_file(int dir_fd, const char *path, size_t max, char **ret, size_t *ret_size);
int fd_slurp(int fd, size_t max, char **ret, size_t *ret_size);
/* strerror(error), and of too few descriptors also the remedy; error > 0. */
const char *fd_strerror(int error);
/* Why one of these two failed, for a sentence: r is what it returned, below 0. */
const char *fd_why(int r);

/*
 * Replace the file at path by these pieces: written beside it (path.new), synced, renamed, the
 * directory synced; so there is always the old file or the new one, whole. 0 or -errno, the old
 * file then as it was. -EEXIST, -EISDIR: what is there is no regular file, and is left alone: root
 * would replace a device.
 */
struct fd_piece {
	const void *bytes;
	size_t size;
};
int fd_replace_file(const char *path, const struct fd_piece *pieces, size_t n_pieces);
/* Sync the directory that holds path, after a rename: 0 or -errno. */
int fd_sync_directory_of(const char *path);

/* A memfd with cloexec and sealing allowed; more: further MFD_ flags. */
int fd_memfd(const char *name, uint64_t size, unsigned more);
/* Seal against shrink and grow, and also against writing when read_only. */
int fd_seal(int fd, int read_only);
/* The same memory reopened O_RDONLY: what is given to clients. Returns the new fd or -errno. */
int fd_reopen_read_only(int fd);

void freep(void *p); /* CLEANUP(freep) char *x */
