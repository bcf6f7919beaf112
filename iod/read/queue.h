#pragma once
/*
 * Whose chunk is next on one device. Requests wait in a list per class, first come first served
 * within a class; the most urgent class with work goes first. At most depth chunks are in flight,
 * and of hints and of background work one each: so that a demand never waits for more than what the
 * trunk stream has in flight and a chunk.
 */
#include <stdbool.h>
#include <stdint.h>

#include "iod/read/read.h"

struct iod_queue {
	struct list waiting[IOD_READ_CLASS_N_]; /* struct iod_read.link */
	uint32_t depth;
	uint32_t chunk; /* bytes of a read at most */
	uint32_t n_in_flight;
	uint32_t n_class[IOD_READ_CLASS_N_]; /* of them, by class */
	uint64_t bytes[IOD_READ_CLASS_N_];   /* landed so far */
};

void iod_queue_init(struct iod_queue *q);
/* Wait at the end of its class, or (a request whose next bytes lie on another device than the ones
 * before) at the head. */
void iod_queue_push(struct iod_queue *q, struct iod_read *req);
void iod_queue_push_head(struct iod_queue *q, struct iod_read *req);
void iod_queue_remove(struct iod_read *req);
/* The waiting request whose next chunk may start now, or NULL. It stays in its list. */
struct iod_read *iod_queue_next(const struct iod_queue *q);
void iod_queue_started(struct iod_queue *q, enum iod_read_class class);
void iod_queue_landed(struct iod_queue *q, enum iod_read_class class);
