/*
 * The client's connection to k3-iod: messages in and out, embedding rows and counters. Waiting is a
 * blocking poll(), bounded only by the connection's life: a daemon that lives answers every request
 * or says why not. A connection that has ended is made again (iod_client_open.c). The first failure
 * that stays is kept and every later call returns it.
 */
#include "compute/iod_client_private.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shared/fd.h"
#include "shared/must.h"
#include "shared/timeline.h"

/* While a daemon is waited for with a limit: how often that and an interrupt are looked at. */
enum { WAIT_PIECE_MS = 200 };

int k3_iod_raise(const struct err *kept, struct err *err)
{
	return err_set(err, kept->code, "%s", kept->text);
}

int k3_iod_fail(struct k3_iod *c, struct err *err, enum err_code code, const char *fmt, ...)
{
	char text[sizeof(c->failed.text)];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	(void)err_set(&c->failed, code, "%s", text);
	return k3_iod_raise(&c->failed, err);
}

int k3_iod_send(struct k3_iod *c, enum proto_type type, const void *body, struct err *err)
{
	struct proto_message m = { .type = type };
	int r;

	if (c->failed.code != ERR_NONE)
		return k3_iod_raise(&c->failed, err);
	memcpy(&m.body, body, proto_struct_size(type));
	r = proto_conn_send(c->conn, &m, true);
	if (r == PROTO_CLOSED)
		return k3_iod_lost(c, "before a request could be sent", err);
	if (r < 0)
		return k3_iod_fail(c, err, ERR_GONE, "cannot send %s to k3-iod: %s",
				   proto_name(type), strerror(-r));
	return 0;
}

static void on_row(struct k3_iod *c, const struct proto_message *m)
{
	const struct catalog_header *h = c->catalog.header;
	const struct wire_row *row = &m->body.row;
	struct iod_rows *w = &c->rows;
	float *out;

	if (row->serial != w->serial)
		return; /* of a request that failed */
	if (row->index >= w->n || w->has[row->index] || row->id != w->ids[row->index] ||
	    row->size != h->embed_cols * (h->embed_dtype == CATALOG_BF16 ? 2u : 4u)) {
		(void)k3_iod_fail(c, NULL, ERR_PROTOCOL,
				  "ROW %" PRIu32 " for token %" PRIu32 " was not asked for",
				  row->index, row->id);
		return;
	}
	out = w->rows + (size_t)row->index * h->embed_cols;
	if (h->embed_dtype == CATALOG_F32) {
		memcpy(out, m->tail, row->size);
	} else {
		for (uint32_t i = 0; i < h->embed_cols; i++) {
			uint32_t bits =
				(uint32_t)m->tail[2 * i] << 16 | (uint32_t)m->tail[2 * i + 1] << 24;

			memcpy(&out[i], &bits, sizeof(bits));
		}
	}
	w->has[row->index] = true;
	w->n_left--;
}

/* Answer to one request, or the reason of the connection's end. */
void k3_iod_on_error(struct k3_iod *c, const struct proto_message *m)
{
	const struct wire_error *e = &m->body.error;
	enum err_code code = (enum err_code)e->code;
	struct err *kept = &c->closing;
	char text[sizeof(c->failed.text)];
	size_t size = m->tail_size < sizeof(text) - 1 ? m->tail_size : sizeof(text) - 1;

	if (size > 0)
		memcpy(text, m->tail, size);
	text[size] = '\0';
	if (code == ERR_NONE || strcmp(err_name(code), "?") == 0)
		code = ERR_PROTOCOL; /* of a newer daemon: the sentence must do */
	if (size == 0)
		(void)snprintf(text, sizeof(text), "%s", err_sentence(code));
	if (!(e->flags & WIRE_ERROR_CLOSING)) {
		if (e->request == PROTO_EXPERTS) {
			k3_iod_expert_failed(c, e->a, e->b, code, text);
			return;
		}
		/* each row that fails says so: those of a request given up mean nothing */
		if (e->request == PROTO_ROWS && e->a != c->rows.serial)
			return;
		if (e->request == PROTO_SWEEP)
			kept = &c->tiles.error;
		else if (e->request == PROTO_ROWS)
			kept = &c->rows.error;
	}
	(void)err_set(kept, code, "%s", text);
}

