#include "iod/trunk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "iod/checks.h"
#include "iod/read/change.h"
#include "iod/ring.h"
#include "shared/attr.h"
#include "shared/must.h"

/* Background reads under way: enough to keep a disk busy, not so many that they are far ahead. */
enum { PIN_AHEAD = 32 << 20 };

/* Spread: walk the sweep with a debt that grows by each tile's share of the budget; a tile whose
 * size the debt covers is pinned. */
static void choose_pinned(struct iod_trunk *t, uint64_t budget)
{
	uint64_t total = t->source->catalog.header->trunk_size;
	double share = total > 0 ? (double)budget / (double)total : 0.0;
	double debt = 0.0;

	for (uint32_t i = 0; i < t->n_tiles; i++) {
		struct iod_tile *tile = &t->tiles[i];

		debt += share * (double)tile->size;
		if (budget < total &&
		    (debt < (double)tile->size || t->pinned_size + tile->size > budget))
			continue;
		debt -= (double)tile->size;
		tile->is_pinned = true;
		t->pinned_size += tile->size;
		t->n_pinned++;
	}
}

static int index_layers(struct iod_trunk *t)
{
	uint32_t n_layers = t->source->catalog.header->n_layers;
	uint32_t at = 0;

	t->layer_first = calloc((size_t)n_layers + 2, sizeof(*t->layer_first));
	if (!t->layer_first)
		return -ENOMEM;
	for (uint32_t layer = 0; layer <= n_layers; layer++) {
		while (at < t->n_tiles && t->source->catalog.tiles[at].layer < layer)
			at++;
		t->layer_first[layer] = at;
	}
	t->layer_first[n_layers + 1] = t->n_tiles;
	return 0;
}

static void iod_trunk_freep(struct iod_trunk **t)
{
	*t = iod_trunk_free(*t);
}

int iod_trunk_new(struct iod_trunk **ret, const struct source *source, uint64_t budget)
{
	CLEANUP(iod_trunk_freep) struct iod_trunk *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->source = source;
	t->n_tiles = source->catalog.header->n_tiles;
	list_init(&t->ring);
	t->tiles = calloc((size_t)t->n_tiles + 1, sizeof(*t->tiles));
	if (!t->tiles)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->n_tiles; i++) {
		struct iod_tile *tile = &t->tiles[i];

		tile->trunk = t;
		tile->index = i;
		tile->size = source->catalog.tiles[i].slab_size;
		list_init(&tile->ring_link);
		list_init(&tile->read.link);
	}
	choose_pinned(t, budget);
	t->pinned_ready = calloc((size_t)t->n_pinned + 1, sizeof(*t->pinned_ready));
	if (!t->pinned_ready)
		return -ENOMEM;
	if (index_layers(t) < 0)
		return -ENOMEM;
	*ret = TAKE(t);
	return 0;
}

struct iod_trunk *iod_trunk_free(struct iod_trunk *t)
{
	if (!t)
		return NULL;
	free(t->cell_leases);
	free(t->pinned_ready);
	free(t->layer_first);
	free(t->tiles);
	free(t);
	return NULL;
}

uint64_t iod_trunk_cell_size(const struct iod_trunk *t)
{
	return t->source->catalog.header->max_tile_size;
}

uint32_t iod_trunk_cell_of(const struct iod_trunk *t, const struct iod_tile *tile)
{
	return (uint32_t)((tile->offset - t->slab->header.ring_off) / iod_trunk_cell_size(t));
}

int iod_trunk_start(struct iod_trunk *t, struct slab *slab, struct iod_reader *reader,
		    const struct iod_checks *checks, struct iod_metrics *metrics,
		    iod_trunk_changed_fn *changed, void *data)
{
	uint64_t place = slab->header.pinned_off;

	t->slab = slab;
	t->reader = reader;
	t->checks = checks;
	t->metrics = metrics;
	t->changed = changed;
	t->changed_data = data;
	for (uint32_t i = 0; i < t->n_tiles; i++) {
		slab->tiles[i].layer = t->source->catalog.tiles[i].layer;
		if (!t->tiles[i].is_pinned)
			continue;
		slab->tiles[i].flags = SLAB_PINNED;
		t->tiles[i].offset = place;
		place += t->tiles[i].size;
	}
	must(place - slab->header.pinned_off <= slab->header.pinned_size);
	if (slab->header.ring_size > 0)
		t->n_cells = (uint32_t)(slab->header.ring_size / iod_trunk_cell_size(t));
	t->cell_leases = calloc((size_t)t->n_cells + 1, sizeof(*t->cell_leases));
	return t->cell_leases ? 0 : -ENOMEM;
}

