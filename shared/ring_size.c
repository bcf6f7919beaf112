#include "shared/ring_size.h"

#include <stdio.h>

#include "shared/config.h"
#include "shared/names.h"

/* Beside what is in flight and what comes in a gap: places that tiles of several sizes leave free,
 * and a tile that is handed over. */
#define SPARE (64ull << 20)
/* The disk of the published measurements, and two channels of memory. */
#define DISK_ASSUMED   3.2e9
#define MEMORY_ASSUMED 20e9
/* Weights computed on a second, as a share of the plain read rate (docs/planning.md). */
#define COMPUTE_SHARE 0.75
/* Where the work of a gap is not known. */
#define GAP_ASSUMED 0.020
/* A client holds three tiles at most while it waits (promises); one is read into. */
enum { TILES_OF_A_CLIENT = 3 };
/* No more than such a part of the trunk: a small model is not to be all ring. */
enum { TRUNK_PART = 8 };

uint64_t ring_gap_size(const struct config *c)
{
	static const enum role shared[] = { ROLE_SHARED_GATE, ROLE_SHARED_UP, ROLE_SHARED_DOWN };
	uint64_t expert = 0, beside = 0;
	uint32_t rows, cols;

	for (uint32_t part = 0; part < EXPERT_PARTS; part++) {
		expert_part_shape(part, c, &rows, &cols);
		expert += (uint64_t)rows * cols;
	}
	for (unsigned i = 0; i < sizeof(shared) / sizeof(shared[0]); i++) {
		role_shape(shared[i], c, &rows, &cols);
		beside += 2ull * rows * cols;
	}
	return c->top_k * expert + beside;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static double gap_seconds(const struct ring_rates *r)
{
	double memory = r->memory > 0 ? r->memory : MEMORY_ASSUMED;

	return r->gap_size > 0 ? (double)r->gap_size / (memory * COMPUTE_SHARE) : GAP_ASSUMED;
}

bool ring_size_depends_on_rates(uint64_t trunk_size, uint64_t in_flight)
{
	return trunk_size / TRUNK_PART > SPARE + in_flight;
}

uint64_t ring_size(const struct ring_want *w, char ret_note[RING_NOTE_SIZE])
{
	const struct ring_rates *r = &w->rates;
	double disk = r->disk > 0 ? r->disk : DISK_ASSUMED, gap = gap_seconds(r);
	uint64_t cell = w->max_tile_size, wanted = SPARE + w->in_flight + (uint64_t)(disk * gap);
	uint64_t clients = (TILES_OF_A_CLIENT * (r->n_clients ? r->n_clients : 2ull) + 1) * cell;
	uint64_t size;
	const char *why;

	/* whole cells: rates that differ by a little make the same ring */
	wanted = (wanted + cell - 1) / cell * cell;
	size = min_u64(wanted, w->trunk_size / TRUNK_PART);
	why = size < wanted ? ", at most an eighth of the trunk" : "";
	if (size < min_u64(clients, w->budget / 2)) {
		size = min_u64(clients, w->budget / 2);
		why = ", at least the tiles that clients hold";
	}
	size = min_u64(size, w->budget);
	if (size <= w->least) {
		size = w->least;
		why = ", the least";
	}
	(void)snprintf(ret_note, RING_NOTE_SIZE, "disk %.3f GB/s%s x %.0f ms between tiles%s%s",
		       disk / 1e9, r->disk > 0 ? "" : " (assumed)", gap * 1e3,
		       r->memory > 0 && r->gap_size > 0 ? "" : " (assumed)", why);
	return size;
}
