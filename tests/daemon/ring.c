/* Places in the ring: against a search of every place by brute force, and the promise of cells. */
#include "iod/ring.h"

#include <stdint.h>

#include "iod/trunk.h"
#include "tests/harness/test.h"

enum { OFF = 1 << 20, TILES_MAX = 64 };

struct world {
	struct list ring;
	struct iod_tile tiles[TILES_MAX];
	uint64_t distance[TILES_MAX];
	bool is_free[TILES_MAX]; /* may be evicted */
	uint32_t n;
	uint64_t room, cell;
};

static uint64_t state = 0x9e3779b97f4a7c15ull;
static uint32_t draw(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 16) % below);
}

static struct iod_ring_cost cost(void *data, const struct iod_tile *tile)
{
	const struct world *w = data;
	size_t i = (size_t)(tile - w->tiles);

	return (struct iod_ring_cost){
		.may_evict = w->is_free[i],
		.distance = w->distance[i],
		.last_use = tile->last_use,
	};
}

static void put(struct world *w, uint64_t offset, uint64_t size, bool is_free, uint64_t distance)
{
	struct iod_tile *t = &w->tiles[w->n];

	t->offset = offset;
	t->size = size;
	t->last_use = draw(1000) + 1;
	list_init(&t->ring_link);
	w->is_free[w->n] = is_free;
	w->distance[w->n] = distance;
	w->n++;
	iod_ring_insert(&w->ring, t);
}

static void start(struct world *w, uint64_t room, uint64_t cell)
{
	memset(w, 0, sizeof(*w));
	list_init(&w->ring);
	w->room = room;
	w->cell = cell;
}

static bool find(struct world *w, uint64_t size, uint64_t min_distance, uint64_t *ret)
{
	struct iod_ring_want want = {
		.off = OFF,
		.room = w->room,
		.cell = w->cell,
		.size = size,
		.min_distance = min_distance,
		.cost = cost,
		.data = w,
	};

	return iod_ring_find(&w->ring, &want, ret);
}

/* The soonest distance among what a place would evict; false: it cannot be had. */
static bool worth(const struct world *w, uint64_t place, uint64_t size, uint64_t min_distance,
		  uint64_t *ret)
{
	*ret = UINT64_MAX;
	for (uint32_t i = 0; i < w->n; i++) {
		const struct iod_tile *t = &w->tiles[i];

		if (t->offset >= place + size || place >= t->offset + t->size)
			continue;
		if (!w->is_free[i] || w->distance[i] <= min_distance)
			return false;
		if (w->distance[i] < *ret)
			*ret = w->distance[i];
	}
	return true;
}

static void fill(struct world *w)
{
	start(w, 4096ull * (20 + draw(60)), 4096ull * (4 + draw(8)));
	for (uint64_t at = 0; at < w->room && w->n < TILES_MAX;) {
		uint64_t left = w->cell - at % w->cell;
		uint64_t size = 4096ull * (1 + draw((uint32_t)(w->cell / 4096)));

		if (left > w->room - at)
			left = w->room - at;
		if (size > left)
			size = left;
		if (draw(3) > 0)
			put(w, OFF + at, size, draw(4) > 0, draw(5) == 0 ? UINT64_MAX : draw(20));
		at += size;
	}
}

static void against_brute_force(void)
{
	unsigned found = 0, none = 0;

	for (int round = 0; round < 20000; round++) {
		static struct world w;
		uint64_t size, min_distance = draw(12), place = 0, best = 0, mine;
		bool has = false;

		fill(&w);
		size = 4096ull * (1 + draw((uint32_t)(w.cell / 4096)));
		for (uint64_t at = 0; at + size <= w.room; at += 4096) {
			uint64_t d;

			if (at / w.cell != (at + size - 1) / w.cell)
				continue;
			if (!worth(&w, OFF + at, size, min_distance, &d))
				continue;
			if (!has || d > best)
				best = d;
			has = true;
		}
		CHECK_EQ(find(&w, size, min_distance, &place), has);
		if (!has) {
			none++;
			continue;
		}
		found++;
		CHECK(place >= OFF && place + size <= OFF + w.room && place % 4096 == 0);
		CHECK_EQ((place - OFF) / w.cell, (place - OFF + size - 1) / w.cell);
		CHECK(worth(&w, place, size, min_distance, &mine));
		CHECK_EQ(mine, best);
	}
	CHECK(found > 1000 && none > 100);
}

static void order_is_kept(void)
{
	static struct world w;

	start(&w, 1 << 20, 1 << 16);
	for (int i = 0; i < 16; i++)
		put(&w, OFF + (uint64_t)((i * 7) % 16) * 65536, 4096, true, 1);
	for (const struct list *at = w.ring.next; at->next != &w.ring; at = at->next)
		CHECK(list_entry((struct list *)(uintptr_t)at, struct iod_tile, ring_link)->offset <
		      list_entry(at->next, struct iod_tile, ring_link)->offset);
}

static void least_recently_used_of_equals(void)
{
	static struct world w;
	uint64_t place = 0;

	start(&w, 4 * 8192, 8192);
	for (uint64_t i = 0; i < 4; i++) {
		put(&w, OFF + i * 8192, 8192, true, UINT64_MAX);
		w.tiles[i].last_use = i == 2 ? 1 : 10 + i;
	}
	CHECK(find(&w, 8192, 0, &place));
	CHECK_EQ(place, OFF + 2 * 8192);
}

/* However small leased tiles lie, each keeps others from one cell only. */
static void small_leases_do_not_block(void)
{
	for (int round = 0; round < 2000; round++) {
		static struct world w;
		const uint64_t cells = 7, cell = 16 * 4096;
		uint64_t place;

		start(&w, cells * cell, cell);
		for (int i = 0; i < 30; i++) {
			uint64_t size = 4096ull * (1 + draw(16));

			/* as the daemon does: a place from the search, the old tiles go */
			if (!find(&w, size, 0, &place))
				continue;
			for (uint32_t k = 0; k < w.n; k++)
				if (w.tiles[k].offset < place + size &&
				    place < w.tiles[k].offset + w.tiles[k].size)
					list_remove(&w.tiles[k].ring_link);
			put(&w, place, size, true, 1 + draw(30));
		}
		/* lease three and three: the seventh cell must hold a largest tile */
		for (int leased = 0, tries = 0; leased < 6 && tries < 100; tries++) {
			uint32_t i = draw(w.n);

			if (w.tiles[i].ring_link.next == &w.tiles[i].ring_link || !w.is_free[i])
				continue;
			w.is_free[i] = false;
			leased++;
		}
		CHECK(find(&w, cell, 0, &place));
	}
}

static const struct test_case cases[] = {
	{ "against brute force", against_brute_force },
	{ "order is kept", order_is_kept },
	{ "least recently used of equals", least_recently_used_of_equals },
	{ "small leases do not block", small_leases_do_not_block },
};
TEST_MAIN(cases)
