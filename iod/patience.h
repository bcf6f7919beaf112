#pragma once
/*
 * How long a client may keep others waiting. A lease has no end of its own: a client may compute on
 * a tile as long as it likes while nobody needs the place. When others wait for memory, or for a
 * seat, a client that holds leases and has not been heard of for --lease-limit seconds is taken for
 * stopped: its connection ends with an error that is worth another try, and its leases are back. It
 * loses time only: the slab stays mapped there, the generation tells whether what it computed on
 * was refilled, it connects again and goes on where it was.
 */
#include <stdint.h>

struct iod_daemon;

/* Once a second. now: CLOCK_MONOTONIC. */
void iod_patience_check(struct iod_daemon *d, uint64_t now_usec);
