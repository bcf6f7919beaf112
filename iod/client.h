#pragma once
/*
 * One connection: what it holds (tiles, experts, rows), what it is owed (messages that its socket
 * had no room for) and its end. Sending never blocks: what does not fit is queued up to a quota,
 * and a client that does not read is dropped. A dropped client gives everything back at once, but
 * its memory stays until the loop's next turn, so that nobody who is walking over clients stumbles.
 */
#include <stdbool.h>
#include <stdint.h>

#include <systemd/sd-event.h>

#include "iod/experts.h"
#include "iod/ride.h"
#include "iod/rows.h"
#include "iod/sweep.h"
#include "proto/conn.h"
#include "shared/attr.h"
#include "shared/list.h"

struct iod_daemon;

enum iod_client_state {
	IOD_CLIENT_NEW,  /* HELLO has not come */
	IOD_CLIENT_OPEN, /* WELCOME is sent, its promises are made */
	IOD_CLIENT_DEAD  /* dropped; freed by iod_client_reap */
};

struct iod_client {
	struct list link;          /* in daemon->clients */
	struct iod_daemon *daemon; /* borrowed: its owner */
	enum iod_client_state state;
	uint32_t number;
	uint32_t pid; /* for logs only: the kernel's, or its own word from another namespace */
	uint32_t uid;
	char name[32];
	struct proto_conn *conn;
	sd_event_source *source;
	struct list out; /* messages the socket had no room for, oldest first */
	uint32_t n_out;
	uint64_t since_usec; /* connected, or since when out has not moved */
	uint64_t heard_usec; /* when its last message came */
	struct iod_sweep sweep;
	struct iod_ride ride;
	struct iod_expert_refs experts;
	uint32_t tile_window, max_hints; /* what it was promised when it came */
	struct iod_row_requests rows;
	/* for those who look (view.h): what it was charged with, and how long it has waited */
	uint64_t trunk_bytes, expert_bytes;
	uint64_t wait_usec, waits_since; /* 0 = it does not wait */
	bool has_no_place;               /* sweep.c: no room for its next tile in this pump */
	char why[400];                   /* DEAD: the reason; "" = it went by itself */
	enum err_code why_code;
};

/* Take a connected socket (owned from here, also on failure). */
int iod_client_new(struct iod_daemon *d, int fd);
/* Free a client at once. */
void iod_client_free(struct iod_client *c);

/* Send or queue. m's tail is copied. A client over its quota is dropped. */
void iod_client_send(struct iod_client *c, const struct proto_message *m);
void iod_client_send_error(struct iod_client *c, const struct err *err, enum proto_type request,
			   uint32_t a, uint32_t b);
/* ERROR as a message; its tail points into err. flags: enum wire_error_flag. */
void iod_client_make_error(struct proto_message *ret, const struct err *err, uint32_t flags);
/* So much is queued that what can wait should. */
bool iod_client_is_full(const struct iod_client *c);

/* End the connection: with err the client is told (when its socket has room) and the reason is
 * logged; NULL: it has gone by itself. */
void iod_client_drop(struct iod_client *c, const struct err *err);
/* Give back what dead clients held, and free them. */
void iod_client_reap(struct iod_daemon *d);
/* Drop those that have stalled. now: CLOCK_MONOTONIC. */
void iod_client_check_stalled(struct iod_daemon *d, uint64_t now_usec);
