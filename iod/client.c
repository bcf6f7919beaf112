#include "iod/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "iod/daemon.h"
#include "iod/dispatch.h"
#include "iod/journal.h"
#include "shared/fd.h"
#include "shared/log.h"
#include "shared/must.h"

/* Messages taken from one client in one turn, so that a busy one does not hold up the loop. */
enum { MESSAGES_A_TURN = 32 };

struct out {
	struct list link;
	struct proto_message m; /* m.tail = tail */
	uint8_t tail[];
};

static void free_out(struct iod_client *c, struct out *o)
{
	list_remove(&o->link);
	c->n_out--;
	free(o);
}

/* Read, and write when something waits. */
static void set_events(struct iod_client *c)
{
	uint32_t events = EPOLLIN | (c->n_out > 0 ? (uint32_t)EPOLLOUT : 0);

	if (c->source)
		(void)sd_event_source_set_io_events(c->source, events);
}

/* What proto_conn_send said, other than sent and PROTO_AGAIN. */
static void end_on_send(struct iod_client *c, int r)
{
	struct err err = { 0 };

	if (r < 0)
		(void)err_set(&err, ERR_IO, "sending to the client failed: %s", strerror(-r));
	iod_client_drop(c, r < 0 ? &err : NULL);
}

static void flush(struct iod_client *c)
{
	while (c->n_out > 0) {
		struct out *o = list_entry(c->out.next, struct out, link);
		int r = proto_conn_send(c->conn, &o->m, false);

		if (r == PROTO_AGAIN)
			break;
		if (r != 0) {
			end_on_send(c, r);
			return;
		}
		c->since_usec = iod_daemon_now(c->daemon);
		free_out(c, o);
	}
	set_events(c);
	if (c->n_out == 0)
		iod_daemon_wake(c->daemon);
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *data)
{
	struct iod_client *c = data;
	struct proto_message m;
	struct err err = { 0 };

	(void)source;
	(void)fd;
	if ((revents & EPOLLOUT) != 0)
		flush(c);
	for (int i = 0; i < MESSAGES_A_TURN && c->state != IOD_CLIENT_DEAD; i++) {
		int r = proto_conn_receive(c->conn, &m, false, &err);

		if (r == PROTO_AGAIN)
			break;
		if (r == PROTO_CLOSED)
			iod_client_drop(c, NULL);
		else if (r < 0)
			iod_client_drop(c, &err);
		else
			iod_dispatch(c, &m);
		c->heard_usec = iod_daemon_now(c->daemon);
	}
	iod_daemon_wake(c->daemon);
	return 0;
}

void iod_client_free(struct iod_client *c)
{
	struct list *at, *next;

	list_remove(&c->link);
	list_foreach_safe (at, next, &c->out)
		free_out(c, list_entry(at, struct out, link));
	iod_expert_refs_deinit(c);
	(void)sd_event_source_disable_unref(c->source);
	(void)proto_conn_free(c->conn);
	free(c);
}

/* Whom the kernel knows at the other end, and whether they may. */
static void admit_peer(struct iod_client *c)
{
	struct iod_peer peer = { .uid = (uid_t)-1, .gid = (gid_t)-1 };
	int fd = proto_conn_fd(c->conn);
	struct err err = { 0 };

	(void)iod_access_peer(fd, &peer);
	c->pid = (uint32_t)peer.pid;
	c->uid = peer.uid;
	if (iod_access_check(&c->daemon->access, fd, &peer, &err) < 0)
		iod_client_drop(c, &err);
}

