#include "iod/quota.h"

#include "iod/client.h"
#include "iod/daemon.h"

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

void iod_quota_set(struct iod_quota *q, const struct iod_options *o)
{
	*q = (struct iod_quota){
		.clients = (uint32_t)o->max_clients,
		.tiles = (uint32_t)o->client_tiles,
		.experts = (uint32_t)o->client_experts,
		.hints = (uint32_t)o->client_hints,
	};
}

/* With a slot for every expert, or every tile pinned, there is nothing to promise. */
static bool slots_are_scarce(const struct iod_daemon *d)
{
	return d->plan.n_slots < d->source->n_experts;
}

/* From so many slots on, those promised to a second client are kept free for it: with fewer, one
 * client alone would be slowed down. */
enum { SLOTS_FOR_TWO = 6 };

/* Clients whose promised tiles the ring holds, with one cell more to read into. */
static uint32_t most_clients(const struct iod_daemon *d)
{
	uint32_t cells = d->trunk->n_cells;
	uint32_t n = cells > 0 ? (cells - 1) / IOD_PROMISED_TILES : IOD_QUOTA_CLIENTS;

	return min_u32(n > 0 ? n : 1, IOD_QUOTA_CLIENTS);
}

int iod_quota_admit(const struct iod_daemon *d, struct err *err)
{
	uint32_t n = d->n_open + 1;

	if (n > d->quota.clients)
		return err_set(err, ERR_BUSY, "the daemon serves at most %u clients at once",
			       d->quota.clients);
	if (n == 1)
		return 0;
	if (n > most_clients(d))
		return err_set(err, ERR_BUSY,
			       "the daemon's ring of tiles is too small for another client beside "
			       "the %u it serves; try again later, or give k3-iod a larger "
			       "--trunk-gb",
			       d->n_open);
	if (slots_are_scarce(d) && n * IOD_PROMISED_EXPERTS > d->plan.n_slots)
		return err_set(err, ERR_BUSY,
			       "the daemon's %u expert slots are too few for another client beside "
			       "the %u it serves; try again later, or give k3-iod a larger "
			       "--cache-gb",
			       d->plan.n_slots, d->n_open);
	return 0;
}

/* Tiles have all sizes and leased ones cannot be moved: n of them cut what is free into n + 1 runs.
 * Beyond a client's promise a lease is given only when, wherever they lie, one run still takes the
 * largest tile: else a client that stops in the middle of a step would hold up all others. */
bool iod_quota_may_lease_tile(const struct iod_client *c, const struct iod_tile *tile)
{
	const struct iod_trunk *t = c->daemon->trunk;
	uint32_t cell = iod_trunk_cell_of(t, tile);
	uint32_t held = t->n_held_cells;
	uint32_t others;

	if (c->sweep.n_leases < IOD_PROMISED_TILES)
		return true;
	if (t->cell_leases[cell] == 0 && cell < t->n_cells)
		held++;
	others = max_u32(c->daemon->n_open, min_u32(most_clients(c->daemon), 2)) - 1;
	return held + IOD_PROMISED_TILES * others <= t->n_cells;
}

bool iod_quota_may_hold_slot(const struct iod_client *c, bool is_held)
{
	const struct iod_daemon *d = c->daemon;
	uint32_t held = d->experts->n_held + (is_held ? 0 : 1);
	uint32_t others;

	if (!slots_are_scarce(d) || c->experts.n_held < IOD_PROMISED_EXPERTS)
		return true;
	others = max_u32(d->n_open, d->plan.n_slots >= SLOTS_FOR_TWO ? 2 : 1) - 1;
	return held + IOD_PROMISED_EXPERTS * others <= d->plan.n_slots;
}

bool iod_quota_may_hint(const struct iod_daemon *d)
{
	const struct iod_experts *x = d->experts;

	return !slots_are_scarce(d) ||
	       x->n_held + x->n_loading + 1 + IOD_PROMISED_EXPERTS * d->n_open <= d->plan.n_slots;
}

uint32_t iod_quota_tile_window(const struct iod_daemon *d)
{
	uint32_t n = min_u32(d->quota.tiles, d->plan.n_tiles);

	return n < IOD_PROMISED_TILES ? IOD_PROMISED_TILES : n;
}

uint32_t iod_quota_expert_window(const struct iod_daemon *d)
{
	uint32_t n = min_u32(d->quota.experts, d->plan.n_slots);

	return n < IOD_PROMISED_EXPERTS ? IOD_PROMISED_EXPERTS : n;
}
