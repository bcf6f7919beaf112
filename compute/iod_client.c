/*
 * The client's connection to k3-iod: HELLO and WELCOME, the mapped slab and catalog, messages in
 * and out, embedding rows and counters. Waiting is a blocking poll(), bounded only by the
 * connection's life: a daemon that lives answers every request or says why not. The first failure
 * of the connection is kept and every later call returns it.
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

/* A vocabulary of the released size has 2.8 MB; this only bounds nonsense. */
enum { FILE_SIZE_MAX = 256 << 20 };

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

static int fail_gone(struct k3_iod *c, const char *while_what, struct err *err)
{
	return k3_iod_fail(c, err, ERR_GONE,
			   "k3-iod closed the connection %s; if it was not stopped on "
			   "purpose, its log says why",
			   while_what);
}

int k3_iod_send(struct k3_iod *c, enum proto_type type, const void *body, struct err *err)
{
	struct proto_message m = { .type = type };
	int r;

	if (c->failed.code != ERR_NONE)
		return k3_iod_raise(&c->failed, err);
	memcpy(&m.body, body, proto_struct_size(type));
	r = proto_conn_send(c->conn, &m, true);
	if (r == PROTO_CLOSED) {
		/* The reason may still lie in the socket: an ERROR sent before closing. */
		while (k3_iod_receive(c, false, NULL, NULL) == 0)
			;
		return fail_gone(c, "before a request could be sent", err);
	}
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

/* Answer to one request, or the end of the connection. */
static void on_error(struct k3_iod *c, const struct proto_message *m)
{
	const struct wire_error *e = &m->body.error;
	enum err_code code = (enum err_code)e->code;
	struct err *kept = &c->failed;
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
		on_error(c, m);
		break;
	default:
		return k3_iod_fail(c, err, ERR_PROTOCOL, "k3-iod sent %s, out of place",
				   proto_name(m->type));
	}
	return c->failed.code == ERR_NONE ? 0 : k3_iod_raise(&c->failed, err);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void wait_readable(struct k3_iod *c)
{
	struct pollfd p = { .fd = proto_conn_fd(c->conn), .events = POLLIN };
	uint64_t start = now_ns();

	(void)poll(&p, 1, -1); /* EINTR: the caller looks and waits again */
	c->counts.wait_ns += now_ns() - start;
}

/* The next message as it is: 0, PROTO_AGAIN (wait = false), or < 0: the connection is over. */
static int receive_raw(struct k3_iod *c, bool wait, const char *while_what,
		       struct proto_message *ret, struct err *err)
{
	struct err why = { 0 };
	int r;

	if (c->failed.code != ERR_NONE)
		return k3_iod_raise(&c->failed, err);
	while ((r = proto_conn_receive(c->conn, ret, false, &why)) == PROTO_AGAIN && wait)
		wait_readable(c);
	if (r == PROTO_CLOSED)
		return fail_gone(c, while_what, err);
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
	int r;

	(void)snprintf(doing, sizeof(doing), "while k3 waited for %s",
		       for_what ? for_what : "nothing");
	r = receive_raw(c, wait, for_what ? doing : "in the middle of the work", &m, err);
	if (r != 0)
		return r;
	r = file_message(c, &m, err);
	proto_message_close_fds(&m);
	return r;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int map_fd(int fd, uint64_t size, const char *what, void **ret, struct err *err)
{
	struct stat st;
	void *p;

	if (fd < 0 || size == 0 || fstat(fd, &st) < 0 || (uint64_t)st.st_size < size)
		return err_set(err, ERR_PROTOCOL,
			       "WELCOME says the %s has %" PRIu64 " bytes, its descriptor has not",
			       what, size);
	p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return err_set(err, ERR_NO_MEMORY, "cannot map the %s (%" PRIu64 " bytes): %s",
			       what, size, strerror(errno));
	(void)madvise(p, size, MADV_DONTDUMP);
	*ret = p;
	return 0;
}

static int open_slab(struct k3_iod *c, int fd, struct err *err)
{
	const struct slab_header *h;
	int r = slab_open(&c->slab, fd, err);

	if (r < 0)
		return r;
	h = &c->slab->header;
	if (h->total_size != c->welcome.slab_size || h->n_slots != c->welcome.n_slots ||
	    h->n_tiles != c->catalog.header->n_tiles ||
	    memcmp(h->model_digest, c->welcome.model_digest, sizeof(h->model_digest)) != 0)
		return err_set(err, ERR_PROTOCOL,
			       "the slab is not the one that WELCOME and the catalog describe");
	return 0;
}

/* The files after slab and catalog, as WELCOME's has bits announce them. */
static int take_files(struct k3_iod *c, const struct proto_message *m, struct err *err)
{
	static const struct {
		enum wire_fd which;
		uint32_t bit;
		const char *name;
	} files[] = {
		{ WIRE_FD_CONFIG, 0, "config.json" },
		{ WIRE_FD_VOCABULARY, WIRE_HAS_VOCABULARY, "tiktoken.model" },
		{ WIRE_FD_TOKENIZER_CONFIG, WIRE_HAS_TOKENIZER_CONFIG, "tokenizer_config.json" },
	};
	uint32_t next = WIRE_FD_CONFIG;

	for (size_t i = 0; i < N_ELEMENTS(files); i++) {
		enum wire_fd which = files[i].which;
		int r;

		if (files[i].bit && !(c->welcome.has & files[i].bit))
			continue;
		if (next >= m->n_fds)
			return err_set(err, ERR_PROTOCOL, "WELCOME came without %s", files[i].name);
		r = fd_slurp(m->fds[next++], FILE_SIZE_MAX, &c->files[which], &c->file_size[which]);
		if (r < 0)
			return err_set(err, ERR_IO, "cannot read %s as k3-iod gave it: %s",
				       files[i].name, strerror(-r));
	}
	return 0;
}

static int accept_welcome(struct k3_iod *c, const struct proto_message *m, struct err *err)
{
	const struct wire_welcome *w = &m->body.welcome;
	int r;

	c->welcome = *w;
	if (w->version < PROTO_VERSION_MIN || w->version > PROTO_VERSION_MAX || w->incompat != 0)
		return err_set(err, ERR_VERSION,
			       "k3-iod chose protocol version %" PRIu32 " with features %#" PRIx64
			       "; this k3 speaks %d to %d and no features",
			       w->version, w->incompat, PROTO_VERSION_MIN, PROTO_VERSION_MAX);
	if (m->n_fds <= WIRE_FD_CONFIG)
		return err_set(err, ERR_PROTOCOL, "WELCOME brought %" PRIu32 " descriptors",
			       m->n_fds);
	r = map_fd(m->fds[WIRE_FD_CATALOG], w->catalog_size, "catalog", &c->catalog_bytes, err);
	if (r < 0)
		return r;
	r = catalog_open(c->catalog_bytes, w->catalog_size, &c->catalog, err);
	if (r < 0)
		return r;
	r = open_slab(c, m->fds[WIRE_FD_SLAB], err);
	if (r < 0)
		return r;
	return take_files(c, m, err);
}

static int greet(struct k3_iod *c, struct err *err)
{
	struct wire_hello hello = { .version_min = PROTO_VERSION_MIN,
				    .version_max = PROTO_VERSION_MAX,
				    .pid = (uint32_t)getpid(),
				    .name = "k3 " K3_VERSION };
	struct proto_message m;
	int r = k3_iod_send(c, PROTO_HELLO, &hello, err);

	if (r < 0)
		return r;
	r = receive_raw(c, true, "instead of saying WELCOME", &m, err);
	if (r < 0)
		return r;
	if (m.type == PROTO_WELCOME)
		r = accept_welcome(c, &m, err);
	else if (m.type == PROTO_ERROR)
		on_error(c, &m), r = k3_iod_raise(&c->failed, err);
	else
		r = err_set(err, ERR_PROTOCOL, "k3-iod answered HELLO with %s", proto_name(m.type));
	proto_message_close_fds(&m);
	return r;
}

int k3_iod_adopt(struct k3_iod **ret, int fd, struct err *err)
{
	CLEANUP(k3_iod_freep) struct k3_iod *c = calloc(1, sizeof(*c));
	int r;

	if (!c) {
		(void)fd_close(fd);
		return err_set(err, ERR_NO_MEMORY, "no memory for a connection");
	}
	r = proto_conn_new(&c->conn, fd, PROTO_C2D);
	if (r < 0)
		return err_set(err, ERR_NO_MEMORY, "cannot set up a connection: %s", strerror(-r));
	r = greet(c, err);
	if (r == 0)
		r = k3_iod_tiles_init(c, err);
	if (r == 0)
		r = k3_iod_experts_init(c, err);
	if (r < 0)
		return r;
	*ret = TAKE(c);
	return 0;
}

int k3_iod_connect(struct k3_iod **ret, const char *socket_path, struct err *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	CLEANUP(fd_closep) int fd = -1;

	if (strlen(socket_path) >= sizeof(addr.sun_path))
		return err_set(err, ERR_USAGE, "--socket %s: a socket path has at most %zu bytes",
			       socket_path, sizeof(addr.sun_path) - 1);
	memcpy(addr.sun_path, socket_path, strlen(socket_path) + 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_set(err, ERR_SOCKET, "cannot make a socket: %s", strerror(errno));
	if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0)
		return err_set(err, ERR_GONE,
			       "no k3-iod answers at %s: %s; start one with k3-iod --model DIR "
			       "--socket %s",
			       socket_path, strerror(errno), socket_path);
	return k3_iod_adopt(ret, TAKE_FD(fd), err);
}

struct k3_iod *k3_iod_free(struct k3_iod *c)
{
	if (!c)
		return NULL;
	k3_iod_tiles_deinit(c);
	k3_iod_experts_deinit(c);
	free(c->rows.rows);
	(void)slab_free(c->slab);
	if (c->catalog_bytes)
		(void)munmap(c->catalog_bytes, c->welcome.catalog_size);
	for (size_t i = 0; i < N_ELEMENTS(c->files); i++)
		free(c->files[i]);
	(void)proto_conn_free(c->conn);
	free(c);
	return NULL;
}

void k3_iod_freep(struct k3_iod **c)
{
	*c = k3_iod_free(*c);
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

/* One ROWS request for what collect_ids found; waits for all its rows. */
static int fetch_rows(struct k3_iod *c, struct err *err)
{
	struct iod_rows *w = &c->rows;
	struct wire_rows m = { .serial = ++w->serial, .n = w->n };
	int r;

	memcpy(m.ids, w->ids, w->n * sizeof(*w->ids));
	memset(w->has, 0, sizeof(w->has));
	err_clear(&w->error);
	w->n_left = w->n;
	r = k3_iod_send(c, PROTO_ROWS, &m, err);
	while (r >= 0 && w->n_left > 0) {
		if (w->error.code != ERR_NONE)
			return k3_iod_raise(&w->error, err);
		r = k3_iod_receive(c, true, "embedding rows", err);
	}
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
	int r = k3_iod_send(c, PROTO_STATS, &m, err);

	c->has_stats = false;
	while (r >= 0 && !c->has_stats)
		r = k3_iod_receive(c, true, "the daemon's counters", err);
	if (r < 0)
		return r;
	memcpy(values, c->stats.values, sizeof(c->stats.values));
	*ret_n = c->stats.n;
	return 0;
}