int iod_client_new(struct iod_daemon *d, int fd)
{
	struct iod_client *c = calloc(1, sizeof(*c));
	int r;

	if (!c) {
		(void)fd_close(fd);
		return -ENOMEM;
	}
	c->daemon = d;
	c->state = IOD_CLIENT_NEW;
	c->number = ++d->last_number;
	c->since_usec = c->heard_usec = iod_daemon_now(d);
	list_init(&c->link);
	list_init(&c->out);
	list_init(&c->rows.requests);
	c->tile_window = iod_quota_tile_window(d);
	c->max_hints = d->quota.hints;
	r = proto_conn_new(&c->conn, fd, PROTO_D2C);
	if (r == 0)
		r = iod_expert_refs_init(c, iod_quota_expert_window(d));
	if (r == 0)
		r = sd_event_add_io(d->event, &c->source, proto_conn_fd(c->conn), EPOLLIN, on_io,
				    c);
	if (r < 0) {
		iod_client_free(c);
		return r;
	}
	list_push_tail(&d->clients, &c->link);
	d->n_clients++;
	d->metrics.clients_total++;
	admit_peer(c);
	return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void queue(struct iod_client *c, const struct proto_message *m)
{
	struct err err = { 0 };
	struct out *o;

	if (c->n_out >= IOD_QUOTA_OUT_MESSAGES) {
		(void)err_set(&err, ERR_PROTOCOL,
			      "the client does not read: %u messages wait for it", c->n_out);
		iod_client_drop(c, &err);
		return;
	}
	o = malloc(sizeof(*o) + m->tail_size);
	if (!o) {
		(void)err_set(&err, ERR_NO_MEMORY, "the daemon is out of memory");
		iod_client_drop(c, &err);
		return;
	}
	o->m = *m;
	if (m->tail_size > 0)
		memcpy(o->tail, m->tail, m->tail_size);
	o->m.tail = o->tail;
	if (c->n_out == 0)
		c->since_usec = iod_daemon_now(c->daemon);
	list_init(&o->link);
	list_push_tail(&c->out, &o->link);
	c->n_out++;
	set_events(c);
}

static void charge(struct iod_client *c, const struct proto_message *m)
{
	if (m->type == PROTO_TILE_READY)
		c->trunk_bytes += m->body.tile_ready.bytes_read;
	else if (m->type == PROTO_EXPERT_READY)
		c->expert_bytes += m->body.expert_ready.bytes_read;
}

void iod_client_send(struct iod_client *c, const struct proto_message *m)
{
	int r = PROTO_AGAIN;

	if (c->state == IOD_CLIENT_DEAD)
		return;
	charge(c, m);
	if (c->n_out == 0)
		r = proto_conn_send(c->conn, m, false);
	if (r == PROTO_AGAIN)
		queue(c, m);
	else if (r != 0)
		end_on_send(c, r);
}

void iod_client_make_error(struct proto_message *ret, const struct err *err, uint32_t flags)
{
	size_t size = strnlen(err->text, sizeof(err->text));

	*ret = (struct proto_message){ .type = PROTO_ERROR };
	ret->body.error.code = err->code;
	ret->body.error.class = err_class(err->code);
	ret->body.error.flags = flags;
	ret->body.error.size = (uint32_t)size;
	ret->tail = (const uint8_t *)err->text;
	ret->tail_size = size;
}

void iod_client_send_error(struct iod_client *c, const struct err *err, enum proto_type request,
			   uint32_t a, uint32_t b)
{
	struct proto_message m;

	iod_client_make_error(&m, err, 0);
	m.body.error.request = request;
	m.body.error.a = a;
	m.body.error.b = b;
	iod_client_send(c, &m);
}

bool iod_client_is_full(const struct iod_client *c)
{
	return c->n_out >= IOD_QUOTA_OUT_PAUSE;
}

/* ---- the end --------------------------------------------------------------------------------- */

void iod_client_drop(struct iod_client *c, const struct err *err)
{
	struct proto_message m;

	if (c->state == IOD_CLIENT_DEAD)
		return;
	if (c->state == IOD_CLIENT_OPEN)
		c->daemon->n_open--;
	c->state = IOD_CLIENT_DEAD;
	c->daemon->n_clients--;
	if (err) {
		(void)snprintf(c->why, sizeof(c->why), "%.399s", err->text);
		c->why_code = err->code;
		c->daemon->metrics.clients_dropped++;
		iod_client_make_error(&m, err, WIRE_ERROR_CLOSING);
		if (c->n_out == 0)
			(void)proto_conn_send(c->conn, &m, false);
	}
	/* the peer still reads what was sent; a close with its messages unread would lose that */
	(void)shutdown(proto_conn_fd(c->conn), SHUT_RDWR);
	c->source = sd_event_source_disable_unref(c->source);
	iod_daemon_wake(c->daemon);
}

/* Take what the peer had sent before the shutdown: closing over it would look like a reset. */
static void drain(struct iod_client *c)
{
	struct proto_message m;

	for (int i = 0; i < IOD_QUOTA_OUT_MESSAGES; i++) {
		int r = proto_conn_receive(c->conn, &m, false, NULL);

		if (r == PROTO_AGAIN || r == PROTO_CLOSED)
			break;
		if (r == 0)
			proto_message_close_fds(&m);
	}
}

/* Refused, or dropped for what it did. */
static void tell_end(const struct iod_client *c)
{
	bool is_refused = c->why_code == ERR_ACCESS || c->why_code == ERR_BUSY;

	if (iod_daemon_may_complain(c->daemon))
		iod_event_log(LOG_LEVEL_WARNING,
			      is_refused ? IOD_EVENT_CLIENT_REFUSED : IOD_EVENT_CLIENT_DROPPED, c,
			      "client %u (%s, pid %u, user %u) %s: %s", c->number,
			      c->name[0] ? c->name : "no HELLO", c->pid, c->uid,
			      is_refused ? "refused" : "dropped", c->why);
}

void iod_client_reap(struct iod_daemon *d)
{
	struct list *at, *next;

	list_foreach_safe (at, next, &d->clients) {
		struct iod_client *c = list_entry(at, struct iod_client, link);

		if (c->state != IOD_CLIENT_DEAD)
			continue;
		iod_sweep_end(c);
		iod_experts_end(c);
		iod_rows_end(c);
		if (c->why[0] != '\0')
			tell_end(c);
		else
			log_debug("client %u (%s, pid %u) has gone", c->number, c->name, c->pid);
		drain(c);
		iod_client_free(c);
	}
}

void iod_client_check_stalled(struct iod_daemon *d, uint64_t now)
{
	struct list *at;

	list_foreach (at, &d->clients) {
		struct iod_client *c = list_entry(at, struct iod_client, link);
		uint64_t seconds = (now - c->since_usec) / 1000000;
		struct err err = { 0 };

		if (c->state == IOD_CLIENT_NEW && seconds >= IOD_QUOTA_HELLO_SECONDS)
			(void)err_set(&err, ERR_PROTOCOL, "no HELLO came within %u seconds",
				      IOD_QUOTA_HELLO_SECONDS);
		else if (c->n_out > 0 && seconds >= IOD_QUOTA_STALL_SECONDS)
			(void)err_set(&err, ERR_STALE,
				      "the client has read nothing for %u seconds; it may "
				      "connect again",
				      IOD_QUOTA_STALL_SECONDS);
		if (err.code != ERR_NONE)
			iod_client_drop(c, &err);
	}
}
