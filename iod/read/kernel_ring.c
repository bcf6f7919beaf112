/*
 * Where completions are made matters: by default the kernel interrupts the loop thread for each, so
 * that it can post it. From 5.19 on it can wait until the thread enters the kernel by itself
 * (COOP_TASKRUN); from 6.1 on until the thread asks for them (DEFER_TASKRUN), which only a ring of
 * a single thread may have: the loop thread makes the ring, submits and collects.
 *
 * A deferred ring has traps. Its own descriptor need not become readable, so an eventfd is
 * registered, which is written when the list of deferred work stops being empty. One call collects
 * a bounded number; the kernel then keeps the rest on another list, for which nothing is written,
 * and only says so in IORING_SQ_TASKRUN. Hence iod_kernel_ring_collect is called until that is
 * clear.
 */
#include "iod/read/kernel_ring.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "shared/attr.h"
#include "shared/fd.h"

/* Younger than the oldest headers that this is built with. */
#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1u << 8)
#define IORING_SETUP_TASKRUN_FLAG (1u << 9)
#define IORING_SQ_TASKRUN         (1u << 2)
#endif
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1u << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1u << 13)
#endif

/* The best first. */
static const struct way {
	const char *name;
	unsigned flags;
	bool needs_eventfd;
} ways[] = {
	{ "deferred completions",
	  IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN |
		  IORING_SETUP_TASKRUN_FLAG,
	  true },
	{ "cooperative completions", IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, false },
	{ "plain ring", 0, false },
};

/* Sandboxes may allow the set-up and forbid the use: run one empty operation. */
static int try_ring(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	int r;

	if (!sqe)
		return -EIO;
	io_uring_prep_nop(sqe);
	r = io_uring_submit(ring);
	if (r < 0)
		return r;
	r = io_uring_wait_cqe(ring, &cqe);
	if (r < 0)
		return r;
	r = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return r;
}

static int watch(struct iod_kernel_ring *u, const struct way *way)
{
	int r;

	u->watch_fd = u->ring.ring_fd;
	u->has_eventfd = false;
	if (!way->needs_eventfd)
		return 0;
	u->watch_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (u->watch_fd < 0)
		return -errno;
	u->has_eventfd = true;
	/* not register_eventfd_async: that one is not written by what completes at once */
	r = io_uring_register_eventfd(&u->ring, u->watch_fd);
	return r < 0 ? r : 0;
}

static int open_way(struct iod_kernel_ring *u, uint32_t n_entries, const struct way *way)
{
	int r = io_uring_queue_init(n_entries, &u->ring, IORING_SETUP_CLAMP | way->flags);

	if (r < 0)
		return r;
	r = watch(u, way);
	if (r == 0)
		r = try_ring(&u->ring);
	if (r < 0)
		iod_kernel_ring_close(u);
	return r < 0 ? r : 0;
}

int iod_kernel_ring_open(struct iod_kernel_ring *ret, uint32_t n_entries, uint32_t n_refused)
{
	char refused[IOD_KERNEL_RING_NOTE - 48] = "";
	int r = -ENOSYS;

	for (size_t i = 0; i < N_ELEMENTS(ways); i++) {
		size_t len = strlen(refused);

		*ret = (struct iod_kernel_ring){ .watch_fd = -1 };
		r = i < n_refused ? -EINVAL : open_way(ret, n_entries, &ways[i]);
		if (r == 0) {
			(void)snprintf(ret->note, sizeof(ret->note), "%s%s", ways[i].name, refused);
			return 0;
		}
		(void)snprintf(refused + len, sizeof(refused) - len, "; no %s: %s", ways[i].name,
			       r == -EINVAL ? "kernel too old" : strerror(-r));
	}
	return r;
}

void iod_kernel_ring_close(struct iod_kernel_ring *u)
{
	io_uring_queue_exit(&u->ring);
	if (u->has_eventfd)
		u->watch_fd = fd_close(u->watch_fd);
}

bool iod_kernel_ring_collect(struct iod_kernel_ring *u)
{
	if (!(IO_URING_READ_ONCE(*u->ring.sq.kflags) & IORING_SQ_TASKRUN))
		return false;
	return io_uring_get_events(&u->ring) >= 0;
}
