/* From budgets to sizes: a pure function, run by the daemon and by a client that plans for it. */
#include "shared/slab.h"

#include <inttypes.h>
#include <string.h>

/* From this size on areas start at huge pages. */
#define HUGE_FROM (64ull << 20)
/* The daemon itself: code, libraries, loop, connections; then what struct source and the daemon
 * keep for each expert, slot and tile. Measured on the released model: 18 MB in all. */
#define PRIVATE_SIZE   (6ull << 20)
#define PRIVATE_EXPERT 128
#define PRIVATE_SLOT   256
#define PRIVATE_TILE   512

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t round_up(uint64_t x, uint64_t align)
{
	return (x + align - 1) / align * align;
}

static void lay_out(struct slab_plan *p)
{
	uint64_t directory =
		SLAB_PAGE + ((uint64_t)p->n_tiles + p->n_slots) * sizeof(struct slab_entry);
	uint64_t data = p->pinned_size + p->ring_size + p->slots_size;

	p->area_align = data >= HUGE_FROM ? SLAB_HUGE_PAGE : SLAB_PAGE;
	p->pinned_off = round_up(directory, p->area_align);
	p->ring_off = round_up(p->pinned_off + p->pinned_size, p->area_align);
	p->slots_off = round_up(p->ring_off + p->ring_size, p->area_align);
	p->total_size = round_up(p->slots_off + p->slots_size, p->area_align);
}

void slab_plan_set_pinned(struct slab_plan *plan, uint64_t pinned_size)
{
	plan->pinned_size = pinned_size;
	lay_out(plan);
}

static int plan_trunk(const struct slab_want *w, struct slab_plan *p, struct err *err)
{
	uint64_t least = min_u64(SLAB_LEAST_TILES * w->max_tile_size, w->trunk_size);
	uint64_t usual = (uint64_t)SLAB_READ_DEPTH * SLAB_READ_CHUNK;
	uint64_t in_flight = w->in_flight ? w->in_flight : usual;
	uint64_t budget = w->trunk_budget ? w->trunk_budget : least;
	struct ring_want ring = { .rates = w->rates,
				  .in_flight = in_flight,
				  .max_tile_size = w->max_tile_size,
				  .trunk_size = w->trunk_size,
				  .budget = budget,
				  .least = least };

	p->trunk_floor = least;
	if (budget < least)
		return err_set(err, ERR_BUDGET,
			       "a trunk budget of %.6f GB is below the least that works, %.6f GB "
			       "(%u tiles of %" PRIu64 " bytes); give --trunk-gb %.6f or more, or "
			       "0 for the least",
			       (double)budget / 1e9, (double)least / 1e9, SLAB_LEAST_TILES,
			       w->max_tile_size, (double)least / 1e9 + 1e-6);
	if (budget >= w->trunk_size) {
		p->pinned_size = w->trunk_size;
		p->ring_size = 0;
		return 0;
	}
	p->ring_size = ring_size(&ring, p->ring_note) / SLAB_PAGE * SLAB_PAGE;
	p->pinned_size = (budget - p->ring_size) / SLAB_PAGE * SLAB_PAGE;
	return 0;
}

static int plan_slots(const struct slab_want *w, struct slab_plan *p, struct err *err)
{
	uint64_t n;

	p->slot_size = w->expert_size;
	if (w->n_experts == 0 || w->expert_size == 0)
		return 0;
	p->cache_floor = min_u64(SLAB_FLOOR_SLOTS, w->n_experts) * w->expert_size;
	n = w->cache_budget ? w->cache_budget / w->expert_size : SLAB_LEAST_SLOTS;
	if (n * w->expert_size < p->cache_floor)
		return err_set(
			err, ERR_BUDGET,
			"an expert cache of %.6f GB is below the least that works, %.6f GB "
			"(%u experts of %" PRIu64 " bytes); give --cache-gb %.6f or more, or "
			"0 for the least",
			(double)w->cache_budget / 1e9, (double)p->cache_floor / 1e9,
			SLAB_FLOOR_SLOTS, w->expert_size, (double)p->cache_floor / 1e9 + 1e-6);
	n = min_u64(min_u64(n, w->n_experts), UINT32_MAX / 2);
	p->n_slots = (uint32_t)n;
	p->slots_size = n * w->expert_size;
	return 0;
}

int slab_plan(const struct slab_want *want, struct slab_plan *ret, struct err *err)
{
	struct slab_plan p = { .n_tiles = want->n_tiles };
	int r;

	r = plan_trunk(want, &p, err);
	if (r < 0)
		return r;
	r = plan_slots(want, &p, err);
	if (r < 0)
		return r;
	lay_out(&p);
	p.daemon_private_size = PRIVATE_SIZE + want->n_experts * PRIVATE_EXPERT +
				(uint64_t)p.n_slots * PRIVATE_SLOT +
				(uint64_t)want->n_tiles * PRIVATE_TILE;
	*ret = p;
	return 0;
}
