#include "iod/ring.h"

#include "iod/trunk.h"

static struct iod_tile *tile_at(const struct list *node)
{
	return list_entry((struct list *)node, struct iod_tile, ring_link);
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
static bool judge(const struct list *tiles, const struct iod_ring_want *want,
		  const struct list *next, uint64_t place, struct worth *ret)
{
	*ret = (struct worth){ .distance = UINT64_MAX, .last_use = 0 };
	for (; next != tiles && tile_at(next)->offset < place + want->size; next = next->next) {
		struct iod_ring_cost c = want->cost(want->data, tile_at(next));

		if (!c.may_evict || c.distance <= want->min_distance)
			return false;
		if (c.distance < ret->distance)
			ret->distance = c.distance;
		if (c.last_use > ret->last_use)
			ret->last_use = c.last_use;
	}
	return true;
}

bool iod_ring_find(const struct list *tiles, const struct iod_ring_want *want, uint64_t *ret_place)
{
	const struct list *next = tiles->next; /* the first tile at or after place */
	uint64_t end = want->off + want->room;
	struct worth best = { 0 };
	bool has_best = false;

	/* a place begins where a cell or the tile before it in the cell ends */
	for (uint64_t cell = want->off; cell < end; cell += want->cell) {
		uint64_t cell_end = cell + want->cell < end ? cell + want->cell : end;
		uint64_t place = cell;

		while (place + want->size <= cell_end) {
			struct worth w;

			if (judge(tiles, want, next, place, &w) &&
			    (!has_best || is_better(&w, &best))) {
				best = w;
				has_best = true;
				*ret_place = place;
			}
			if (next == tiles || tile_at(next)->offset >= cell_end)
				break;
			place = tile_at(next)->offset + tile_at(next)->size;
			next = next->next;
		}
		while (next != tiles && tile_at(next)->offset < cell_end)
			next = next->next;
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
