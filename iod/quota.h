#pragma once
/*
 * What one peer can make the daemon hold, and the arithmetic of promises: every client can always
 * get IOD_PROMISED_TILES cells of the ring and IOD_PROMISED_EXPERTS slots, whatever the others do.
 * More is given only while what is held then leaves the promises of all others, whatever these hold
 * now (they may give it back); where there is room for two clients, one that may yet come counts.
 * So nobody waits for ever: a client that waits for a tile holds no tile, and the experts that the
 * others need to go on have slots of their own.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"

enum {
	IOD_PROMISED_TILES = 3,
	IOD_PROMISED_EXPERTS = 2,
	IOD_QUOTA_CLIENTS = 64,
	IOD_QUOTA_CONNECTIONS = 128,   /* those that have not said HELLO included */
	IOD_QUOTA_TILES = 32,          /* tile leases of one client */
	IOD_QUOTA_EXPERTS = 256,       /* expert leases and waits of one client */
	IOD_QUOTA_HINTS = 128,         /* hinted experts remembered for one client */
	IOD_QUOTA_ROW_REQUESTS = 4,    /* ROWS under way for one client */
	IOD_QUOTA_OUT_MESSAGES = 1024, /* not yet taken by the client: then it is dropped */
	IOD_QUOTA_OUT_PAUSE = 64,      /* from here on nothing that can wait is queued */
	IOD_QUOTA_HELLO_SECONDS = 20,  /* from connecting to HELLO */
	IOD_QUOTA_STALL_SECONDS = 120, /* messages wait and the client takes none */
};

/* What --max-clients and --client-* allow, within the limits above. A reload sets them for clients
 * that come; who is there keeps what WELCOME has promised. */
struct iod_quota {
	uint32_t clients, tiles, experts, hints;
};

struct iod_options;
struct iod_daemon;
struct iod_client;
struct iod_tile;

void iod_quota_set(struct iod_quota *q, const struct iod_options *o);
/* May one more client be promised its least? ERR_BUSY with the reason. */
int iod_quota_admit(const struct iod_daemon *d, struct err *err);
/* May c lease this READY tile of the ring as well? */
bool iod_quota_may_lease_tile(const struct iod_client *c, const struct iod_tile *tile);
/* May c hold one more expert slot? is_held: others hold it already. */
bool iod_quota_may_hold_slot(const struct iod_client *c, bool is_held);
/* May a hint fill a slot? */
bool iod_quota_may_hint(const struct iod_daemon *d);
/* The windows of WELCOME. */
uint32_t iod_quota_tile_window(const struct iod_daemon *d);
uint32_t iod_quota_expert_window(const struct iod_daemon *d);
