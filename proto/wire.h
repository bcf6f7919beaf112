#pragma once
/*
 * The wire protocol between k3 and k3-iod: fixed-size little-endian structs over a Unix socket of
 * type SOCK_SEQPACKET. messages.def is the one list of messages. Reserved fields are zero and
 * checked. Only proto/check.c turns untrusted bytes into a message.
 */
#include <assert.h>
#include <stdint.h>

enum { PROTO_VERSION_MIN = 1, PROTO_VERSION_MAX = 1 };
enum {
	PROTO_EXPERTS_MAX = 128,    /* ids in one EXPERTS or HINT */
	PROTO_ROWS_MAX = 128,       /* token ids in one ROWS */
	PROTO_TAIL_MAX = 128 << 10, /* bytes of a tail (ROW, ERROR, VIEW_REPLY) */
	PROTO_FDS_MAX = 5,
};

#define PROTO_MSG(number, NAME, direction, struct_, fds, since, sentence) PROTO_##NAME = number,
enum proto_type {
#include "proto/messages.def"
};
#undef PROTO_MSG

enum proto_direction { PROTO_C2D, PROTO_D2C };

struct wire_header {
	uint32_t size; /* of the whole packet, header and tail included */
	uint16_t type; /* enum proto_type */
	uint16_t reserved;
};
static_assert(sizeof(struct wire_header) == 8, "wire layout");

/* Feature words: compat bits may be ignored by a peer that does not know them, an unknown incompat
 * bit ends the connection with a sentence. None is defined yet. */
struct wire_hello {
	uint32_t version_min, version_max;
	uint64_t compat, incompat;
	uint32_t pid; /* for logs only */
	uint32_t reserved;
	char name[32]; /* "k3 0.1.0", NUL-padded; for logs only */
};
static_assert(sizeof(struct wire_hello) == 64, "wire layout");

enum wire_fd {
	WIRE_FD_SLAB,
	WIRE_FD_CATALOG,
	WIRE_FD_CONFIG,
	WIRE_FD_VOCABULARY,
	WIRE_FD_TOKENIZER_CONFIG
};
enum wire_has { WIRE_HAS_VOCABULARY = 1u << 0, WIRE_HAS_TOKENIZER_CONFIG = 1u << 1 };

/* Descriptors in the order of enum wire_fd; the optional ones only when their bit in has is set. */
struct wire_welcome {
	uint32_t version; /* chosen */
	uint32_t has;     /* enum wire_has */
	uint64_t compat, incompat;
	uint8_t model_digest[16];
	uint64_t slab_size, catalog_size;
	uint64_t trunk_pinned_size; /* budget for pinned tiles */
	uint64_t ring_size;
	uint64_t slots_size;
	uint64_t daemon_private_size; /* planned private memory of the daemon beside the slab */
	uint32_t n_slots;
	uint32_t tile_window;   /* tile leases this client may hold at once, >= 3 */
	uint32_t expert_window; /* expert leases + loads this client may hold at once, >= 2 */
	uint32_t client;        /* number of this connection, as in the daemon's log */
	char backend[32];       /* "io_uring, O_DIRECT" and the like */
	uint64_t reserved[2];
};
static_assert(sizeof(struct wire_welcome) == 152, "wire layout");

enum wire_sweep_flag {
	WIRE_SWEEP_HEAD = 1u << 0,  /* the step goes on through the head's tiles */
	WIRE_SWEEP_AGAIN = 1u << 1, /* another sweep from tile 0 follows: read ahead past the end */
};

/*
 * The daemon then sends TILE_READY for every tile from first_tile on, in order, of layers
 * 0 ... n_layers - 1 and of the head when asked, as far as tile_window allows; except for tiles
 * that are pinned and READY in the directory when their turn comes: the client uses those without a
 * lease. A pinned tile that becomes READY while a sweep is under way is told to every client in a
 * sweep by TILE_READY with WIRE_TILE_PINNED (no lease, no TILE_DONE).
 */
