#pragma once
/*
 * Whose chunk is next on one device. Requests wait in a list per class, first come first served
 * within a class; the most urgent class with work goes first. At most depth chunks are in flight,
 * and of hints and of background work one each: so that a demand never waits for more than what the
 * trunk stream has in flight and a chunk.
 */
#include <stdbool.h>
#include <stdint.h>

#include "iod/read.h"

struct iod_sched {
	struct list waiting[IOD_READ_CLASS_N_]; /* struct iod_read.link */
	uint32_t depth;
	uint32_t n_in_flight;
	uint32_t n_class[IOD_READ_CLASS_N_]; /* of them, by class */
};

void iod_sched_init(struct iod_sched *s, uint32_t depth);
/* Wait at the end of its class, or (a request whose next bytes lie on another device than the ones
 * before) at the head. */
void iod_sched_push(struct iod_sched *s, struct iod_read *req);
void iod_sched_push_head(struct iod_sched *s, struct iod_read *req);
void iod_sched_remove(struct iod_read *req);
/* The waiting request whose next chunk may start now, or NULL. It stays in its list. */
struct iod_read *iod_sched_next(const struct iod_sched *s);
void iod_sched_started(struct iod_sched *s, enum iod_read_class class);
void iod_sched_landed(struct iod_sched *s, enum iod_read_class class);
