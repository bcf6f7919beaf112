#pragma once
/*
 * A framed connection: whole messages with their descriptors in and out of a SOCK_SEQPACKET socket,
 * and the one decoder of untrusted bytes. Used by daemon and client alike. Never logs, never blocks
 * unless told to.
 */
#include <stdbool.h>
#include <stddef.h>

#include "proto/wire.h"
#include "shared/err.h"

/* Any message; the header's type says which member. */
union proto_body {
	struct wire_hello hello;
	struct wire_welcome welcome;
	struct wire_sweep sweep;
	struct wire_tile_ready tile_ready;
	struct wire_tile_done tile_done;
	struct wire_rows rows;
	struct wire_row row;
	struct wire_experts experts;
	struct wire_expert_ready expert_ready;
	struct wire_expert_done expert_done;
	struct wire_stats stats;
	struct wire_stats_reply stats_reply;
	struct wire_error error;
	struct wire_view view;
	struct wire_view_reply view_reply;
};

struct proto_message {
	enum proto_type type;
	union proto_body body;
	const uint8_t *tail; /* borrowed from the receive buffer until the next receive */
	size_t tail_size;
	int fds[PROTO_FDS_MAX]; /* received: owned by the caller of proto_conn_receive; -1 = none */
	uint32_t n_fds;
};

/* The size of the fixed struct of a type (without header), its name and direction; 0 / NULL when
 * unknown. */
size_t proto_struct_size(enum proto_type type);
const char *proto_name(enum proto_type type);
enum proto_direction proto_direction(enum proto_type type);

/*
 * Decode a packet of size bytes that came from the peer whose messages go in direction from. Every
 * rule of wire.h that needs no knowledge of the model is checked: sizes, type, direction, reserved
 * fields, counts, tail, number of descriptors, NUL ends. ERR_PROTOCOL names message and field.
 * ret->tail points into packet. Pure function: this is what the fuzzer drives.
 */
int proto_check(const uint8_t *packet, size_t size, uint32_t n_fds, enum proto_direction from,
		struct proto_message *ret, struct err *err);
/* Build a packet (header, struct, tail) into buf of at least proto_packet_size(m); returns its
 * size. */
size_t proto_packet_size(const struct proto_message *m);
size_t proto_encode(const struct proto_message *m, uint8_t *buf);

enum { PROTO_AGAIN = 1, PROTO_CLOSED = 2 }; /* expected conditions of the calls below */

struct proto_conn;
/* Takes the socket (owned from here); own = the direction of what we send. */
int proto_conn_new(struct proto_conn **ret, int fd, enum proto_direction own);
struct proto_conn *proto_conn_free(struct proto_conn *c);
void proto_conn_freep(struct proto_conn **c);
int proto_conn_fd(const struct proto_conn *c);

/*
 * Send: 0 sent, PROTO_AGAIN the socket is full (nothing sent; wait for POLLOUT, or wait = true to
 * block), PROTO_CLOSED the peer is gone, < 0 fatal. Descriptors in m stay the caller's.
 */
int proto_conn_send(struct proto_conn *c, const struct proto_message *m, bool wait);
/* Receive one message: 0 got one, PROTO_AGAIN none there (wait = false), PROTO_CLOSED, or < 0 with
 * err (ERR_PROTOCOL: the connection must be dropped). Unexpected descriptors are closed. */
int proto_conn_receive(struct proto_conn *c, struct proto_message *ret, bool wait, struct err *err);
/* Close descriptors that nobody took. */
void proto_message_close_fds(struct proto_message *m);

/* Version and features from HELLO / for WELCOME: chosen version or ERR_VERSION with both ranges. */
int proto_hello_agree(const struct wire_hello *hello, uint32_t *ret_version, struct err *err);