static int file_message(struct k3_iod *c, const struct proto_message *m, struct err *err)
{
	switch (m->type) {
	case PROTO_TILE_READY:
		return k3_iod_tile_ready(c, &m->body.tile_ready, err);
	case PROTO_EXPERT_READY:
		return k3_iod_expert_ready(c, &m->body.expert_ready, err);
	case PROTO_ROW:
		on_row(c, m);
		break;
	case PROTO_STATS_REPLY:
		c->stats = m->body.stats_reply;
		c->has_stats = true;
		break;
	case PROTO_ERROR:
		k3_iod_on_error(c, m);
		break;
	default:
		return k3_iod_fail(c, err, ERR_PROTOCOL, "k3-iod sent %s, out of place",
				   proto_name(m->type));
	}
	return c->failed.code == ERR_NONE ? 0 : k3_iod_raise(&c->failed, err);
}

uint64_t k3_iod_now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void wait_readable(struct k3_iod *c)
{
	struct pollfd p = { .fd = proto_conn_fd(c->conn), .events = POLLIN };
	uint64_t start = k3_iod_now_ns();

	/* EINTR: the caller looks and waits again */
	(void)poll(&p, 1, c->limit_ns ? WAIT_PIECE_MS : -1);
	c->counts.wait_ns += k3_iod_now_ns() - start;
}

static bool is_late(const struct k3_iod *c)
{
	return c->limit_ns && (k3_iod_now_ns() >= c->limit_ns || k3_iod_is_cancelled(c));
}

int k3_iod_receive_raw(struct k3_iod *c, bool wait, struct proto_message *ret, struct err *err)
{
	struct err why = { 0 };
	int r;

	if (c->failed.code != ERR_NONE)
		return k3_iod_raise(&c->failed, err);
	while ((r = proto_conn_receive(c->conn, ret, false, &why)) == PROTO_AGAIN && wait &&
	       !is_late(c))
		wait_readable(c);
	if (r < 0 && why.code != ERR_NONE)
		return k3_iod_fail(c, err, why.code, "%s", why.text);
	if (r < 0)
		return k3_iod_fail(c, err, ERR_GONE, "the connection to k3-iod failed: %s",
				   strerror(-r));
	return r;
}

int k3_iod_receive(struct k3_iod *c, bool wait, const char *for_what, struct err *err)
{
	struct proto_message m;
	char doing[80];
	int r = k3_iod_receive_raw(c, wait, &m, err);

	if (r == PROTO_CLOSED) {
		(void)snprintf(doing, sizeof(doing), "while k3 waited for %s",
			       for_what ? for_what : "nothing");
		return k3_iod_lost(c, for_what ? doing : "in the middle of the work", err);
	}
	if (r != 0)
		return r;
	r = file_message(c, &m, err);
	proto_message_close_fds(&m);
	return r;
}

int k3_iod_wait(struct k3_iod *c, const char *for_what, const char *span, const char *id_name,
		uint32_t id, struct err *err)
{
	uint64_t begin = timeline_now(c->timeline);
	int r = k3_iod_receive(c, true, for_what, err);

	timeline_span(c->timeline, span, begin, id_name, id);
	return r;
}

const struct catalog *k3_iod_catalog(const struct k3_iod *c)
{
	return &c->catalog;
}

const struct wire_welcome *k3_iod_welcome(const struct k3_iod *c)
{
	return &c->welcome;
}

