/*
 * Reads by io_uring. What tells that something has completed is a member of the event loop (see
 * kernel_ring.c for the kinds of ring). Files are registered where the kernel takes them; memory
 * piece by piece into a table that starts empty, so that no single call pins more than a piece.
 *
 * The submission queue holds as many entries as the reader ever has in flight, so an entry can
 * always be had, and the completion queue, twice as long, cannot overflow.
 */
#include "iod/read/backend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "iod/read/kernel_ring.h"
#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/must.h"

struct uring {
	struct iod_backend backend;
	struct iod_backend_setup setup;
	struct iod_kernel_ring ring;
	sd_event_source *source;
	int *fds;
	uint32_t n_in_flight; /* handed over by the reader, not yet landed */
	bool has_ring;
	bool has_files;
	bool has_buffer_table;
	int buffer_table_error;
	char note[IOD_KERNEL_RING_NOTE + 64];
};

static struct uring *uring_of(struct iod_backend *b)
{
	return CONTAINER_OF(b, struct uring, backend);
}

/* What is in the completion queue; report = false when the reader is going away. */
static uint32_t reap_posted(struct uring *u, bool report)
{
	struct io_uring_cqe *cqes[64];
	uint32_t n_all = 0;
	unsigned n;

	while ((n = io_uring_peek_batch_cqe(&u->ring.ring, cqes, N_ELEMENTS(cqes))) > 0) {
		struct iod_op *ops[N_ELEMENTS(cqes)];

		for (unsigned i = 0; i < n; i++) {
			ops[i] = io_uring_cqe_get_data(cqes[i]);
			ops[i]->result = cqes[i]->res;
		}
		io_uring_cq_advance(&u->ring.ring, n);
		u->n_in_flight -= n;
		n_all += n;
		for (unsigned i = 0; report && i < n; i++)
			u->setup.landed(u->setup.data, ops[i]);
	}
	return n_all;
}

/* The same until nothing is left that the kernel could post. */
static uint32_t reap(struct uring *u, bool report)
{
	uint32_t n = 0;

	do
		n += reap_posted(u, report);
	while (iod_kernel_ring_collect(&u->ring));
	return n;
}

static int on_readable(sd_event_source *source, int fd, uint32_t revents, void *data)
{
	struct uring *u = data;

	(void)source;
	(void)fd;
	(void)revents;
	if (reap(u, true) > 0)
		u->setup.settled(u->setup.data);
	return 0;
}

static struct iod_backend *uring_free(struct iod_backend *b)
{
	struct uring *u;

	if (!b)
		return NULL;
	u = uring_of(b);
	(void)sd_event_source_disable_unref(u->source);
	while (u->n_in_flight > 0) {
		int r = io_uring_submit_and_wait(&u->ring.ring, 1);

		if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY)
			break;
		(void)reap(u, false);
	}
	if (u->has_ring)
		iod_kernel_ring_close(&u->ring);
	free(u->fds);
	free(u);
	return NULL;
}

static int uring_register_piece(struct iod_backend *b, uint32_t piece, uint8_t *mem, size_t size)
{
	struct uring *u = uring_of(b);
	struct iovec iov = { .iov_base = mem, .iov_len = size };
	__u64 tag = 0;
	int r;

	if (!u->has_buffer_table)
		return u->buffer_table_error;
	must(piece < u->setup.n_pieces);
	r = io_uring_register_buffers_update_tag(&u->ring.ring, piece, &iov, &tag, 1);
	return r < 0 ? r : 0;
}

static void uring_queue(struct iod_backend *b, struct iod_op *op)
{
	struct uring *u = uring_of(b);
	struct io_uring_sqe *sqe;
	int fd = u->has_files ? (int)op->file : u->fds[op->file];

	must(u->n_in_flight < u->setup.n_ops);
	sqe = io_uring_get_sqe(&u->ring.ring);
	must(sqe);
	if (op->buffer == IOD_NOT_FIXED)
		io_uring_prep_read(sqe, fd, op->dst, op->size, op->offset);
	else
		io_uring_prep_read_fixed(sqe, fd, op->dst, op->size, op->offset, op->buffer);
	sqe->flags =
		(__u8)((u->has_files ? IOSQE_FIXED_FILE : 0) | (op->is_buffered ? IOSQE_ASYNC : 0));
	io_uring_sqe_set_data(sqe, op);
	u->n_in_flight++;
}

static int uring_flush(struct iod_backend *b)
{
	struct uring *u = uring_of(b);
	int r = io_uring_submit(&u->ring.ring);

	/* Entries the kernel did not take stay in the queue. */
	must(r >= 0 || r == -EAGAIN || r == -EBUSY || r == -EINTR || r == -ENOMEM);
	return io_uring_sq_ready(&u->ring.ring) > 0 ? IOD_FLUSH_AGAIN : 0;
}

static const struct iod_backend_class uring_class = {
	.name = "io_uring",
	.free = uring_free,
	.register_piece = uring_register_piece,
	.queue = uring_queue,
	.flush = uring_flush,
};

/* The files, and behind them alive_fd, which then lives in the ring alone: the kernel lets go of
 * the ring's files after the last of its reads, however the process ends. */
static void register_files(struct uring *u)
{
	uint32_t n = u->setup.n_fds;
	int r = -ENOENT;

	if (u->setup.alive_fd > 0)
		u->fds[n++] = u->setup.alive_fd;
	if (n > 0)
		r = io_uring_register_files(&u->ring.ring, u->fds, n);
	u->has_files = r == 0;
	(void)snprintf(
		u->note, sizeof(u->note), "%s; %s%s", u->ring.note,
		r == 0 ? "registered files" : "files not registered: ", r == 0 ? "" : strerror(-r));
	u->backend.note = u->note;
	u->backend.keeps_alive_fd = u->has_files && u->setup.alive_fd > 0;
}

static int uring_init(struct uring *u)
{
	int r;

	r = iod_kernel_ring_open(&u->ring, u->setup.n_ops, u->setup.n_rings_refused);
	if (r < 0)
		return r;
	u->has_ring = true;
	/* Both registrations are for speed alone: reads work without. */
	register_files(u);
	if (u->setup.n_pieces > 0) {
		r = io_uring_register_buffers_sparse(&u->ring.ring, u->setup.n_pieces);
		u->buffer_table_error = r;
		u->has_buffer_table = r == 0;
	}
	/* an eventfd is never read: each writing of it is an edge */
	return sd_event_add_io(u->setup.event, &u->source, u->ring.watch_fd,
			       EPOLLIN | (u->ring.has_eventfd ? EPOLLET : 0), on_readable, u);
}

int iod_backend_uring_new(struct iod_backend **ret, const struct iod_backend_setup *setup)
{
	struct uring *u;
	int r;

	must(setup->n_ops > 0 && setup->n_ops <= IOD_OPS_MAX);
	u = calloc(1, sizeof(*u));
	if (!u)
		return -ENOMEM;
	u->backend.class = &uring_class;
	u->setup = *setup;
	u->fds = malloc((setup->n_fds + 1) * sizeof(*u->fds));
	if (!u->fds) {
		uring_free(&u->backend);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < setup->n_fds; i++)
		u->fds[i] = setup->fds[i];
	r = uring_init(u);
	if (r < 0) {
		uring_free(&u->backend);
		return r;
	}
	if (setup->alive_fd > 0)
		(void)fd_close(setup->alive_fd);
	*ret = &u->backend;
	return 0;
}
