#include "iod/quota.h"

#include "iod/client.h"
#include "iod/daemon.h"

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* With a slot for every expert, or every tile pinned, there is nothing to promise. */
static bool slots_are_scarce(const struct iod_daemon *d)
{
	return d->plan.n_slots < d->source->n_experts;
}

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

	if (n > IOD_QUOTA_CLIENTS)
		return err_set(err, ERR_BUSY, "the daemon serves at most %u clients at once",
			       IOD_QUOTA_CLIENTS);
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

	if (c->sweep.n_leases < IOD_PROMISED_TILES)
		return true;
	if (t->cell_leases[cell] == 0 && cell < t->n_cells)
		held++;
	/* the others', those to come included, must stay free whatever this client does */
	return held + IOD_PROMISED_TILES * (most_clients(c->daemon) - 1) <= t->n_cells;
}

bool iod_quota_may_take_slot(const struct iod_daemon *d, const struct iod_client *c)
{
	uint32_t promised = 0;
	const struct list *at;

	if (!slots_are_scarce(d) || (c && c->experts.n_held < IOD_PROMISED_EXPERTS))
		return true;
	list_foreach (at, &d->clients) {
		const struct iod_client *o = list_entry(at, struct iod_client, link);

		if (o != c && o->state == IOD_CLIENT_OPEN &&
		    o->experts.n_held < IOD_PROMISED_EXPERTS)
			promised += IOD_PROMISED_EXPERTS - o->experts.n_held;
	}
	return iod_experts_n_free(d->experts) > promised;
}

uint32_t iod_quota_tile_window(const struct iod_daemon *d)
{
	uint32_t n = min_u32(IOD_QUOTA_TILES, d->plan.n_tiles);

	return n < IOD_PROMISED_TILES ? IOD_PROMISED_TILES : n;
}

uint32_t iod_quota_expert_window(const struct iod_daemon *d)
{
	uint32_t n = min_u32(IOD_QUOTA_EXPERTS, d->plan.n_slots);

	return n < IOD_PROMISED_EXPERTS ? IOD_PROMISED_EXPERTS : n;
}
