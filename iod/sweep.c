#include "iod/sweep.h"

#include "iod/client.h"
#include "iod/daemon.h"
#include "iod/ring.h"
#include "shared/must.h"

/* Tile bytes that the reader holds for sweeps at a time: beyond what keeps the disks busy, reading
 * ahead only takes places in the ring from tiles that may be wanted sooner. */
enum { READ_AHEAD = 64 << 20 };

static uint32_t tile_at(const struct iod_sweep *s, uint32_t position)
{
	uint32_t p = position % s->length;

	return p < s->n_body ? p : s->head_first + (p - s->n_body);
}

/* Tiles that the client has before it when it comes to position ahead. What it holds counts: a
 * client that has nothing to compute on comes first. */
static uint64_t urgency(const struct iod_sweep *s)
{
	return (uint64_t)(s->ahead - s->cursor) + s->n_leases;
}

/* Tiles from the cursor until this one is wanted; UINT64_MAX when the sweep does not want it. */
static uint64_t distance_of(const struct iod_sweep *s, uint32_t tile)
{
	uint32_t p;

	if (!s->is_active || s->length == 0)
		return UINT64_MAX;
	if (tile < s->n_body)
		p = tile;
	else if (tile >= s->head_first && tile - s->head_first < s->length - s->n_body)
		p = s->n_body + (tile - s->head_first);
	else
		return UINT64_MAX;
	if (p >= s->cursor)
		return p - s->cursor;
	return s->is_again ? (uint64_t)p + s->length - s->cursor : UINT64_MAX;
}

/* Looking for a place on behalf of reader. */
struct placing {
	struct iod_client *reader;
	struct iod_client *blocker; /* rides behind, and has before it what cannot go; or NULL */
};

static struct iod_ring_cost cost_of(void *data, const struct iod_tile *tile)
{
	struct placing *placing = data;
	struct iod_ring_cost cost = { .distance = UINT64_MAX, .last_use = tile->last_use };
	struct list *at;

	cost.may_evict = tile->state == SLAB_READY && tile->n_leases == 0;
	if (!cost.may_evict)
		return cost;
	list_foreach (at, &placing->reader->daemon->clients) {
		struct iod_client *c = list_entry(at, struct iod_client, link);
		uint64_t distance = distance_of(&c->sweep, tile->index);

		if (distance == UINT64_MAX)
			continue;
		if (distance < c->ride.n_kept) {
			placing->blocker = c;
			cost.may_evict = false;
			return cost;
		}
		distance += c->sweep.n_leases;
		if (distance < cost.distance)
			cost.distance = distance;
	}
	return cost;
}

