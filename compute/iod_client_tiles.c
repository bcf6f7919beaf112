/*
 * Sweeps and tiles. A tile comes in one of two ways: leased to us (TILE_READY), or pinned and READY
 * in the slab's directory, then without a lease. Whichever is seen first is used; a lease on a tile
 * that is not wanted any more is given back at once, so the daemon's window never fills with tiles
 * we passed over.
 */
#include "compute/iod_client_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "shared/must.h"

int k3_iod_tiles_init(struct k3_iod *c, struct err *err)
{
	struct iod_tiles *t = &c->tiles;

	t->max_leases = c->welcome.tile_window;
	if (t->max_leases > c->catalog.header->n_tiles)
		t->max_leases = c->catalog.header->n_tiles;
	t->leases = calloc((size_t)t->max_leases + 1, sizeof(*t->leases));
	if (!t->leases)
		return err_set(err, ERR_NO_MEMORY, "no memory for the tile window");
	return 0;
}

void k3_iod_tiles_deinit(struct k3_iod *c)
{
	free(c->tiles.leases);
	c->tiles.leases = NULL;
	c->tiles.n_leases = c->tiles.max_leases = 0;
}

static int send_done(struct k3_iod *c, uint32_t tile, struct err *err)
{
	struct wire_tile_done done = { .sweep = c->tiles.sweep, .tile = tile };

	return k3_iod_send(c, PROTO_TILE_DONE, &done, err);
}

/* Give back every lease on a tile below limit. */
static int release_below(struct k3_iod *c, uint32_t limit, struct err *err)
{
	struct iod_tiles *t = &c->tiles;
	int r = 0;

	for (uint32_t i = 0; i < t->n_leases && r == 0;) {
		uint32_t tile = t->leases[i].tile;

		if (tile >= limit) {
			i++;
			continue;
		}
		/* out of the list first: a new connection begins with an empty one */
		t->leases[i] = t->leases[--t->n_leases];
		r = send_done(c, tile, err);
	}
	return r;
}

/* File a TILE_READY of the current sweep. One of an older sweep carries no lease any more: SWEEP
 * dropped it. */
int k3_iod_tile_ready(struct k3_iod *c, const struct wire_tile_ready *m, struct err *err)
{
	struct iod_tiles *t = &c->tiles;

	if (m->tile >= c->catalog.header->n_tiles)
		return k3_iod_fail(c, err, ERR_PROTOCOL,
				   "TILE_READY names tile %" PRIu32 " of %" PRIu32, m->tile,
				   c->catalog.header->n_tiles);
	c->counts.trunk_bytes_read += m->bytes_read;
	if ((m->flags & WIRE_TILE_PINNED) || m->sweep != t->sweep)
		return 0; /* pinned: the directory says so too */
	if (m->offset % SLAB_PAGE ||
	    !slab_range(c->slab, m->offset, c->catalog.tiles[m->tile].slab_size))
		return k3_iod_fail(c, err, ERR_PROTOCOL,
				   "TILE_READY places tile %" PRIu32 " outside the slab", m->tile);
	if (m->tile < t->next)
		return send_done(c, m->tile, err);
	if (t->n_leases == t->max_leases)
		return k3_iod_fail(c, err, ERR_PROTOCOL,
				   "the daemon leased more than its window of %" PRIu32 " tiles",
				   t->max_leases);
	t->leases[t->n_leases++] = (struct tile_lease){ m->tile, m->generation, m->offset };
	return 0;
}

static int send_sweep(struct k3_iod *c, uint32_t first_tile, struct err *err)
{
	struct iod_tiles *t = &c->tiles;
	struct wire_sweep m;

	t->sweep++;
	t->next = first_tile;
	t->n_leases = 0; /* the daemon drops them on seeing a newer sweep */
	m = (struct wire_sweep){
		.sweep = t->sweep,
		.first_tile = first_tile,
		.n_layers = t->n_layers,
		.flags = t->flags,
	};
	return k3_iod_send(c, PROTO_SWEEP, &m, err);
}

/* The first tile from this one on that the sweep goes through; tiles.end when there is none. */
static uint32_t first_of_sweep(const struct k3_iod *c, uint32_t tile)
{
	uint32_t bound = c->catalog.header->n_layers;

	while (tile < c->tiles.end && c->catalog.tiles[tile].layer >= c->tiles.n_layers &&
	       c->catalog.tiles[tile].layer < bound)
		tile++;
	return tile;
}

