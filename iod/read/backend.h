#pragma once
/*
 * Between the reader and what does its reads: io_uring, or threads that pread. The reader owns the
 * operations and hands at most as many over as it announced; a back end knows nothing of requests,
 * classes or retries. Everything here happens on the loop thread: a back end adds its own source to
 * the event loop and reports from there.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <systemd/sd-event.h>

#include "shared/list.h"

enum { IOD_PAGE = 4096 };        /* every offset, size and address of a read is a multiple */
enum { IOD_NOT_FIXED = -1 };     /* iod_op.buffer of a read outside registered memory */
enum { IOD_OPS_MAX = 1u << 12 }; /* reads in flight over all devices */

/* One read. The reader fills it and must not touch it, or free dst, until it has landed. */
struct iod_op {
	uint32_t file;   /* index into iod_backend_setup.fds */
	uint32_t size;   /* bytes, multiple of IOD_PAGE */
	uint64_t offset; /* in the file, multiple of IOD_PAGE */
	uint8_t *dst;
	int32_t buffer;   /* piece of registered memory that holds all of dst, or IOD_NOT_FIXED */
	bool is_buffered; /* not O_DIRECT: the read may copy, which is no work for the loop thread
			   */
	int32_t result;   /* once landed: bytes, or -errno */
	struct list link; /* the back end's */
};

struct iod_backend_setup {
	sd_event *event;
	const int *fds; /* borrowed; stay open as long as the back end lives */
	uint32_t n_fds;
	uint32_t n_ops;           /* most operations ever handed over at a time */
	uint32_t n_usual;         /* as many as that at first, see set_depth */
	uint32_t n_pieces;        /* pieces of memory that register_piece will name */
	uint32_t n_rings_refused; /* see iod_kernel_ring_open; 0 but in tests */
	/* Kept open until no read of this process can land any more, also when it is killed (owned
	 * from a successful start on; 0: none). See keeps_alive_fd. */
	int alive_fd;
	/* From the loop: one operation has landed; then, once a turn, that was all. */
	void (*landed)(void *data, struct iod_op *op);
	void (*settled)(void *data);
	void *data;
};

struct iod_backend;
struct iod_backend_class {
	const char *name;
	/* Waits until nothing writes to memory any more. Takes NULL, returns NULL. */
	struct iod_backend *(*free)(struct iod_backend *b);
	/* Make mem known as fixed buffer number piece: 0 or -errno. NULL: no such thing here. */
	int (*register_piece)(struct iod_backend *b, uint32_t piece, uint8_t *mem, size_t size);
	/* Take an operation; it starts with flush. */
	void (*queue)(struct iod_backend *b, struct iod_op *op);
	/* 0, or IOD_FLUSH_AGAIN: the kernel did not take all, call again in a moment. */
	int (*flush)(struct iod_backend *b);
	/* From now on up to n operations are handed over at a time (at most n_ops). NULL: as well.
	 */
	void (*set_depth)(struct iod_backend *b, uint32_t n);
};
enum { IOD_FLUSH_AGAIN = 1 };

struct iod_backend {
	const struct iod_backend_class *class;
	bool keeps_alive_fd; /* what is promised of setup.alive_fd holds */
	const char *note;    /* which of its ways is on, and why not a better one; or NULL */
};

/* 0, or -errno from the kernel that refused (ENOSYS, EPERM, ...). */
int iod_backend_uring_new(struct iod_backend **ret, const struct iod_backend_setup *setup);
int iod_backend_threads_new(struct iod_backend **ret, const struct iod_backend_setup *setup);