static struct slab_entry *entry_of(const struct iod_tile *tile)
{
	return &tile->trunk->slab->tiles[tile->index];
}

static void submit(struct iod_tile *tile, enum iod_read_class class);

/* Read once more after a first mismatch: 1; -EBADMSG after a second. */
static int check(struct iod_trunk *t, struct iod_tile *tile)
{
	struct err err = { 0 };

	if (iod_checks_tile(t->checks, tile->index, t->slab->base + tile->offset, &err) == 0)
		return 0;
	if (tile->is_again) {
		t->fault = err;
		t->fault_tile = tile->index;
		return -EBADMSG;
	}
	iod_checks_tell_again(t->checks, &err);
	tile->is_again = true;
	submit(tile, tile->read.class);
	return 1;
}

static void on_read(struct iod_read *r, int result)
{
	struct iod_tile *tile = r->data;
	struct iod_trunk *t = tile->trunk;
	struct slab_entry *e = entry_of(tile);

	must(tile->state == SLAB_LOADING);
	t->metrics->trunk_bytes_read += r->bytes_read;
	if (result == 0)
		result = check(t, tile);
	if (result > 0)
		return;
	if (tile->is_wanted)
		t->wanted_size -= tile->size;
	tile->is_wanted = false;
	if (result < 0) {
		tile->state = SLAB_EMPTY;
		tile->error = result;
		list_remove(&tile->ring_link);
		atomic_store_explicit(&e->state, SLAB_EMPTY, memory_order_release);
		e->offset = 0;
	} else {
		tile->state = SLAB_READY;
		tile->uncharged += r->bytes_read;
		tile->last_use = ++t->tick;
		t->metrics->tiles_read++;
		/* pairs with a client's acquire of state: the bytes and the offset come first */
		atomic_store_explicit(&e->state, SLAB_READY, memory_order_release);
		if (tile->is_pinned)
			t->pinned_ready[t->n_pinned_ready++] = tile->index;
	}
	t->changed(t->changed_data, tile);
}

static void set_wanted(struct iod_trunk *t, struct iod_tile *tile)
{
	tile->is_wanted = true;
	t->wanted_size += tile->size;
}

static void submit(struct iod_tile *tile, enum iod_read_class class)
{
	struct iod_trunk *t = tile->trunk;
	const struct source *s = t->source;
	uint32_t first = s->tile_segment[tile->index];

	tile->read = (struct iod_read){
		.class = class,
		.segments = s->segments + first,
		.n_segments = s->tile_segment[tile->index + 1] - first,
		.dst = t->slab->base + tile->offset,
		.dst_size = tile->size,
		.done = on_read,
		.data = tile,
	};
	list_init(&tile->read.link);
	iod_reader_submit(t->reader, &tile->read);
}

static void start_read(struct iod_trunk *t, struct iod_tile *tile, enum iod_read_class class)
{
	must(tile->state == SLAB_EMPTY && tile->n_leases == 0);
	tile->state = SLAB_LOADING;
	tile->error = 0;
	tile->uncharged = 0;
	tile->is_again = false;
	if (class != IOD_READ_BACKGROUND)
		set_wanted(t, tile);
	/* the offset first: a later daemon must know where bytes land */
	entry_of(tile)->offset = tile->offset;
	atomic_store_explicit(&entry_of(tile)->state, SLAB_LOADING, memory_order_release);
	submit(tile, class);
}

static void adopt_tile(struct iod_tile *tile, enum slab_state state)
{
	struct iod_trunk *t = tile->trunk;

	tile->state = state;
	tile->offset = entry_of(tile)->offset;
	if (!tile->is_pinned)
		iod_ring_insert(&t->ring, tile);
	/* one that is on its way for nobody: not looked for again, not evicted */
	tile->is_foreign = tile->is_wanted = state == SLAB_LOADING;
	if (state == SLAB_READY && tile->is_pinned)
		t->pinned_ready[t->n_pinned_ready++] = tile->index;
}

void iod_trunk_adopt(struct iod_trunk *t, struct iod_kept *ret)
{
	for (uint32_t i = 0; i < t->n_tiles; i++) {
		uint32_t state =
			atomic_load_explicit(&t->slab->tiles[i].state, memory_order_relaxed);

		if (state == SLAB_EMPTY)
			continue;
		adopt_tile(&t->tiles[i], (enum slab_state)state);
		ret->n_ready += state == SLAB_READY;
		ret->n_loading += state == SLAB_LOADING;
	}
}

