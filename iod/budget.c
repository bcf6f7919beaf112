#include "iod/budget.h"

#include <stdlib.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/memlimit.h"

/* Without a budget: this share of what the machine allows is left to clients and everything else.
 */
enum { SPARE_DIVISOR = 4 };
/* The slab beside tiles and slots: directory and borders of areas. */
#define ALIGNMENT_MAX (16ull << 20)

static uint64_t gb_bytes(double gb)
{
	return (uint64_t)(gb * 1e9 + 0.5);
}

static uint64_t at_most(uint64_t bytes, uint64_t most)
{
	return bytes < most ? bytes : most;
}

static uint64_t at_least(uint64_t bytes, uint64_t least)
{
	return bytes < least ? least : bytes;
}

/* Bytes that tiles and slots may take when nobody says how many: of the reserved pages all. */
static uint64_t usable_bytes(uint64_t limit, uint64_t reserved, const struct slab_plan *least)
{
	uint64_t fixed = least->daemon_private_size + (4ull << 20);

	if (least->total_size + ALIGNMENT_MAX <= reserved)
		return reserved - ALIGNMENT_MAX;
	limit -= limit / SPARE_DIVISOR;
	return limit > fixed ? limit - fixed : 0;
}

/* Budgets that were not given: the trunk first, then the cache, from what may be used. */
static void choose_budgets(const struct iod_options *o, uint64_t usable,
			   const struct slab_plan *least, struct slab_want *want)
{
	uint64_t all_experts = want->n_experts * want->expert_size;

	/* no more than there is to hold: the rest is the other's, if that was not given */
	want->trunk_budget = at_most(want->trunk_budget, want->trunk_size);
	want->cache_budget = at_most(want->cache_budget, all_experts);
	if (o->trunk_gb < 0) {
		uint64_t cache = o->cache_gb < 0 ? least->slots_size : want->cache_budget;

		want->trunk_budget = usable > cache ? usable - cache : 0;
		want->trunk_budget = at_most(want->trunk_budget, want->trunk_size);
		want->trunk_budget = at_least(want->trunk_budget, least->trunk_floor);
	}
	if (o->cache_gb < 0) {
		uint64_t trunk = want->trunk_budget ? want->trunk_budget : least->trunk_floor;

		want->cache_budget = usable > trunk ? usable - trunk : 0;
		want->cache_budget = at_most(want->cache_budget, all_experts);
		want->cache_budget = at_least(want->cache_budget, least->slots_size);
	}
}

/* Nothing is measured here: a daemon that is restarted must come to the same slab, to find what it
 * had in it. */
static int find_rates(const struct iod_options *o, const struct source *s,
		      const struct tuning *tuning, struct ring_rates *ret, struct err *err)
{
	uint32_t first = s->n_trunk_files ? s->n_files - s->n_trunk_files : 0;
	CLEANUP(freep) char **paths = calloc(s->n_files + (size_t)1, sizeof(*paths));

	if (!paths)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	for (uint32_t i = first; i < s->n_files; i++)
		paths[i] = s->files[i].path;
	ret->disk = o->disk_rate > 0 ? o->disk_rate * 1e9
				     : tuning_rate(tuning, paths + first, s->n_files - first);
	ret->memory = o->memory_rate > 0 ? o->memory_rate * 1e9 : 0;
	ret->gap_size = ring_gap_size(&s->config);
	ret->n_clients = o->embedded_fd > 0 ? 1 : 0;
	return 0;
}

int iod_budget_plan(const struct iod_options *o, const struct source *s,
		    const struct tuning *tuning, int kept_fd, struct slab_plan *ret,
		    struct err *err)
{
	const struct catalog_header *h = s->catalog.header;
	struct slab_want want = {
		.trunk_size = h->trunk_size,
		.max_tile_size = h->max_tile_size,
		.n_tiles = h->n_tiles,
		.expert_size = h->expert_size,
		.n_experts = s->n_experts,
		.in_flight = tuning_in_flight(tuning, SLAB_READ_DEPTH, SLAB_READ_CHUNK),
	};
	struct memlimit limit;
	struct slab_plan least;
	enum slab_pages pages = iod_options_pages(o);
	uint64_t reserved = pages == SLAB_PAGES_RESERVED ? slab_pages_reserved() : 0;
	uint64_t total, kept;
	bool is_kept_reserved;
	int r = find_rates(o, s, tuning, &want.rates, err);

	if (r == 0)
		r = slab_plan(&want, &least, err);
	if (r < 0)
		return r;
	memlimit_get("", &limit);
	/* It is used again, or goes when the new one is filled. It may be counted in a control
	 * group that is gone: never more than the limits allow. */
	kept = slab_taken(kept_fd, &is_kept_reserved);
	if (!is_kept_reserved)
		limit.bytes = limit.most - limit.bytes > kept ? limit.bytes + kept : limit.most;
	else if (pages == SLAB_PAGES_RESERVED)
		reserved += kept;
	if (o->trunk_gb > 0)
		want.trunk_budget = gb_bytes(o->trunk_gb);
	if (o->cache_gb > 0)
		want.cache_budget = gb_bytes(o->cache_gb);
	choose_budgets(o, usable_bytes(limit.bytes, reserved, &least), &least, &want);
	r = slab_plan(&want, ret, err);
	if (r < 0)
		return r;
	ret->pages = pages;
	/* what lies in reserved pages is not taken from the rest, nor counted by a control group */
	total = (ret->total_size > reserved ? ret->total_size : 0) + ret->daemon_private_size;
	if (total > limit.bytes)
		return err_set(err, ERR_BUDGET,
			       "the budgets make %.3f GB of memory, %.3f GB can be had (%s); the "
			       "least that works is %.3f GB: lower --trunk-gb and --cache-gb",
			       (double)total / 1e9, (double)limit.bytes / 1e9, limit.text,
			       (double)(least.total_size + least.daemon_private_size) / 1e9);
	return 0;
}