const char *k3_iod_file(const struct k3_iod *c, enum wire_fd which, size_t *ret_size)
{
	if (c->files[which] && ret_size)
		*ret_size = c->file_size[which];
	return c->files[which];
}

void k3_iod_set_timeline(struct k3_iod *c, struct timeline *t)
{
	c->timeline = t;
}

struct timeline *k3_iod_timeline(const struct k3_iod *c)
{
	return c->timeline;
}

const struct k3_iod_counts *k3_iod_counts(const struct k3_iod *c)
{
	return &c->counts;
}

/* ---- rows and counters ----------------------------------------------------------------------- */

/* Ask for the distinct ids of a run of tokens; where[i] is the row of token i. Returns how many
 * tokens fit. */
static size_t collect_ids(struct iod_rows *w, const uint32_t *ids, size_t n, uint8_t *where)
{
	size_t i;

	w->n = 0;
	for (i = 0; i < n && i < PROTO_ROWS_MAX; i++) {
		uint32_t at = 0;

		while (at < w->n && w->ids[at] != ids[i])
			at++;
		if (at == w->n)
			w->ids[w->n++] = ids[i];
		where[i] = (uint8_t)at;
	}
	return i;
}

/* One ROWS request for what collect_ids found; waits for all its rows, or until the connection is
 * another one. */
static int ask_for_rows(struct k3_iod *c, struct err *err)
{
	struct iod_rows *w = &c->rows;
	struct wire_rows m = { .serial = ++w->serial, .n = w->n };
	uint32_t epoch = c->epoch;
	int r;

	memcpy(m.ids, w->ids, w->n * sizeof(*w->ids));
	memset(w->has, 0, sizeof(w->has));
	err_clear(&w->error);
	w->n_left = w->n;
	r = k3_iod_send(c, PROTO_ROWS, &m, err);
	while (r >= 0 && w->n_left > 0 && c->epoch == epoch) {
		if (w->error.code != ERR_NONE)
			return k3_iod_raise(&w->error, err);
		r = k3_iod_wait(c, "embedding rows", "wait for rows", "first", w->ids[0], err);
	}
	return r;
}

static int fetch_rows(struct k3_iod *c, struct err *err)
{
	int r;

	do
		r = ask_for_rows(c, err);
	while (r >= 0 && c->rows.n_left > 0);
	return r;
}

int k3_iod_rows(struct k3_iod *c, const uint32_t *ids, size_t n, float *out, struct err *err)
{
	size_t cols = c->catalog.header->embed_cols;
	uint8_t where[PROTO_ROWS_MAX];
	struct iod_rows *w = &c->rows;

	if (!w->rows)
		w->rows = calloc((size_t)PROTO_ROWS_MAX * cols, sizeof(*w->rows));
	if (!w->rows)
		return err_set(err, ERR_NO_MEMORY, "no memory for embedding rows");
	for (size_t done = 0; done < n;) {
		size_t taken = collect_ids(w, ids + done, n - done, where);
		int r = fetch_rows(c, err);

		if (r < 0)
			return r;
		for (size_t i = 0; i < taken; i++)
			memcpy(out + (done + i) * cols, w->rows + where[i] * cols,
			       cols * sizeof(*out));
		done += taken;
	}
	return 0;
}

int k3_iod_stats(struct k3_iod *c, uint64_t values[PROTO_STATS_MAX], uint32_t *ret_n,
		 struct err *err)
{
	struct wire_stats m = { 0 };
	uint32_t epoch;
	int r;

	c->has_stats = false;
	do {
		epoch = c->epoch;
		r = k3_iod_send(c, PROTO_STATS, &m, err);
		while (r >= 0 && !c->has_stats && c->epoch == epoch)
			r = k3_iod_receive(c, true, "the daemon's counters", err);
	} while (r >= 0 && !c->has_stats);
	if (r < 0)
		return r;
	memcpy(values, c->stats.values, sizeof(c->stats.values));
	*ret_n = c->stats.n;
	return 0;
}
