/*
 * The directory of a slab that an earlier daemon left, entry by entry: only what a daemon writes is
 * accepted. The header is right already, so sizes and places are known.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "iod/daemon.h"
#include "iod/keep.h"
#include "shared/fd.h"

struct place {
	uint64_t offset, size;
};

static int compare_places(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return (x->offset > y->offset) - (x->offset < y->offset);
}

static bool is_in_ring(const struct iod_daemon *d, uint64_t offset, uint64_t size)
{
	uint64_t cell = iod_trunk_cell_size(d->trunk), at = offset - d->plan.ring_off;

	return offset >= d->plan.ring_off && offset % SLAB_PAGE == 0 && size <= d->plan.ring_size &&
	       at <= d->plan.ring_size - size && at / cell == (at + size - 1) / cell;
}

/* What is wrong with a tile's entry, or NULL. pinned_at: where the next pinned tile lies. */
static const char *check_tile(const struct iod_daemon *d, const struct iod_tile *tile,
			      uint64_t pinned_at)
{
	const struct slab_entry *e = &d->slab->tiles[tile->index];
	uint32_t state = atomic_load(&e->state);

	if (state > SLAB_READY)
		return "state";
	if (e->id != tile->index || e->layer != d->source->catalog.tiles[tile->index].layer)
		return "id";
	if (e->flags != (tile->is_pinned ? SLAB_PINNED : 0u) || e->reserved != 0)
		return "flags";
	if (state == SLAB_EMPTY)
		return NULL;
	if (tile->is_pinned ? e->offset != pinned_at : !is_in_ring(d, e->offset, tile->size))
		return "offset";
	return NULL;
}

static int check_tiles(const struct iod_daemon *d, struct err *err)
{
	CLEANUP(freep)
	struct place *places = calloc((size_t)d->trunk->n_tiles + 1, sizeof(*places));
	uint64_t pinned_at = d->plan.pinned_off;
	uint32_t n = 0;

	if (!places)
		return err_set(err, ERR_NO_MEMORY, "no memory to look at the slab");
	for (uint32_t i = 0; i < d->trunk->n_tiles; i++) {
		const struct iod_tile *tile = &d->trunk->tiles[i];
		const struct slab_entry *e = &d->slab->tiles[i];
		const char *bad = check_tile(d, tile, pinned_at);

		if (bad)
			return err_set(err, ERR_STALE,
				       "its directory is damaged: %s of tile %" PRIu32, bad, i);
		if (tile->is_pinned)
			pinned_at += tile->size;
		else if (atomic_load(&e->state) != SLAB_EMPTY)
			places[n++] = (struct place){ e->offset, tile->size };
	}
	qsort(places, n, sizeof(*places), compare_places);
	for (uint32_t i = 1; i < n; i++)
		if (places[i].offset < places[i - 1].offset + places[i - 1].size)
			return err_set(err, ERR_STALE,
				       "its directory is damaged: tiles overlap at byte %" PRIu64,
				       places[i].offset);
	return 0;
}

/* What is wrong with a slot's entry, or NULL. seen: experts that are READY in some slot. */
static const char *check_slot(const struct iod_daemon *d, uint32_t index, bool *seen)
{
	const struct slab_entry *e = &d->slab->slots[index];
	uint32_t state = atomic_load(&e->state);
	bool *is_seen;

	if (state > SLAB_READY)
		return "state";
	if (e->offset != d->plan.slots_off + index * d->plan.slot_size || e->flags != 0 ||
	    e->reserved != 0)
		return "offset or flags";
	if (state == SLAB_EMPTY)
		return NULL;
	if (!source_expert(d->source, e->layer, e->id))
		return "expert";
	is_seen = &seen[d->source->expert_base[e->layer] + e->id];
	if (state == SLAB_READY && *is_seen)
		return "expert, which another slot has too,";
	*is_seen = *is_seen || state == SLAB_READY;
	return NULL;
}

static int check_slots(const struct iod_daemon *d, struct err *err)
{
	CLEANUP(freep) bool *seen = calloc((size_t)d->source->n_experts + 1, sizeof(*seen));

	if (!seen)
		return err_set(err, ERR_NO_MEMORY, "no memory to look at the slab");
	for (uint32_t i = 0; i < d->plan.n_slots; i++) {
		const char *bad = check_slot(d, i, seen);

		if (bad)
			return err_set(err, ERR_STALE,
				       "its directory is damaged: %s of slot %" PRIu32, bad, i);
	}
	return 0;
}

int iod_keep_check_directory(const struct iod_daemon *d, struct err *err)
{
	int r = check_tiles(d, err);

	return r < 0 ? r : check_slots(d, err);
}
