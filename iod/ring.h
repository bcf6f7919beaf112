#pragma once
/*
 * Where in the ring a tile can go. The ring is an area of the slab that holds tiles of any size,
 * each at a multiple of 4 KiB, kept in a list by offset; the rest is free. A place is a run of free
 * bytes and of tiles that may be evicted.
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

/*
 * The place for size bytes in [off, off + room) whose tiles are wanted latest, all of them later
 * than min_distance; among equals the least recently used, then the lowest. False: there is none.
 */
bool iod_ring_find(const struct list *tiles, uint64_t off, uint64_t room, uint64_t size,
		   uint64_t min_distance, iod_ring_cost_fn *cost, void *data, uint64_t *ret_place);
/* Insert by offset. */
void iod_ring_insert(struct list *tiles, struct iod_tile *tile);
