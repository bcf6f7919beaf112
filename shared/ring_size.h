#pragma once
/*
 * How large the ring of streamed tiles is. It bridges the time in which a client releases no tile
 * because it works on a layer's experts: the disk goes on reading into it for so long. A pure
 * function, run by the daemon and by a client that plans for it, so all it depends on comes from
 * options, profile and config: a daemon that is restarted finds its slab as it was. What the ring
 * does not need pins tiles.
 */
#include <stdbool.h>
#include <stdint.h>

struct config;

/* A rate of 0 is not known: that of a common machine is taken. A ring that is too small keeps the
 * disk idle in every layer, one that is too large costs a thousandth of the full model's trunk. */
struct ring_rates {
	double disk;        /* bytes a second of the devices that hold the trunk, together */
	double memory;      /* bytes a second that a client's threads read from memory */
	uint64_t gap_size;  /* bytes that a client works on between two releases; 0: not known */
	uint32_t n_clients; /* for which there is to be room; 0: two */
};

struct ring_want {
	struct ring_rates rates;
	uint64_t in_flight;     /* bytes that the reader keeps in flight */
	uint64_t max_tile_size; /* the ring's cell */
	uint64_t trunk_size, budget, least;
};

enum { RING_NOTE_SIZE = 128 };

/* Experts and shared experts of a layer for one row. */
uint64_t ring_gap_size(const struct config *c);
/* Bytes of the ring for a budget that does not cover the trunk, and why so many, as a phrase. */
uint64_t ring_size(const struct ring_want *w, char ret_note[RING_NOTE_SIZE]);
/* Can the rates change anything for a trunk of that size? */
bool ring_size_depends_on_rates(uint64_t trunk_size, uint64_t in_flight);