/* A client that was dropped in this turn still has its leases, and wants nothing more. */
static bool is_sweeping(const struct iod_client *c)
{
	return c->state == IOD_CLIENT_OPEN && c->sweep.is_active;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void drop_leases(struct iod_client *c)
{
	struct iod_sweep *s = &c->sweep;
	struct iod_trunk *t = c->daemon->trunk;

	for (uint32_t i = 0; i < s->n_leases; i++)
		iod_trunk_release(t, &t->tiles[s->leases[i]]);
	s->n_leases = 0;
}

int iod_sweep_begin(struct iod_client *c, const struct wire_sweep *m, struct err *err)
{
	const struct iod_trunk *t = c->daemon->trunk;
	uint32_t bound = c->daemon->source->catalog.header->n_layers;
	struct iod_sweep *s = &c->sweep;
	uint32_t head_first = t->layer_first[bound];

	if (m->n_layers > bound)
		return err_set(err, ERR_PROTOCOL, "SWEEP: n_layers is %u, %u are bound",
			       m->n_layers, bound);
	if (m->sweep <= s->number)
		return err_set(err, ERR_PROTOCOL, "SWEEP: sweep %u does not follow %u", m->sweep,
			       s->number);
	if (m->first_tile >= t->layer_first[m->n_layers] &&
	    ((m->flags & WIRE_SWEEP_HEAD) == 0 || m->first_tile < head_first ||
	     m->first_tile >= t->n_tiles))
		return err_set(err, ERR_PROTOCOL, "SWEEP: first_tile %u is not part of the sweep",
			       m->first_tile);
	drop_leases(c);
	s->number = m->sweep;
	s->n_body = t->layer_first[m->n_layers];
	s->head_first = head_first;
	s->length = s->n_body;
	if (m->flags & WIRE_SWEEP_HEAD)
		s->length += t->n_tiles - head_first;
	s->is_again = (m->flags & WIRE_SWEEP_AGAIN) != 0;
	s->cursor = m->first_tile < s->n_body ? m->first_tile
					      : s->n_body + (m->first_tile - head_first);
	s->ahead = s->cursor;
	s->is_active = true;
	if (m->first_tile == 0)
		iod_ride_begin(c);
	/* what failed before is tried again */
	for (uint32_t i = 0; i < t->n_tiles; i++)
		t->tiles[i].error = 0;
	return 0;
}

int iod_sweep_tile_done(struct iod_client *c, const struct wire_tile_done *m, struct err *err)
{
	struct iod_sweep *s = &c->sweep;
	struct iod_trunk *t = c->daemon->trunk;

	/* leases of an older sweep went with it; its late messages mean nothing */
	if (m->sweep != s->number) {
		if (m->sweep > s->number)
			return err_set(err, ERR_PROTOCOL, "TILE_DONE: sweep %u has not begun",
				       m->sweep);
		return 0;
	}
	for (uint32_t i = 0; i < s->n_leases; i++) {
		if (s->leases[i] != m->tile)
			continue;
		s->leases[i] = s->leases[--s->n_leases];
		iod_trunk_release(t, &t->tiles[m->tile]);
		return 0;
	}
	return err_set(err, ERR_PROTOCOL, "TILE_DONE: tile %u is not leased to this client",
		       m->tile);
}

void iod_sweep_end(struct iod_client *c)
{
	drop_leases(c);
	c->sweep.is_active = false;
}

void iod_sweep_tile_changed(struct iod_daemon *d, const struct iod_tile *tile)
{
	struct list *at;

	if (tile->state != SLAB_EMPTY)
		return;
	/* gone again: whoever counted on it looks again from there */
	list_foreach (at, &d->clients) {
		struct iod_sweep *s = &list_entry(at, struct iod_client, link)->sweep;
		uint64_t distance = distance_of(s, tile->index);

		if (distance != UINT64_MAX && distance < s->ahead - s->cursor)
			s->ahead = s->cursor + (uint32_t)distance;
	}
}

/* ---- handing over ---------------------------------------------------------------------------- */

static void send_tile(struct iod_client *c, struct iod_tile *tile, uint32_t flags)
{
	struct slab_entry *e = &c->daemon->slab->tiles[tile->index];
	struct proto_message m = { .type = PROTO_TILE_READY };

	m.body.tile_ready = (struct wire_tile_ready){
		.sweep = c->sweep.number,
		.tile = tile->index,
		.generation = atomic_load_explicit(&e->generation, memory_order_relaxed),
		.flags = flags,
		.offset = tile->offset,
		.bytes_read = tile->uncharged,
	};
	if (flags == 0 && tile->uncharged == 0)
		c->daemon->metrics.tiles_shared++;
	tile->uncharged = 0;
	c->daemon->metrics.tiles_served++;
	iod_client_send(c, &m);
}

/* Pinned tiles that became READY since the client was last told. A client looks into the directory
 * before it waits, and may have looked just before: so all are told, in a sweep or at its start. */
static void tell_pinned(struct iod_client *c)
{
	struct iod_trunk *t = c->daemon->trunk;
	struct iod_sweep *s = &c->sweep;

	while (s->n_pinned_told < t->n_pinned_ready && is_sweeping(c) && !iod_client_is_full(c))
		send_tile(c, &t->tiles[t->pinned_ready[s->n_pinned_told++]], WIRE_TILE_PINNED);
}

static void report_failure(struct iod_client *c, const struct iod_tile *tile)
{
	struct err err = { 0 };

	iod_trunk_describe_failure(c->daemon->trunk, tile, &err);
	iod_client_send_error(c, &err, PROTO_SWEEP, tile->index, 0);
	c->sweep.is_active = false;
}

/* Give the client what is READY, in order, as far as its window and the promises allow. */
static void give(struct iod_client *c)
{
	struct iod_trunk *t = c->daemon->trunk;
	struct iod_sweep *s = &c->sweep;
	uint32_t window = c->tile_window;

	tell_pinned(c);
	if (c->ride.is_held)
		return;
	while (s->cursor < s->length && is_sweeping(c) && !iod_client_is_full(c)) {
		struct iod_tile *tile = &t->tiles[tile_at(s, s->cursor)];

		if (tile->error < 0) {
			report_failure(c, tile);
			return;
		}
		if (tile->state != SLAB_READY)
			return;
		if (!tile->is_pinned) {
			if (s->n_leases >= window || !iod_quota_may_lease_tile(c, tile))
				return;
			iod_trunk_lease(t, tile);
			s->leases[s->n_leases++] = tile->index;
			send_tile(c, tile, 0);
		}
		s->cursor++;
		if (s->ahead < s->cursor)
			s->ahead = s->cursor;
	}
}

/* ---- reading ahead --------------------------------------------------------------------------- */

/* Move ahead over what is there or on its way; true when it then stands at a tile to be read. */
static bool find_missing(struct iod_client *c)
{
	struct iod_trunk *t = c->daemon->trunk;
	struct iod_sweep *s = &c->sweep;
	/* not the same tile twice */
	uint32_t end = s->is_again && !c->ride.stops_at_wrap ? s->cursor + s->length : s->length;

	for (; s->ahead < end; s->ahead++) {
		struct iod_tile *tile = &t->tiles[tile_at(s, s->ahead)];

		if (tile->error < 0)
			return false;
		if (tile->state == SLAB_EMPTY || (tile->state == SLAB_LOADING && !tile->is_wanted))
			return true;
	}
	return false;
}

/* Start the read at ahead; false when there is no place for it now. */
static bool read_missing(struct iod_client *c)
{
	struct iod_daemon *d = c->daemon;
	struct iod_sweep *s = &c->sweep;
	struct iod_tile *tile = &d->trunk->tiles[tile_at(s, s->ahead)];
	struct placing placing = { .reader = c };
	struct iod_ring_want want = {
		.off = d->plan.ring_off,
		.room = d->plan.ring_size,
		.cell = iod_trunk_cell_size(d->trunk),
		.size = tile->size,
		.min_distance = urgency(s),
		.cost = cost_of,
		.data = &placing,
	};
	uint64_t place;

	if (tile->is_pinned) {
		iod_trunk_load_pinned(d->trunk, tile);
		return true;
	}
	iod_rides_mark_kept(c);
	if (!iod_ring_find(&d->trunk->ring, &want, &place)) {
		if (placing.blocker && urgency(s) == 0)
			iod_ride_blocks(placing.blocker);
		return false;
	}
	iod_trunk_load_at(d->trunk, tile, place);
	return true;
}

/* The client whose next missing tile is wanted soonest and was not found placeless this time. */
static struct iod_client *choose_client(struct iod_daemon *d)
{
	struct iod_client *best = NULL;
	struct list *at;

	list_foreach (at, &d->clients) {
		struct iod_client *c = list_entry(at, struct iod_client, link);

		if (!is_sweeping(c) || c->ride.is_held || c->has_no_place || !find_missing(c))
			continue;
		if (!best || urgency(&c->sweep) < urgency(&best->sweep))
			best = c;
	}
	return best;
}

static void pump(struct iod_daemon *d)
{
	struct iod_client *c;
	struct list *at;

	list_foreach (at, &d->clients) {
		c = list_entry(at, struct iod_client, link);
		c->has_no_place = false;
		if (is_sweeping(c))
			give(c);
	}
	while (d->trunk->wanted_size < READ_AHEAD && (c = choose_client(d)) != NULL)
		if (!read_missing(c))
			c->has_no_place = true;
}

void iod_sweep_pump(struct iod_daemon *d)
{
	iod_rides_look(d);
	pump(d);
	if (iod_rides_settle(d))
		iod_daemon_wake(d);
}
