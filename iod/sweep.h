#pragma once
/*
 * A client's way through the trunk, and the read-ahead for all clients together. Positions count
 * the tiles of one sweep (the bound layers, then the head when asked for); a position may run past
 * the end when another sweep is to follow.
 *
 *   given to the client | leased ...  cursor ... READY or LOADING ... ahead ... not looked at yet
 *
 * Tiles before the cursor have been handed over (leased, or pinned and READY); tiles from the
 * cursor to ahead are in memory or on their way, so nothing before ahead has to be looked at again
 * until one of them is evicted or fails.
 */
#include <stdbool.h>
#include <stdint.h>

#include "iod/quota.h"
#include "proto/wire.h"

struct iod_daemon;
struct iod_client;

struct iod_sweep {
	bool is_active;
	bool is_again;
	uint32_t number;     /* the client's */
	uint32_t n_body;     /* tiles of the layers */
	uint32_t head_first; /* first tile of the head */
	uint32_t length;     /* positions of one sweep */
	uint32_t cursor, ahead;
	uint32_t leases[IOD_QUOTA_TILES]; /* tile indexes */
	uint32_t n_leases;
	uint32_t n_pinned_told; /* of trunk->pinned_ready: the client knows these */
};

/* SWEEP and TILE_DONE. Negative: what the client broke (ERR_PROTOCOL). */
int iod_sweep_begin(struct iod_client *c, const struct wire_sweep *m, struct err *err);
int iod_sweep_tile_done(struct iod_client *c, const struct wire_tile_done *m, struct err *err);
/* Give back all leases; the client wants no tiles any more. */
void iod_sweep_end(struct iod_client *c);

/* A tile is READY, has failed or was evicted. */
void iod_sweep_tile_changed(struct iod_daemon *d, const struct iod_tile *tile);
/* Hand over what is there and read ahead as far as the ring has room. */
void iod_sweep_pump(struct iod_daemon *d);
