#include "iod/ride.h"

#include <errno.h>
#include <stdlib.h>

#include "iod/client.h"
#include "iod/daemon.h"
#include "shared/log.h"

/* ---- what share.h wants to know -------------------------------------------------------------- */

static bool is_on(const struct iod_daemon *d)
{
	return d->options->share_wait != 0 && d->rides.window > 0 && d->n_open > 1;
}

static bool is_sweeping(const struct iod_client *c)
{
	return c->state == IOD_CLIENT_OPEN && c->sweep.is_active && c->sweep.length > 0;
}

/* Streamed bytes before a position, which may lie in the next sweep. */
static uint64_t streamed_before(const struct iod_client *c, uint32_t position)
{
	const uint64_t *streamed = c->daemon->rides.streamed;
	const struct iod_sweep *s = &c->sweep;
	uint64_t head = streamed[s->head_first];
	uint64_t length =
		streamed[s->n_body] + streamed[s->head_first + (s->length - s->n_body)] - head;
	uint32_t p = position % s->length;
	uint64_t before = p < s->n_body ? streamed[p]
					: streamed[s->n_body] +
						  streamed[s->head_first + (p - s->n_body)] - head;

	return position / s->length * length + before;
}

static struct iod_share_way way_of(const struct iod_client *c)
{
	const struct iod_sweep *s = &c->sweep;

	return (struct iod_share_way){
		.at = streamed_before(c, s->cursor),
		.ahead = streamed_before(c, s->ahead),
		.length = streamed_before(c, s->length),
		.goes_on = s->is_again,
		.is_held = c->ride.is_held,
		.has_fallen = c->ride.has_fallen,
	};
}

/* The ways of all others that are in a sweep. */
static size_t ways_beside(const struct iod_client *c, struct iod_share_way *ret)
{
	const struct list *at;
	size_t n = 0;

	list_foreach (at, &c->daemon->clients) {
		const struct iod_client *q = list_entry(at, struct iod_client, link);

		if (q != c && is_sweeping(q) && n < IOD_QUOTA_CLIENTS)
			ret[n++] = way_of(q);
	}
	return n;
}

/* How long c would be held at its next start of a sweep, within left_usec. */
static uint64_t hold_usec(const struct iod_client *c, uint64_t left_usec)
{
	const struct iod_rides *r = &c->daemon->rides;
	struct iod_share_way others[IOD_QUOTA_CLIENTS];
	struct iod_share_way way = way_of(c);
	size_t n = ways_beside(c, others);

	return iod_share_hold_usec(&way, others, n, &r->pace, r->window, left_usec);
}

static bool has_company(const struct iod_client *c)
{
	const struct iod_rides *r = &c->daemon->rides;
	struct iod_share_way others[IOD_QUOTA_CLIENTS];
	struct iod_share_way way = way_of(c);
	size_t n = ways_beside(c, others);

	for (size_t i = 0; i < n; i++)
		if (iod_share_is_behind(&others[i], &way, r->window) ||
		    iod_share_is_behind(&way, &others[i], r->window))
			return true;
	return false;
}

static uint64_t wait_usec(const struct iod_client *c)
{
	double given = c->daemon->options->share_wait;

	if (given >= 0)
		return (uint64_t)(given * 1e6);
	return iod_share_usec(&c->daemon->rides.pace, streamed_before(c, c->sweep.length));
}

/* ---- holding --------------------------------------------------------------------------------- */

static void fail(struct iod_client *c)
{
	c->ride.has_fallen = true;
	c->ride.pause = iod_share_pause(++c->ride.n_failures);
}

void iod_ride_begin(struct iod_client *c)
{
	struct iod_ride *r = &c->ride;

	if (!r->has_fallen)
		r->n_failures = 0;
	else if (r->pause > 0)
		r->pause--;
	else
		r->has_fallen = false;
	r->blocking_since_usec = r->blocked_usec = 0;
	r->is_held = false;
	r->held_since_usec = iod_daemon_now(c->daemon);
	r->is_held = is_on(c->daemon) && hold_usec(c, wait_usec(c)) > 0;
	c->daemon->metrics.share_holds += r->is_held;
}

static void release(struct iod_client *c, uint64_t now)
{
	struct iod_ride *r = &c->ride;

	r->is_held = false;
	r->held_usec += now - r->held_since_usec;
	if (has_company(c))
		c->daemon->metrics.share_joins++;
	else if (hold_usec(c, UINT64_MAX) > 0)
		fail(c); /* the other is still on its way: it is slower than it looked */
}

