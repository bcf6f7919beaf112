#include "iod/share.h"

/* Time that is looked back on, in sweeps of the disks' own pace, but no less than MEMORY_USEC. */
enum { MEMORY_SWEEPS = 4, MEMORY_USEC = 100000 };
/* Of a sweep's time: what the riders before a slow one may lose in a sweep. */
enum { PATIENCE_SHARE = 8, PATIENCE_MIN_USEC = 5000 };
enum { PAUSE_MAX_SHIFT = 5 };

void iod_share_pace_add(struct iod_share_pace *p, uint64_t usec, bool is_busy, uint64_t bytes,
			uint64_t length)
{
	uint64_t memory = MEMORY_SWEEPS * iod_share_usec(p, length);

	p->wall_usec += usec;
	if (is_busy) {
		p->busy_usec += usec;
		p->bytes += bytes;
	}
	if (p->wall_usec <= memory || p->wall_usec <= MEMORY_USEC)
		return;
	p->wall_usec /= 2;
	p->busy_usec /= 2;
	p->bytes /= 2;
}

uint64_t iod_share_usec(const struct iod_share_pace *p, uint64_t bytes)
{
	if (p->bytes == 0)
		return 0;
	return (uint64_t)((double)bytes / (double)p->bytes * (double)p->busy_usec);
}

bool iod_share_is_short(const struct iod_share_pace *p)
{
	return p->busy_usec > 0 && p->busy_usec >= p->wall_usec / 4 * 3;
}

bool iod_share_is_behind(const struct iod_share_way *q, const struct iod_share_way *c,
			 uint64_t window)
{
	uint64_t gap;

	if (q->has_fallen || q->length != c->length || c->length == 0)
		return false;
	/* c may be in its next sweep already */
	gap = c->ahead >= q->at ? c->ahead - q->at : c->ahead + c->length - q->at;
	gap %= c->length;
	return gap <= window && gap <= c->length / 2;
}

/* In phase: c finds what q has read, or q has all that it needs to come round and will find what c
 * reads next. */
static bool is_in_phase(const struct iod_share_way *c, const struct iod_share_way *q,
			uint64_t window)
{
	return iod_share_is_behind(c, q, window) || iod_share_is_behind(q, c, window / 2);
}

/* Bytes until q's sweep ends, when that is worth waiting for; else 0. */
static uint64_t way_to_wrap(const struct iod_share_way *c, const struct iod_share_way *q,
			    uint64_t window)
{
	if (q->has_fallen || q->is_held || !q->goes_on || q->length != c->length)
		return 0;
	return is_in_phase(c, q, window) ? 0 : q->length - q->at;
}

uint64_t iod_share_hold_usec(const struct iod_share_way *c, const struct iod_share_way *others,
			     size_t n, const struct iod_share_pace *p, uint64_t window,
			     uint64_t left_usec)
{
	uint64_t hold = 0;

	if (c->has_fallen || !iod_share_is_short(p))
		return 0;
	for (size_t i = 0; i < n; i++) {
		uint64_t usec = iod_share_usec(p, way_to_wrap(c, &others[i], window));

		if (usec <= left_usec && usec > hold)
			hold = usec;
	}
	return hold;
}

uint64_t iod_share_patience_usec(const struct iod_share_pace *p, uint64_t length)
{
	uint64_t usec = iod_share_usec(p, length) / PATIENCE_SHARE;

	return usec > PATIENCE_MIN_USEC ? usec : PATIENCE_MIN_USEC;
}

uint32_t iod_share_pause(uint32_t n_failures)
{
	uint32_t shift = n_failures - 1 < PAUSE_MAX_SHIFT ? n_failures - 1 : PAUSE_MAX_SHIFT;

	return n_failures == 0 ? 0 : (1u << shift) - 1;
}