struct wire_sweep {
	uint32_t sweep; /* the client's count of sweeps, echoed in TILE_READY */
	uint32_t first_tile;
	uint32_t n_layers;
	uint32_t flags; /* enum wire_sweep_flag */
};
static_assert(sizeof(struct wire_sweep) == 16, "wire layout");

enum wire_tile_flag { WIRE_TILE_PINNED = 1u << 0 };
struct wire_tile_ready {
	uint32_t sweep;
	uint32_t tile;
	uint32_t generation;
	uint32_t flags;      /* enum wire_tile_flag */
	uint64_t offset;     /* of the tile in the slab */
	uint64_t bytes_read; /* from disk for this tile and charged to this client; 0 when it was
				there */
};
static_assert(sizeof(struct wire_tile_ready) == 32, "wire layout");

struct wire_tile_done {
	uint32_t sweep;
	uint32_t tile;
};
static_assert(sizeof(struct wire_tile_done) == 8, "wire layout");

struct wire_rows {
	uint32_t serial; /* echoed in ROW */
	uint32_t n;      /* 1 ... PROTO_ROWS_MAX; distinct ids are the client's affair */
	uint32_t ids[PROTO_ROWS_MAX]; /* zero after n */
};
static_assert(sizeof(struct wire_rows) == 520, "wire layout");

struct wire_row {
	uint32_t serial;
	uint32_t index; /* into the ids asked for */
	uint32_t id;
	uint32_t size; /* of the tail: one row as on disk (catalog: embed_dtype, embed_cols) */
};
static_assert(sizeof(struct wire_row) == 16, "wire layout");

struct wire_experts {
	uint32_t layer;
	uint32_t n;    /* 1 ... PROTO_EXPERTS_MAX */
	uint32_t step; /* the client's count of requests, echoed in EXPERT_READY */
	uint32_t reserved;
	uint16_t ids[PROTO_EXPERTS_MAX]; /* zero after n */
};
static_assert(sizeof(struct wire_experts) == 272, "wire layout");

struct wire_expert_ready {
	uint32_t layer;
	uint32_t expert;
	uint32_t step;
	uint32_t slot;
	uint32_t generation;
	uint32_t reserved;
	uint64_t offset;      /* of the slot in the slab */
	uint64_t bytes_read;  /* 0 when it was resident or another client's read served it */
	uint32_t part_off[6]; /* [expert_part], from the slot's start */
};
static_assert(sizeof(struct wire_expert_ready) == 64, "wire layout");

struct wire_expert_done {
	uint32_t layer;
	uint32_t expert;
	uint32_t slot;
	uint32_t generation;
};
static_assert(sizeof(struct wire_expert_done) == 16, "wire layout");

struct wire_stats {
	uint64_t reserved;
};
static_assert(sizeof(struct wire_stats) == 8, "wire layout");

/* proto/stats.def names the counters; the reply carries them in its order. */
enum { PROTO_STATS_MAX = 64 };
struct wire_stats_reply {
	uint32_t n;
	uint32_t reserved;
	uint64_t values[PROTO_STATS_MAX];
};
static_assert(sizeof(struct wire_stats_reply) == 520, "wire layout");

enum wire_error_flag {
	WIRE_ERROR_CLOSING = 1u << 0 /* the daemon closes the connection after it */
};
struct wire_error {
	uint32_t code;    /* enum err_code */
	uint32_t class;   /* enum err_class */
	uint32_t request; /* enum proto_type it answers; 0 = the connection */
	uint32_t flags;   /* enum wire_error_flag */
	uint32_t a, b;    /* EXPERTS: layer, expert; SWEEP: tile; ROWS: serial, index */
	uint32_t size;    /* of the tail: the sentence, no NUL */
	uint32_t reserved;
};
static_assert(sizeof(struct wire_error) == 32, "wire layout");

struct wire_view {
	uint64_t reserved;
};
static_assert(sizeof(struct wire_view) == 8, "wire layout");

struct wire_view_reply {
	uint32_t size; /* of the tail: a JSON object, no NUL; docs/protocol.md has its members */
	uint32_t reserved;
};
static_assert(sizeof(struct wire_view_reply) == 8, "wire layout");
