/*
 * A whole connection: one real daemon over a small model, in memory that is tight; each input is
 * the life of one client, spoken to it over a socket pair. Bytes of the input choose what it does:
 * whole messages with fields from the input, right ones as a good client would send them, raw
 * bytes, descriptors, reading or not reading, waiting. When it has gone, nothing may be left with
 * it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "iod/client.h"
#include "iod/daemon.h"
#include "proto/conn.h"
#include "shared/log.h"
#include "shared/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct iod_daemon *daemon_;
static struct iod_options options;
static char socket_path[64];

struct life {
	const uint8_t *at, *end;
	int fd; /* the client's side */
	uint32_t sweep, next_tile;
	struct wire_expert_ready expert; /* the last that came */
	uint32_t step;
};

static int be_silent(enum log_level level, const char *text, const char *const *fields)
{
	(void)level;
	(void)text;
	(void)fields;
	return 0;
}

static void remove_socket(void)
{
	(void)unlink(socket_path);
}

static void turn(int n)
{
	while (n-- > 0)
		must(sd_event_run(daemon_->event, 0) >= 0);
}

static void start(void)
{
	static char model[] = K3_SOURCE_ROOT "/deploy/demo";
	char *argv[] = { "k3-iod", "--model",    model, "--socket", socket_path, "--trunk-gb",
			 "0",      "--cache-gb", "0",   "--tile",   "16384",     NULL };
	struct err err = { 0 };

	(void)snprintf(socket_path, sizeof(socket_path), "/tmp/k3-fuzz-%d", (int)getpid());
	(void)atexit(remove_socket);
	log_set_sink(be_silent);
	must(iod_options_parse(&options, (int)N_ELEMENTS(argv) - 1, argv, &err) == 0);
	if (iod_daemon_new(&daemon_, &options, &err) < 0) {
		(void)fprintf(stderr, "%s\n", err.text);
		abort();
	}
	while (daemon_->phase != IOD_PHASE_SERVE)
		must(sd_event_run(daemon_->event, UINT64_MAX) >= 0);
}

static uint8_t next(struct life *l)
{
	return l->at < l->end ? *l->at++ : 0;
}

static void send_packet(struct life *l, const void *bytes, size_t size)
{
	(void)send(l->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void send_message(struct life *l, uint16_t type, const void *body, size_t size)
{
	uint8_t packet[1024];
	struct wire_header h = { .size = (uint32_t)(sizeof(h) + size), .type = type };

	memcpy(packet, &h, sizeof(h));
	memcpy(packet + sizeof(h), body, size);
	send_packet(l, packet, sizeof(h) + size);
}

/* The first bytes of the struct from the input, the rest zero: what the checks let through. */
static void send_some(struct life *l, uint16_t type)
{
	size_t size = proto_struct_size(type);
	uint8_t body[1024] = { 0 };
	size_t n = next(l);

	if (size == 0 || size > sizeof(body))
		return;
	for (size_t i = 0; i < n && i < size; i++)
		body[i] = next(l);
	send_message(l, type, body, size);
}

static void send_raw(struct life *l)
{
	uint8_t bytes[256];
	size_t n = next(l);

	for (size_t i = 0; i < n; i++)
		bytes[i] = next(l);
	send_packet(l, bytes, n);
}

static void send_descriptor(struct life *l)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct wire_stats body = { 0 };
	struct wire_header h = { .size = sizeof(h) + sizeof(body), .type = PROTO_STATS };
	struct iovec iov[2] = { { &h, sizeof(h) }, { &body, sizeof(body) } };
	struct msghdr msg = { .msg_iov = iov,
			      .msg_iovlen = 2,
			      .msg_control = control.bytes,
			      .msg_controllen = sizeof(control.bytes) };
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &l->fd, sizeof(int));
	(void)sendmsg(l->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void receive_all(struct life *l)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * 16)];
		struct cmsghdr align;
	} control;
	static uint8_t packet[PROTO_TAIL_MAX + 1024];

	for (;;) {
		struct iovec iov = { packet, sizeof(packet) };
		struct msghdr msg = { .msg_iov = &iov,
				      .msg_iovlen = 1,
				      .msg_control = control.bytes,
				      .msg_controllen = sizeof(control.bytes) };
		ssize_t n = recvmsg(l->fd, &msg, MSG_DONTWAIT);
		struct proto_message m;
		struct err err = { 0 };
		uint32_t n_fds = 0;

		if (n <= 0)
			return;
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
			for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
				int fd;

				memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
				(void)close(fd);
				n_fds++;
			}
		/* whatever happens to it, what the daemon says is well formed */
		must(proto_check(packet, (size_t)n, n_fds, PROTO_D2C, &m, &err) == 0);
		if (m.type == PROTO_EXPERT_READY)
			l->expert = m.body.expert_ready;
		if (m.type == PROTO_TILE_READY && m.body.tile_ready.flags == 0)
			l->next_tile = m.body.tile_ready.tile;
	}
}

static void act(struct life *l)
{
	uint8_t op = next(l);
	struct wire_hello hello = { .version_min = 1, .version_max = 1, .name = "fuzz" };
	struct wire_sweep sweep = { .first_tile = next(l) % 140, .n_layers = 9, .flags = op >> 6 };
	struct wire_experts experts = { .layer = 1 + op / 32, .n = 1, .step = ++l->step };
	struct wire_tile_done tile = { .sweep = l->sweep, .tile = l->next_tile };
	struct wire_expert_done done = { l->expert.layer, l->expert.expert, l->expert.slot,
					 l->expert.generation };

	switch (op % 32) {
	case 0:
		send_raw(l);
		break;
	case 17:
		send_message(l, PROTO_HELLO, &hello, sizeof(hello));
		break;
	case 18:
	case 19:
		receive_all(l);
		break;
	case 20:
		sweep.sweep = ++l->sweep;
		send_message(l, PROTO_SWEEP, &sweep, sizeof(sweep));
		break;
	case 21:
		send_message(l, PROTO_TILE_DONE, &tile, sizeof(tile));
		break;
	case 22:
	case 23:
		experts.n = 1 + next(l) % 8;
		for (uint32_t i = 0; i < experts.n; i++)
			experts.ids[i] = (uint16_t)(next(l) % 33);
		send_message(l, op % 32 == 22 ? PROTO_EXPERTS : PROTO_HINT, &experts,
			     sizeof(experts));
		break;
	case 24:
		send_message(l, PROTO_EXPERT_DONE, &done, sizeof(done));
		break;
	case 25:
		send_descriptor(l);
		break;
	case 26:
		must(sd_event_run(daemon_->event, 1000) >= 0); /* let reads land */
		break;
	default:
		send_some(l, op % 32);
	}
	turn(2);
}

/* Gone is gone: no connection, no promise, no lease. */
static void expect_nothing_left(void)
{
	for (int i = 0; i < 1000 && daemon_->n_clients > 0; i++)
		turn(1);
	turn(3);
	must(daemon_->n_clients == 0 && daemon_->n_open == 0 && list_is_empty(&daemon_->clients));
	must(daemon_->trunk->n_held_cells == 0);
	must(daemon_->experts->n_held == 0);
	for (uint32_t i = 0; i < daemon_->trunk->n_tiles; i++)
		must(daemon_->trunk->tiles[i].n_leases == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct life l = { .at = data, .end = data + size };
	int pair[2];

	if (!daemon_)
		start();
	must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	l.fd = pair[0];
	must(iod_client_new(daemon_, pair[1]) == 0);
	while (l.at < l.end)
		act(&l);
	(void)close(l.fd);
	expect_nothing_left();
	return 0;
}
