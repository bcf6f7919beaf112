#pragma once
/* The ring that does most for us of those that this kernel gives. */
#include <liburing.h>
#include <stddef.h>
#include <stdint.h>

enum { IOD_KERNEL_RING_NOTE = 256 };

struct iod_kernel_ring {
	struct io_uring ring;
	/* Readable when something completes or can complete: the descriptor to watch. Edge
	 * triggered when it is an eventfd (owned) and not the ring's own. */
	int watch_fd;
	bool has_eventfd;
	char note[IOD_KERNEL_RING_NOTE]; /* what is on, and why not more */
};

/*
 * n_entries: room for so many reads in flight. n_refused: so many of the better ways are taken as
 * refused with EINVAL, as by an older kernel. 0, or -errno of the plain ring; then nothing is left
 * open.
 */
int iod_kernel_ring_open(struct iod_kernel_ring *ret, uint32_t n_entries, uint32_t n_refused);
void iod_kernel_ring_close(struct iod_kernel_ring *u);
/* Let the kernel post what has completed. True as long as there may be more after this. */
bool iod_kernel_ring_collect(struct iod_kernel_ring *u);
