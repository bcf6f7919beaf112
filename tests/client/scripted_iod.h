#pragma once
/*
 * The daemon's end of a connection, played by the test: a real slab and catalog of a small
 * checkpoint, and messages that the test sends and expects one by one. Sockets keep what is sent
 * before the client reads it, so one thread plays both sides.
 */
#include "compute/iod_client.h"
#include "proto/conn.h"
#include "shared/catalog.h"
#include "shared/slab.h"

struct scripted_iod {
	struct source *source;
	struct slab *slab;
	struct proto_conn *conn; /* the daemon's end */
	struct k3_iod *client;
	/* of clients that connect again: how the next dials go */
	uint32_t tile_window, expert_window;
	uint32_t n_dials, n_nobody,
		n_busy;       /* nobody answers, BUSY instead of WELCOME: so many times */
	bool has_other_model; /* WELCOME with another digest */
};

/* Open the checkpoint and make a client of it, its windows as given. */
void scripted_open(struct scripted_iod *s, uint32_t tile_window, uint32_t expert_window);
/* The same, and a connection that ends is made again: every dial makes a new pair of sockets, with
 * WELCOME or BUSY in it. */
void scripted_open_again(struct scripted_iod *s, uint32_t tile_window, uint32_t expert_window);
/* The daemon's end closes. */
void scripted_die(struct scripted_iod *s);
/* The slab of the daemon before is forgotten, another one made. */
void scripted_new_slab(struct scripted_iod *s);
void scripted_close(struct scripted_iod *s);

void scripted_send(struct scripted_iod *s, enum proto_type type, const void *body);
void scripted_send_error(struct scripted_iod *s, const struct wire_error *e, const char *sentence);
/* The next message of the client, of this type. Its body is returned. */
union proto_body scripted_expect(struct scripted_iod *s, enum proto_type type);
/* The client has sent nothing more. */
void scripted_expect_silence(struct scripted_iod *s);

/* Put a tile into the directory at an offset of the ring, READY, filled with fill; its generation.
 */
uint32_t scripted_place_tile(struct scripted_iod *s, uint32_t tile, uint64_t offset,
			     uint32_t flags);
void scripted_tile_ready(struct scripted_iod *s, uint32_t sweep, uint32_t tile);
void scripted_expert_ready(struct scripted_iod *s, const struct wire_experts *request, size_t index,
			   uint32_t slot, uint64_t bytes_read);