static void look_at_hold(struct iod_client *c, uint64_t now)
{
	struct iod_ride *r = &c->ride;
	uint64_t wait = wait_usec(c), held = now - r->held_since_usec;

	if (!is_sweeping(c) || !is_on(c->daemon) || held >= wait || hold_usec(c, wait - held) == 0)
		release(c, now);
	else if (r->held_since_usec + wait < c->daemon->rides.deadline_usec)
		c->daemon->rides.deadline_usec = r->held_since_usec + wait;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static void measure(struct iod_daemon *d, uint64_t now)
{
	struct iod_rides *r = &d->rides;
	uint64_t bytes = d->metrics.trunk_bytes_read;

	if (r->is_sweeping)
		iod_share_pace_add(&r->pace, now - r->looked_usec, r->is_busy,
				   bytes - r->looked_bytes, r->streamed[d->trunk->n_tiles]);
	r->looked_usec = now;
	r->looked_bytes = bytes;
}

static bool disks_are_busy(const struct iod_daemon *d)
{
	return d->trunk->wanted_size > 0 || d->experts->n_loading > 0;
}

void iod_rides_look(struct iod_daemon *d)
{
	uint64_t now = iod_daemon_now(d);
	struct list *at;

	measure(d, now);
	d->rides.deadline_usec = UINT64_MAX;
	list_foreach (at, &d->clients) {
		struct iod_client *c = list_entry(at, struct iod_client, link);

		c->ride.is_blocking = false;
		if (c->ride.is_held)
			look_at_hold(c, now);
		c->ride.stops_at_wrap = is_on(d) && is_sweeping(c) &&
					c->sweep.ahead >= c->sweep.length &&
					hold_usec(c, wait_usec(c)) > 0;
	}
}

/* ---- riding ---------------------------------------------------------------------------------- */

void iod_rides_mark_kept(struct iod_client *c)
{
	struct iod_daemon *d = c->daemon;
	bool may_ride = is_on(d) && !c->ride.has_fallen;
	struct iod_share_way way = way_of(c);
	struct list *at;

	list_foreach (at, &d->clients) {
		struct iod_client *q = list_entry(at, struct iod_client, link);
		struct iod_share_way behind;

		q->ride.n_kept = 0;
		if (q == c || !may_ride || !is_sweeping(q) || q->ride.is_held)
			continue;
		behind = way_of(q);
		if (iod_share_is_behind(&behind, &way, d->rides.window))
			q->ride.n_kept = (c->sweep.ahead + c->sweep.length - q->sweep.cursor) %
					 c->sweep.length;
	}
}

void iod_ride_blocks(struct iod_client *q)
{
	q->ride.is_blocking = true;
}

/* Time in which the disks are busy all the same costs nobody anything. */
static bool is_too_slow(struct iod_client *q, uint64_t now)
{
	struct iod_rides *d = &q->daemon->rides;
	struct iod_ride *r = &q->ride;
	uint64_t patience, end;

	if (!r->is_blocking || disks_are_busy(q->daemon)) {
		if (r->blocking_since_usec > 0)
			r->blocked_usec += now - r->blocking_since_usec;
		r->blocking_since_usec = 0;
		return false;
	}
	if (r->blocking_since_usec == 0)
		r->blocking_since_usec = now;
	patience = iod_share_patience_usec(&d->pace, streamed_before(q, q->sweep.length));
	end = r->blocking_since_usec +
	      (patience > r->blocked_usec ? patience - r->blocked_usec : 0);
	if (end > now && end < d->deadline_usec)
		d->deadline_usec = end;
	return end <= now;
}

static int on_deadline(sd_event_source *source, uint64_t usec, void *data)
{
	(void)source;
	(void)usec;
	iod_daemon_wake(data);
	return 0;
}

bool iod_rides_settle(struct iod_daemon *d)
{
	struct iod_rides *r = &d->rides;
	uint64_t now = iod_daemon_now(d);
	bool has_one_fallen = false;
	struct list *at;

	r->is_sweeping = false;
	list_foreach (at, &d->clients) {
		struct iod_client *q = list_entry(at, struct iod_client, link);

		r->is_sweeping = r->is_sweeping || (is_sweeping(q) && !q->ride.is_held);
		if (!is_too_slow(q, now))
			continue;
		fail(q);
		d->metrics.share_falls++;
		q->ride.blocking_since_usec = 0;
		has_one_fallen = true;
	}
	r->is_busy = disks_are_busy(d);
	if (r->deadline_usec != UINT64_MAX) {
		(void)sd_event_source_set_time(r->timer, r->deadline_usec);
		(void)sd_event_source_set_enabled(r->timer, SD_EVENT_ONESHOT);
	}
	return has_one_fallen;
}

enum iod_ride_state iod_ride_state(const struct iod_client *c)
{
	if (!is_sweeping(c))
		return IOD_RIDE_NONE;
	if (c->ride.is_held)
		return IOD_RIDE_HELD;
	return c->daemon->rides.window > 0 && has_company(c) ? IOD_RIDE_RIDING : IOD_RIDE_ALONE;
}

const char *iod_ride_state_name(const struct iod_client *c)
{
	static const char *const names[] = { [IOD_RIDE_NONE] = "none",
					     [IOD_RIDE_ALONE] = "alone",
					     [IOD_RIDE_RIDING] = "riding",
					     [IOD_RIDE_HELD] = "held" };

	return names[iod_ride_state(c)];
}

/* ---- beginning and end ----------------------------------------------------------------------- */

int iod_rides_init(struct iod_daemon *d)
{
	const struct iod_trunk *t = d->trunk;
	struct iod_rides *r = &d->rides;
	int e;

	r->window = d->plan.ring_size;
	r->deadline_usec = UINT64_MAX;
	r->streamed = calloc((size_t)t->n_tiles + 1, sizeof(*r->streamed));
	if (!r->streamed)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->n_tiles; i++)
		r->streamed[i + 1] =
			r->streamed[i] + (t->tiles[i].is_pinned ? 0 : t->tiles[i].size);
	e = sd_event_add_time(d->event, &r->timer, CLOCK_MONOTONIC, 0, 1000, on_deadline, d);
	return e < 0 ? e : sd_event_source_set_enabled(r->timer, SD_EVENT_OFF);
}

void iod_rides_deinit(struct iod_daemon *d)
{
	free(d->rides.streamed);
	d->rides.streamed = NULL;
	d->rides.timer = sd_event_source_disable_unref(d->rides.timer);
}
