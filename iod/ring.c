#include "iod/ring.h"

#include "iod/trunk.h"

static struct iod_tile *tile_at(const struct list *node)
{
	return list_entry((struct list *)(uintptr_t)node, struct iod_tile, ring_link);
}

struct worth {
	uint64_t distance; /* of the tile in the run that is wanted first */
	uint64_t last_use; /* of the tile in the run that was used last */
};

static bool is_better(const struct worth *a, const struct worth *b)
{
	if (a->distance != b->distance)
		return a->distance > b->distance;
	return a->last_use < b->last_use;
}

/* Look at the run [place, place + size), whose first tile can only be *next or a later one. */
static bool judge(const struct list *tiles, const struct list *next, uint64_t place, uint64_t size,
		  uint64_t min_distance, iod_ring_cost_fn *cost, void *data, struct worth *ret)
{
	*ret = (struct worth){ .distance = UINT64_MAX, .last_use = 0 };
	for (; next != tiles && tile_at(next)->offset < place + size; next = next->next) {
		struct iod_ring_cost c = cost(data, tile_at(next));

		if (!c.may_evict || c.distance <= min_distance)
			return false;
		if (c.distance < ret->distance)
			ret->distance = c.distance;
		if (c.last_use > ret->last_use)
			ret->last_use = c.last_use;
	}
	return true;
}

bool iod_ring_find(const struct list *tiles, uint64_t off, uint64_t room, uint64_t size,
		   uint64_t min_distance, iod_ring_cost_fn *cost, void *data, uint64_t *ret_place)
{
	const struct list *before = tiles; /* the tile at whose end the place begins */
	uint64_t place = off;
	struct worth best = { 0 };
	bool has_best = false;

	if (size > room)
		return false;
	for (;;) {
		struct worth w;

		if (place + size > off + room)
			break;
		if (judge(tiles, before->next, place, size, min_distance, cost, data, &w) &&
		    (!has_best || is_better(&w, &best))) {
			best = w;
			has_best = true;
			*ret_place = place;
			if (w.distance == UINT64_MAX && w.last_use == 0)
				break; /* free altogether */
		}
		before = before->next;
		if (before == tiles)
			break;
		place = tile_at(before)->offset + tile_at(before)->size;
	}
	return has_best;
}

void iod_ring_insert(struct list *tiles, struct iod_tile *tile)
{
	struct list *at = tiles->next;

	while (at != tiles && tile_at(at)->offset < tile->offset)
		at = at->next;
	list_push_tail(at, &tile->ring_link);
}