int k3_iod_tiles_resume(struct k3_iod *c, struct err *err)
{
	struct iod_tiles *t = &c->tiles;
	uint32_t first = first_of_sweep(c, t->next);

	err_clear(&t->error);
	return first < t->end ? send_sweep(c, first, err) : 0;
}

int k3_iod_sweep(struct k3_iod *c, uint32_t n_layers, bool head, bool again, struct err *err)
{
	const struct catalog_header *h = c->catalog.header;
	struct iod_tiles *t = &c->tiles;

	must(n_layers <= h->n_layers);
	t->n_layers = n_layers;
	t->flags = (head ? WIRE_SWEEP_HEAD : 0) | (again ? WIRE_SWEEP_AGAIN : 0);
	t->end = h->n_tiles;
	if (!head)
		while (t->end > 0 && c->catalog.tiles[t->end - 1].layer >= n_layers)
			t->end--;
	err_clear(&t->error);
	return send_sweep(c, 0, err);
}

static const struct tile_lease *find_lease(const struct iod_tiles *t, uint32_t tile)
{
	for (uint32_t i = 0; i < t->n_leases; i++)
		if (t->leases[i].tile == tile)
			return &t->leases[i];
	return NULL;
}

/* Fill ret when the tile can be used now. */
static bool find_tile(const struct k3_iod *c, uint32_t tile, struct k3_tile *ret)
{
	const struct slab_entry *e;
	const struct tile_lease *lease = find_lease(&c->tiles, tile);
	uint32_t generation;
	const uint8_t *base;

	if (!c->slab)
		return false; /* the connection has ended for good: the next call says so */
	if (lease) {
		*ret = (struct k3_tile){ .tile = tile,
					 .generation = lease->generation,
					 .epoch = c->epoch,
					 .base = c->slab->base + lease->offset };
		return true;
	}
	e = &c->slab->tiles[tile];
	/* generation before state: pairs with the daemon raising it before it leaves READY */
	generation = atomic_load_explicit(&e->generation, memory_order_acquire);
	if (atomic_load_explicit(&e->state, memory_order_acquire) != SLAB_READY ||
	    !(e->flags & SLAB_PINNED))
		return false;
	base = e->offset % SLAB_PAGE == 0
		       ? slab_range(c->slab, e->offset, c->catalog.tiles[tile].slab_size)
		       : NULL;
	if (!base)
		return false;
	*ret = (struct k3_tile){ .tile = tile,
				 .generation = generation,
				 .epoch = c->epoch,
				 .is_pinned = true,
				 .base = base };
	return true;
}

int k3_iod_tile(struct k3_iod *c, uint32_t tile, struct k3_tile *ret, struct err *err)
{
	struct iod_tiles *t = &c->tiles;
	int r;

	must(tile >= t->next && tile < c->catalog.header->n_tiles);
	if (tile > t->next) {
		t->next = tile;
		r = release_below(c, tile, err);
		if (r < 0)
			return r;
	}
	while (!find_tile(c, tile, ret)) {
		if (t->error.code != ERR_NONE)
			return k3_iod_raise(&t->error, err);
		r = k3_iod_wait(c, "a tile of the trunk", "wait for tile", "tile", tile, err);
		if (r < 0)
			return r;
	}
	c->counts.tiles++;
	return 0;
}

bool k3_iod_tile_is_ready(struct k3_iod *c, uint32_t tile)
{
	struct k3_tile unused;

	while (!find_tile(c, tile, &unused))
		if (k3_iod_receive(c, false, NULL, NULL) != 0)
			return false; /* none there; a broken connection shows in the next wait */
	return true;
}

int k3_iod_wait_tile_or_expert(struct k3_iod *c, uint32_t tile, struct err *err)
{
	struct k3_tile unused;

	while (!find_tile(c, tile, &unused) && !k3_iod_expert_has_landed(c)) {
		int r;

		if (c->tiles.error.code != ERR_NONE)
			return k3_iod_raise(&c->tiles.error, err);
		r = k3_iod_wait(c, "a tile of the trunk or an expert", "wait for tile or expert",
				"tile", tile, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int k3_iod_tile_done(struct k3_iod *c, const struct k3_tile *tile, struct err *err)
{
	int r;

	if (tile->epoch != c->epoch)
		return K3_IOD_STALE; /* of a slab that has gone; asked for again already */
	if (!slab_entry_is_same(&c->slab->tiles[tile->tile], tile->generation)) {
		c->counts.stale++;
		r = send_sweep(c, tile->tile, err);
		return r < 0 ? r : K3_IOD_STALE;
	}
	c->tiles.next = tile->tile + 1;
	return release_below(c, c->tiles.next, err);
}
