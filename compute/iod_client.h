#pragma once
/*
 * The client's side of the protocol: one connection to a daemon, the mapped slab and catalog, and
 * calls that wait for tiles, rows and experts. Single-threaded. Pointers into the slab are
 * read-only and may change under the reader when a lease was lost: compute first, then *_done()
 * tells whether the bytes were still the same, and only then use the result.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"
#include "shared/catalog.h"
#include "shared/err.h"

struct k3_iod;
struct timeline;

enum { K3_IOD_STALE = 1, K3_IOD_NONE = 2 }; /* expected conditions below */

/*
 * How a daemon is reached, at first and when a connection has ended. A connection that ends in the
 * middle of a step (the daemon was killed, restarted, upgraded) is made again: the model's digest
 * and catalog are compared, the slab is mapped anew and what the step still needs is asked for. The
 * caller notices nothing but the time; a line on standard error says so. Pointers into the slab
 * hold until the next call only.
 */
struct k3_iod_way {
	/* A connected socket, the caller's. K3_IOD_NONE with err: nobody answers now; < 0: trying
	 * again is of no use. */
	int (*dial)(void *data, int *ret_fd, struct err *err);
	void *data;
	uint64_t wait_seconds; /* for a daemon that has gone, is starting or is busy; 0 = none */
	bool (*is_cancelled)(void); /* NULL: waiting ends by time alone */
};
int k3_iod_open(struct k3_iod **ret, const struct k3_iod_way *way, struct err *err);
/* Dial the socket at a path; data: the path. */
int k3_iod_dial(void *data, int *ret_fd, struct err *err);
/* A connected socket (owned from here); when it ends, so does the connection. */
int k3_iod_adopt(struct k3_iod **ret, int fd, struct err *err);
struct k3_iod *k3_iod_free(struct k3_iod *c);
void k3_iod_freep(struct k3_iod **c);

const struct catalog *k3_iod_catalog(const struct k3_iod *c);
const struct wire_welcome *k3_iod_welcome(const struct k3_iod *c);
/* config.json and tokenizer files as the daemon gave them: heap copies owned by c; NULL when not
 * given. */
const char *k3_iod_file(const struct k3_iod *c, enum wire_fd which, size_t *ret_size);

/* Begin a sweep over the tiles of layers [0, n_layers) and, with head, of the head. again: another
 * follows. */
int k3_iod_sweep(struct k3_iod *c, uint32_t n_layers, bool head, bool again, struct err *err);

struct k3_tile {
	uint32_t tile;
	uint32_t generation;
	uint32_t epoch; /* of the connection that brought it */
	bool is_pinned;
	const uint8_t *base; /* start of the tile in the slab; parts at base + part.offset */
};
/* Wait until the tile is there. Tiles must be asked for in ascending order within a sweep (skipping
 * is allowed: the skipped ones are released). Expert messages that arrive meanwhile are kept for
 * k3_iod_expert_next. */
int k3_iod_tile(struct k3_iod *c, uint32_t tile, struct k3_tile *ret, struct err *err);
/* Is the tile there already (no waiting)? */
bool k3_iod_tile_is_ready(struct k3_iod *c, uint32_t tile);
/* Wait until the tile is there or an expert has landed, whichever comes first, so that neither
 * waits for the other. An expert that failed counts as landed: k3_iod_expert_next says how. */
int k3_iod_wait_tile_or_expert(struct k3_iod *c, uint32_t tile, struct err *err);
/* After computing: 0 = the bytes were valid throughout and the lease is returned; K3_IOD_STALE =
 * throw the result away and ask again with k3_iod_tile (the sweep is resumed there). */
int k3_iod_tile_done(struct k3_iod *c, const struct k3_tile *t, struct err *err);

/* Embedding rows of n token ids as f32, out[n][hidden]. Waits. */
int k3_iod_rows(struct k3_iod *c, const uint32_t *ids, size_t n, float *out, struct err *err);

/* Ask for n experts of a layer (ascending ids = the order of urgency); any n, sent in messages of
 * at most PROTO_EXPERTS_MAX and as the daemon's window allows. */
int k3_iod_experts(struct k3_iod *c, uint32_t layer, const uint16_t *ids, size_t n,
		   struct err *err);
struct k3_expert {
	uint32_t layer, expert, slot, generation;
	uint32_t epoch; /* of the connection that brought it */
	const uint8_t *part[EXPERT_PARTS];
};
/* The next expert that has landed: 0; K3_IOD_NONE: none there now (wait = false) or none
 * outstanding. ERR_EXPERT when one could not be loaded. */
int k3_iod_expert_next(struct k3_iod *c, bool wait, struct k3_expert *ret, struct err *err);
/* As k3_iod_tile_done; K3_IOD_STALE: it has been asked for again and will come back. */
int k3_iod_expert_done(struct k3_iod *c, const struct k3_expert *e, struct err *err);

/* The daemon's counters by proto/stats.def order; n <= PROTO_STATS_MAX. */
int k3_iod_stats(struct k3_iod *c, uint64_t values[PROTO_STATS_MAX], uint32_t *ret_n,
		 struct err *err);

/* Waits go there, and what users of the connection add; NULL (as it begins): nowhere. Borrowed. */
void k3_iod_set_timeline(struct k3_iod *c, struct timeline *t);
struct timeline *k3_iod_timeline(const struct k3_iod *c);

/* What this connection has taken, for step reports. Only grows. */
struct k3_iod_counts {
	uint64_t trunk_bytes_read, expert_bytes_read; /* as charged by TILE_READY, EXPERT_READY */
	uint64_t tiles, experts_resident, experts_read, stale;
	uint64_t reconnects;
	uint64_t wait_ns; /* time spent waiting for messages */
};
const struct k3_iod_counts *k3_iod_counts(const struct k3_iod *c);