void iod_trunk_settle(struct iod_trunk *t)
{
	for (uint32_t i = 0; i < t->n_tiles; i++) {
		struct iod_tile *tile = &t->tiles[i];

		if (!tile->is_foreign)
			continue;
		must(tile->state == SLAB_LOADING);
		slab_entry_invalidate(entry_of(tile));
		entry_of(tile)->offset = 0;
		tile->is_foreign = tile->is_wanted = false;
		tile->state = SLAB_EMPTY;
		list_remove(&tile->ring_link);
		t->changed(t->changed_data, tile);
	}
}

void iod_trunk_load_pinned(struct iod_trunk *t, struct iod_tile *tile)
{
	must(tile->is_pinned);
	if (tile->state == SLAB_EMPTY) {
		start_read(t, tile, IOD_READ_TRUNK);
	} else if (tile->state == SLAB_LOADING && !tile->is_wanted) {
		set_wanted(t, tile);
		iod_reader_promote(t->reader, &tile->read, IOD_READ_TRUNK);
	}
}

static void evict(struct iod_trunk *t, struct iod_tile *tile)
{
	must(tile->state == SLAB_READY && tile->n_leases == 0 && !tile->is_pinned);
	/* the generation rises before a byte changes */
	slab_entry_invalidate(entry_of(tile));
	entry_of(tile)->offset = 0;
	tile->state = SLAB_EMPTY;
	tile->uncharged = 0;
	list_remove(&tile->ring_link);
	t->changed(t->changed_data, tile);
}

void iod_trunk_load_at(struct iod_trunk *t, struct iod_tile *tile, uint64_t place)
{
	struct list *at, *next;

	list_foreach_safe (at, next, &t->ring) {
		struct iod_tile *old = list_entry(at, struct iod_tile, ring_link);

		if (old->offset < place + tile->size && place < old->offset + old->size)
			evict(t, old);
	}
	tile->offset = place;
	iod_ring_insert(&t->ring, tile);
	start_read(t, tile, IOD_READ_TRUNK);
}

void iod_trunk_pump_pins(struct iod_trunk *t)
{
	uint64_t ahead = 0;

	for (uint32_t i = t->next_pin; i < t->n_tiles && ahead < PIN_AHEAD; i++) {
		struct iod_tile *tile = &t->tiles[i];

		if (tile->is_pinned && tile->state == SLAB_EMPTY && tile->error == 0)
			start_read(t, tile, IOD_READ_BACKGROUND);
		if (tile->is_pinned && tile->state == SLAB_LOADING)
			ahead += tile->size;
		else if (i == t->next_pin)
			t->next_pin++;
	}
}

void iod_trunk_lease(struct iod_trunk *t, struct iod_tile *tile)
{
	uint32_t cell = iod_trunk_cell_of(t, tile);

	must(tile->state == SLAB_READY && !tile->is_pinned);
	if (tile->n_leases++ == 0 && t->cell_leases[cell]++ == 0 && cell < t->n_cells)
		t->n_held_cells++;
	tile->last_use = ++t->tick;
	t->metrics->tile_leases++;
}

void iod_trunk_release(struct iod_trunk *t, struct iod_tile *tile)
{
	uint32_t cell = iod_trunk_cell_of(t, tile);

	must(tile->n_leases > 0);
	if (--tile->n_leases == 0 && --t->cell_leases[cell] == 0 && cell < t->n_cells)
		t->n_held_cells--;
	tile->last_use = ++t->tick;
	t->metrics->tile_leases--;
}

void iod_trunk_describe_failure(const struct iod_trunk *t, const struct iod_tile *tile,
				struct err *err)
{
	const struct catalog_tile *c = &t->source->catalog.tiles[tile->index];
	const struct source *s = t->source;
	const struct iod_read *r = &tile->read;
	const char *path = r->bad_file < s->n_files ? s->files[r->bad_file].path : "?";

	if (tile->error == -EBADMSG && t->fault_tile == tile->index)
		(void)err_set(err, t->fault.code, "%s", t->fault.text);
	else if (tile->error == -EBADMSG)
		(void)err_set(err, ERR_CHECKPOINT,
			      "%s: tile %u (%s of layer %u) does not have its checksum; k3-store "
			      "verify says what is damaged",
			      s->files[r->segments[0].file].path, tile->index, role_name(c->role),
			      c->layer);
	else
		(void)err_set(err, ERR_IO,
			      "tile %u (%s of layer %u) could not be read: %s at byte %" PRIu64
			      ": %s; check the disk and the file",
			      tile->index, role_name(c->role), c->layer, path, r->bad_offset,
			      iod_read_strerror(tile->error));
}
