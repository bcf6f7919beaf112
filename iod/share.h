#pragma once
/*
 * Sharing the sweep: which client is held at the start of a sweep so that others come in phase with
 * it, who rides behind whom, and when a rider has fallen off (docs/sharing.md). Only decisions are
 * here, over times and positions that the caller gives; ride.c carries them out.
 *
 * Positions are bytes that the sweep streams (pinned tiles are not among them), times microseconds.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One client's way through the trunk. */
struct iod_share_way {
	uint64_t at;    /* streamed bytes before its cursor: 0 ... length */
	uint64_t ahead; /* before the first that is neither there nor on its way; may pass length */
	uint64_t length; /* of the whole sweep */
	bool goes_on;    /* another sweep follows this one */
	bool is_held;
	bool has_fallen; /* off; nobody waits for it */
};

/* What the disks give to sweeps, measured while they were wanted; older time counts less. */
struct iod_share_pace {
	uint64_t wall_usec; /* in which some client was in a sweep */
	uint64_t busy_usec; /* of it, tiles were being read for sweeps */
	uint64_t bytes;     /* that came in busy_usec */
};

void iod_share_pace_add(struct iod_share_pace *p, uint64_t usec, bool is_busy, uint64_t bytes,
			uint64_t length);
/* Time that the disks take for so many bytes; 0: not known yet. */
uint64_t iod_share_usec(const struct iod_share_pace *p, uint64_t bytes);
/* Do clients wait for the disks, rather than the disks for clients? Only then sharing pays. */
bool iod_share_is_short(const struct iod_share_pace *p);

/* Does q ride behind c: will it use, within the window, what c has read? */
bool iod_share_is_behind(const struct iod_share_way *q, const struct iod_share_way *c,
			 uint64_t window);
/* How long c, which stands at the start of a sweep, should be held until the others of the n that
 * are worth it have come round; 0: it goes. At most left_usec. */
uint64_t iod_share_hold_usec(const struct iod_share_way *c, const struct iod_share_way *others,
			     size_t n, const struct iod_share_pace *p, uint64_t window,
			     uint64_t left_usec);
/* How long in one sweep a rider may keep those before it waiting, until it falls off. */
uint64_t iod_share_patience_usec(const struct iod_share_pace *p, uint64_t length);
/* Sweeps in which a client neither holds nor is held for, after so many failures in a row. */
uint32_t iod_share_pause(uint32_t n_failures);
