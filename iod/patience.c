#include "iod/patience.h"

#include <inttypes.h>

#include "iod/client.h"
#include "iod/daemon.h"

/* A client that was refused tries again within this time, if it still wants to come. */
enum { SEAT_WANTED_USEC = 3000000 };

/* It waits for memory that others may hold. */
static bool waits(const struct iod_client *c)
{
	return c->state == IOD_CLIENT_OPEN &&
	       (!list_is_empty(&c->experts.waiting) || (c->sweep.is_active && c->has_no_place));
}

static bool others_wait(const struct iod_client *c, uint64_t now)
{
	const struct iod_daemon *d = c->daemon;
	const struct list *at;

	if (d->refused_usec > 0 && now - d->refused_usec < SEAT_WANTED_USEC)
		return true;
	list_foreach (at, &d->clients) {
		const struct iod_client *other = list_entry(at, struct iod_client, link);

		if (other != c && waits(other))
			return true;
	}
	return false;
}

/* Something is in its hands, and it does not wait for the disk itself. */
static bool holds_and_could_go_on(const struct iod_client *c)
{
	bool holds = c->sweep.n_leases > 0;

	for (uint32_t i = 0; i < c->experts.window; i++) {
		if (c->experts.refs[i].state == IOD_REF_ATTACHED)
			return false;
		holds = holds || c->experts.refs[i].state == IOD_REF_LEASED;
	}
	return holds;
}

void iod_patience_check(struct iod_daemon *d, uint64_t now)
{
	struct list *at;

	list_foreach (at, &d->clients) {
		struct iod_client *c = list_entry(at, struct iod_client, link);
		struct err err = { 0 };

		if (c->state != IOD_CLIENT_OPEN || d->lease_limit == 0 ||
		    now < c->heard_usec + d->lease_limit * 1000000 || !holds_and_could_go_on(c) ||
		    !others_wait(c, now))
			continue;
		(void)err_set(&err, ERR_STALE,
			      "the client has held %u tiles and %u experts for %" PRIu64
			      " s without a sign while others waited for them; it may connect "
			      "again",
			      c->sweep.n_leases, c->experts.n_held,
			      (now - c->heard_usec) / 1000000);
		iod_client_drop(c, &err);
	}
}
