#pragma once
/*
 * Where in the ring a tile can go. The ring is an area of the slab that holds tiles of any size,
 * each at a multiple of 4 KiB, kept in a list by offset; the rest is free. A place is a run of free
 * bytes and of tiles that may be evicted. The ring is divided into cells of the size of the largest
 * tile, and no tile lies across a border: so a leased tile, however small, keeps others from one
 * cell only, and a promise of cells is a promise of places.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/list.h"

struct iod_tile;

/* What evicting a tile would cost. */
struct iod_ring_cost {
	bool may_evict;
	uint64_t distance; /* tiles until a sweep wants it; UINT64_MAX: none does */
	uint64_t last_use; /* larger = used more recently */
};
typedef struct iod_ring_cost iod_ring_cost_fn(void *data, const struct iod_tile *tile);

struct iod_ring_want {
	uint64_t off, room;    /* the ring: [off, off + room) of the slab */
	uint64_t cell;         /* size of a cell */
	uint64_t size;         /* bytes wanted, at most a cell */
	uint64_t min_distance; /* only tiles that are wanted later than this may go */
	iod_ring_cost_fn *cost;
	void *data; /* for cost */
};

/* The place whose tiles are wanted latest; among equals the least recently used, then the lowest.
 * False: there is none. */
bool iod_ring_find(const struct list *tiles, const struct iod_ring_want *want, uint64_t *ret_place);
/* Insert by offset. */
void iod_ring_insert(struct list *tiles, struct iod_tile *tile);
