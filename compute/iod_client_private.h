#pragma once
/*
 * What the files of the client side share: the connection's state. Touched by iod_client.c
 * (messages in and out, rows, counters), iod_client_open.c (the connection's beginning, and a new
 * one when it ends), iod_client_tiles.c and iod_client_experts.c only.
 *
 * When a connection has been made again, what is outstanding is asked for again. What that is
 * follows from where the step stands: the tiles from tiles.next on, the experts in experts.asked
 * and experts.queue, the rows that have not come. Therefore state changes first and the message is
 * sent after: one that did not get through is made good for by asking again.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/iod_client.h"
#include "proto/conn.h"
#include "shared/slab.h"

struct tile_lease {
	uint32_t tile;
	uint32_t generation;
	uint64_t offset;
};

/* The sweep under way. Leases: tiles that have arrived and are not given back. */
struct iod_tiles {
	uint32_t sweep; /* our count; what the daemon echoes */
	uint32_t n_layers;
	uint32_t flags; /* enum wire_sweep_flag */
	uint32_t next;  /* no tile below this one is wanted any more */
	uint32_t end;   /* first tile that is not part of the sweep */
	struct tile_lease *leases;
	uint32_t n_leases, max_leases;
	struct err error; /* a tile of this sweep could not be read */
};

enum asked_state { ASKED_FREE, ASKED_WAITING, ASKED_LANDED, ASKED_TAKEN };
struct asked_expert {
	enum asked_state state;
	uint32_t step;
	uint32_t layer, expert;
	struct wire_expert_ready ready;
};
struct wanted_expert {
	uint32_t layer;
	uint16_t expert;
};

/* Experts wanted but not yet asked for (queue), and those that count against the window (asked). */
struct iod_experts {
	struct wanted_expert *queue;
	size_t head, tail, capacity;
	struct asked_expert *asked; /* [window] */
	uint32_t window, n_asked;
	uint32_t step;
	uint64_t part_size[EXPERT_PARTS];
	struct err error;
};

struct iod_rows {
	uint32_t serial;
	uint32_t n, n_left;
	uint32_t ids[PROTO_ROWS_MAX];
	float *rows; /* [PROTO_ROWS_MAX][embed_cols]; allocated at the first use */
	bool has[PROTO_ROWS_MAX];
	struct err error;
};

struct k3_iod {
	struct proto_conn *conn;
	struct wire_welcome welcome;
	struct slab *slab;   /* mapped read-only */
	void *catalog_bytes; /* mapped */
	uint64_t catalog_size;
	struct catalog catalog;
	char *files[PROTO_FDS_MAX]; /* [enum wire_fd] */
	size_t file_size[PROTO_FDS_MAX];
	struct k3_iod_counts counts;
	struct timeline *timeline; /* borrowed; NULL: off */
	struct k3_iod_way way;     /* dial NULL: a connection that ends is not made again */
	uint32_t epoch;            /* of the connection; counts those that were made */
	bool is_resuming;          /* asking again: a loss is left to the loop that asks */
	bool is_lost;              /* it came while asking again */
	uint64_t limit_ns;         /* until when a WELCOME is waited for; 0 = without limit */
	struct err closing;        /* what the daemon gave as the reason before it closed */
	struct err failed;         /* the end that stays: every later call returns it */
	struct iod_tiles tiles;
	struct iod_experts experts;
	struct iod_rows rows;
	bool has_stats;
	struct wire_stats_reply stats;
};

/* Send one message; blocks while the socket is full. 0 also when the connection had ended and was
 * made again: then everything outstanding has been asked for again. */
int k3_iod_send(struct k3_iod *c, enum proto_type type, const void *body, struct err *err);
/* Take one message and file it: 0 done (or the connection was made again), PROTO_AGAIN none there
 * (wait = false), < 0 it is over for good. for_what completes "... while waiting for". */
int k3_iod_receive(struct k3_iod *c, bool wait, const char *for_what, struct err *err);
/* The same, waiting, as a span of the timeline with an id. */
int k3_iod_wait(struct k3_iod *c, const char *for_what, const char *span, const char *id_name,
		uint32_t id, struct err *err);
/* The next message as it is: 0, PROTO_AGAIN (wait = false, or later than limit_ns), PROTO_CLOSED,
 * or < 0: it is over for good. */
int k3_iod_receive_raw(struct k3_iod *c, bool wait, struct proto_message *ret, struct err *err);
void k3_iod_on_error(struct k3_iod *c, const struct proto_message *m);
uint64_t k3_iod_now_ns(void);
/* The caller of the engine does not want to wait any more. */
bool k3_iod_is_cancelled(const struct k3_iod *c);
/* The connection has ended: make it again, bounded, and ask for everything outstanding. 0 or < 0.
 */
int k3_iod_lost(struct k3_iod *c, const char *while_what, struct err *err);
/* The connection cannot go on: keep the reason, hand it to err, return -errno. */
int k3_iod_fail(struct k3_iod *c, struct err *err, enum err_code code, const char *fmt, ...)
	PRINTF_LIKE(4, 5);
/* Hand a kept error on. */
int k3_iod_raise(const struct err *kept, struct err *err);

int k3_iod_tiles_init(struct k3_iod *c, struct err *err);
void k3_iod_tiles_deinit(struct k3_iod *c);
/* On a new connection: ask for the tiles from tiles.next on. */
int k3_iod_tiles_resume(struct k3_iod *c, struct err *err);
int k3_iod_tile_ready(struct k3_iod *c, const struct wire_tile_ready *m, struct err *err);

/* An expert can be taken, or the next call raises why not. */
bool k3_iod_expert_has_landed(const struct k3_iod *c);
int k3_iod_experts_init(struct k3_iod *c, struct err *err);
void k3_iod_experts_deinit(struct k3_iod *c);
/* On a new connection: ask for the experts that were asked for and not done. */
int k3_iod_experts_resume(struct k3_iod *c, struct err *err);
int k3_iod_expert_ready(struct k3_iod *c, const struct wire_expert_ready *m, struct err *err);
void k3_iod_expert_failed(struct k3_iod *c, uint32_t layer, uint32_t expert, enum err_code code,
			  const char *sentence);
