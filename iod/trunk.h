#pragma once
/*
 * The tiles of the trunk: which are pinned, where each is, and reading them in. A tile is EMPTY,
 * LOADING or READY as in slab_layout.h; only this module moves it. Pinned tiles have places of
 * their own and are loaded in the background from the start, or sooner when a sweep wants them; the
 * others share the ring, where a READY tile without leases may be evicted.
 *
 * Which tile is wanted when is the sweeps' knowledge (sweep.h); what a client may lease, the
 * quotas'.
 */
#include <stdbool.h>
#include <stdint.h>

#include "iod/metrics.h"
#include "iod/read/read.h"
#include "shared/catalog.h"
#include "shared/list.h"
#include "shared/slab.h"

struct iod_checks;
struct iod_trunk;

struct iod_tile {
	struct iod_read read;
	struct iod_trunk *trunk; /* borrowed: its owner */
	struct list ring_link;   /* in trunk->ring while it has a place there */
	uint64_t size;           /* in the slab */
	uint64_t offset;         /* from the slab's start; pinned: its place for good */
	uint64_t last_use;
	uint64_t uncharged; /* bytes read that no client was told of yet */
	uint32_t index;
	uint32_t n_leases;
	enum slab_state state;
	int error; /* of the last read, -errno; cleared when it is asked for again */
	bool is_pinned;
	bool is_wanted;  /* being read for a sweep, not in the background */
	bool is_foreign; /* LOADING: an earlier daemon's read may land in it */
	bool is_again;   /* its bytes did not have their checksum, so it is read once more */
};

/* Called when a tile has become READY, has failed (error is set), or was evicted. */
typedef void iod_trunk_changed_fn(void *data, struct iod_tile *tile);

struct iod_trunk {
	const struct source *source; /* borrowed */
	struct slab *slab;           /* borrowed; NULL until started */
	struct iod_reader *reader;   /* borrowed */
	struct iod_metrics *metrics; /* borrowed */
	iod_trunk_changed_fn *changed;
	void *changed_data;
	struct iod_tile *tiles; /* [n_tiles] */
	uint32_t n_tiles;
	uint32_t *layer_first; /* [n_layers + 2]: first tile of each layer, of the head, n_tiles */
	struct list ring;      /* struct iod_tile.ring_link, by offset */
	uint32_t n_cells;      /* of the ring, whole ones; see ring.h */
	uint32_t *cell_leases; /* [n_cells + 1]: leased tiles in each; the last is no whole cell */
	uint32_t n_held_cells; /* whole cells with a leased tile in them */
	uint64_t wanted_size;  /* bytes of tiles being read for sweeps */
	uint64_t tick;
	uint64_t pinned_size;   /* bytes that the pinned tiles take */
	uint32_t n_pinned;      /* tiles chosen to be pinned */
	uint32_t *pinned_ready; /* [n_pinned]: in the order in which they became READY */
	uint32_t n_pinned_ready;
	uint32_t next_pin;               /* no tile below it waits to be pinned */
	const struct iod_checks *checks; /* borrowed */
	struct err fault;                /* of the last tile that did not have its checksum */
	uint32_t fault_tile;
};

/* Choose the tiles to pin, spread evenly, at most budget bytes of them. */
int iod_trunk_new(struct iod_trunk **ret, const struct source *source, uint64_t budget);
struct iod_trunk *iod_trunk_free(struct iod_trunk *t);
/* The slab exists and can be read into. */
int iod_trunk_start(struct iod_trunk *t, struct slab *slab, struct iod_reader *reader,
		    const struct iod_checks *checks, struct iod_metrics *metrics,
		    iod_trunk_changed_fn *changed, void *data);

/* Entries of a slab that an earlier daemon left. */
struct iod_kept {
	uint32_t n_ready, n_loading;
};
/* Take over what it left, started already; free the places that it was filling, once its reads have
 * landed. */
void iod_trunk_adopt(struct iod_trunk *t, struct iod_kept *ret);
void iod_trunk_settle(struct iod_trunk *t);

/* A sweep wants a pinned tile: read it if it is EMPTY, and ahead of others if it is LOADING. */
void iod_trunk_load_pinned(struct iod_trunk *t, struct iod_tile *tile);
/* Read an EMPTY tile to place (offset in the slab, found by iod_ring_find): what lies there is
 * evicted first. */
void iod_trunk_load_at(struct iod_trunk *t, struct iod_tile *tile, uint64_t place);
/* Keep the background loading of pinned tiles going. */
void iod_trunk_pump_pins(struct iod_trunk *t);

/* The cell that a tile of the ring lies in, and its size. */
uint32_t iod_trunk_cell_of(const struct iod_trunk *t, const struct iod_tile *tile);
uint64_t iod_trunk_cell_size(const struct iod_trunk *t);
void iod_trunk_lease(struct iod_trunk *t, struct iod_tile *tile);
void iod_trunk_release(struct iod_trunk *t, struct iod_tile *tile);
/* The sentence for a tile that could not be read. */
void iod_trunk_describe_failure(const struct iod_trunk *t, const struct iod_tile *tile,
				struct err *err);
