#pragma once
/*
 * Sharing the sweep, carried out: what share.h decides, for the clients of a daemon. A client is
 * held at the start of a sweep (nothing is read or handed over for it), rides with others within
 * the ring, or goes alone. Holds and patience are bounded, and a client that failed to ride takes
 * part again only after a pause: so nobody waits for ever, and nobody slow holds up the others.
 */
#include <stdbool.h>
#include <stdint.h>

#include <systemd/sd-event.h>

#include "iod/share.h"

struct iod_daemon;
struct iod_client;

/* Of one client. */
struct iod_ride {
	bool is_held;
	bool has_fallen;    /* goes alone until the end of a sweep, or of the pause */
	bool stops_at_wrap; /* will be held there: nothing is read beyond */
	uint32_t n_kept;    /* tiles from its cursor on that the reading of the one before it must
			       leave */
	bool is_blocking;   /* in this pump one before it starved for what it has not used */
	uint64_t held_since_usec;     /* is_held */
	uint64_t blocking_since_usec; /* 0: it is not */
	uint64_t blocked_usec;        /* others, in this sweep */
	uint64_t held_usec;           /* in all */
	uint32_t n_failures;          /* in a row: held in vain, fallen off */
	uint32_t pause;               /* sweeps until it takes part again */
};

/* Of the daemon. */
struct iod_rides {
	struct iod_share_pace pace;
	uint64_t *streamed; /* [n_tiles + 1]: bytes of the tiles before that are not pinned */
	uint64_t window;    /* the ring */
	uint64_t looked_usec, looked_bytes; /* of the look before */
	bool is_busy, is_sweeping;          /* from then to now */
	uint64_t deadline_usec;             /* something must be looked at again; UINT64_MAX: not */
	sd_event_source *timer;
};

enum iod_ride_state { IOD_RIDE_NONE, IOD_RIDE_ALONE, IOD_RIDE_RIDING, IOD_RIDE_HELD };

int iod_rides_init(struct iod_daemon *d);
void iod_rides_deinit(struct iod_daemon *d);

/* The client's sweep begins at the first tile. */
void iod_ride_begin(struct iod_client *c);
/* At the start of a pump: measure, and decide who is held. */
void iod_rides_look(struct iod_daemon *d);
/* A place is looked for on behalf of c: set n_kept of all others. */
void iod_rides_mark_kept(struct iod_client *c);
/* Somebody before q has nothing to compute on and no place to read to, because of what q has before
 * it. */
void iod_ride_blocks(struct iod_client *q);
/* At the end of a pump: those that have blocked for too long fall off. True: somebody did, and the
 * pump can go on. */
bool iod_rides_settle(struct iod_daemon *d);

enum iod_ride_state iod_ride_state(const struct iod_client *c);
/* "riding", "held", "alone"; "none" outside a sweep. */
const char *iod_ride_state_name(const struct iod_client *c);
