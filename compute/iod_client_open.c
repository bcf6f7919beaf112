/*
 * The beginning of a connection to k3-iod, and a new one when it ends: dial, HELLO and WELCOME, the
 * mapped slab and catalog, then everything that the step still needs is asked for again.
 */
#include "compute/iod_client_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shared/fd.h"
#include "shared/log.h"

/* A vocabulary of the released size has 2.8 MB; this only bounds nonsense. */
enum { FILE_SIZE_MAX = 256 << 20 };
/* Pauses between two tries: from the first, doubled up to the last. */
enum { PAUSE_FIRST_MS = 20, PAUSE_LAST_MS = 1000 };

/* ---- WELCOME --------------------------------------------------------------------------------- */

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

/* The catalog: kept from the first connection on, pointers lead into it; a later one must be equal.
 */
static int take_catalog(struct k3_iod *c, int fd, uint64_t size, struct err *err)
{
	uint64_t kept_size = c->catalog_size;
	void *bytes = NULL;
	bool is_same;
	int r = map_fd(fd, size, "catalog", &bytes, err);

	if (r < 0)
		return r;
	if (!c->catalog_bytes) {
		c->catalog_bytes = bytes;
		c->catalog_size = size;
		return catalog_open(bytes, size, &c->catalog, err);
	}
	is_same = size == kept_size && memcmp(bytes, c->catalog_bytes, size) == 0;
	(void)munmap(bytes, size);
	if (!is_same)
		return err_set(
			err, ERR_CHECKPOINT,
			"k3-iod came back with its tiles cut in another way (another --tile, "
			"--trunk or --layers): this step cannot go on; run it again");
	return 0;
}

static int compare_model(const struct k3_iod *c, const struct wire_welcome *w, struct err *err)
{
	if (!c->catalog_bytes ||
	    memcmp(w->model_digest, c->welcome.model_digest, sizeof(w->model_digest)) == 0)
		return 0;
	return err_set(err, ERR_CHECKPOINT,
		       "k3-iod came back with another model than before: what was computed so far "
		       "is of no use; run it again");
}

static int accept_welcome(struct k3_iod *c, const struct proto_message *m, struct err *err)
{
	const struct wire_welcome *w = &m->body.welcome;
	int r;

	if (w->version < PROTO_VERSION_MIN || w->version > PROTO_VERSION_MAX || w->incompat != 0)
		return err_set(err, ERR_VERSION,
			       "k3-iod chose protocol version %" PRIu32 " with features %#" PRIx64
			       "; this k3 speaks %d to %d and no features",
			       w->version, w->incompat, PROTO_VERSION_MIN, PROTO_VERSION_MAX);
	if (m->n_fds <= WIRE_FD_CONFIG)
		return err_set(err, ERR_PROTOCOL, "WELCOME brought %" PRIu32 " descriptors",
			       m->n_fds);
	r = compare_model(c, w, err);
	if (r == 0)
		r = take_catalog(c, m->fds[WIRE_FD_CATALOG], w->catalog_size, err);
	if (r < 0)
		return r;
	c->welcome = *w;
	r = open_slab(c, m->fds[WIRE_FD_SLAB], err);
	if (r < 0 || c->files[WIRE_FD_CONFIG])
		return r;
	return take_files(c, m, err);
}

static int greet(struct k3_iod *c, struct err *err)
{
	struct wire_hello hello = { .version_min = PROTO_VERSION_MIN,
				    .version_max = PROTO_VERSION_MAX,
				    .pid = (uint32_t)getpid(),
				    .name = "k3 " K3_VERSION };
	struct proto_message m = { .type = PROTO_HELLO, .body.hello = hello };
	int r;

	/* a daemon that closed at once may have said why: the answer is looked for in any case */
	(void)proto_conn_send(c->conn, &m, true);
	r = k3_iod_receive_raw(c, true, &m, err);
	if (r == PROTO_AGAIN)
		return err_set(err, ERR_GONE, "k3-iod did not answer in time");
	if (r == PROTO_CLOSED)
		return err_set(err, ERR_GONE,
			       "k3-iod closed the connection instead of saying WELCOME; if it was "
			       "not stopped on purpose, its log says why");
	if (r < 0)
		return r;
	if (m.type == PROTO_WELCOME)
		r = accept_welcome(c, &m, err);
	else if (m.type == PROTO_ERROR)
		k3_iod_on_error(c, &m), r = k3_iod_raise(&c->closing, err);
	else
		r = err_set(err, ERR_PROTOCOL, "k3-iod answered HELLO with %s", proto_name(m.type));
	proto_message_close_fds(&m);
	return r;
}

/* ---- one connection -------------------------------------------------------------------------- */

/* Give up what belongs to the connection. The slab at once: while it is mapped here its memory
 * cannot go, and a daemon that makes another needs it. */
static void disconnect(struct k3_iod *c)
{
	c->conn = proto_conn_free(c->conn);
	c->slab = slab_free(c->slab);
	err_clear(&c->closing);
	k3_iod_tiles_deinit(c);
	c->epoch++;
}

static int converse(struct k3_iod *c, int fd, struct err *err)
{
	int r = proto_conn_new(&c->conn, fd, PROTO_C2D);

	if (r < 0)
		return err_set(err, ERR_NO_MEMORY, "cannot set up a connection: %s", strerror(-r));
	r = greet(c, err);
	if (r == 0)
		r = k3_iod_tiles_init(c, err);
	if (r == 0)
		r = k3_iod_experts_init(c, err);
	if (r < 0)
		disconnect(c);
	return r;
}

int k3_iod_dial(void *data, int *ret_fd, struct err *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	CLEANUP(fd_closep) int fd = -1;
	const char *path = data;

	if (strlen(path) >= sizeof(addr.sun_path))
		return err_set(err, ERR_USAGE, "--socket %s: a socket path has at most %zu bytes",
			       path, sizeof(addr.sun_path) - 1);
	memcpy(addr.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_set(err, ERR_SOCKET, "cannot make a socket: %s", fd_strerror(errno));
	if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0) {
		(void)err_set(err, ERR_GONE,
			      "no k3-iod answers at %s: %s; start one with k3-iod --model DIR "
			      "--socket %s",
			      path, strerror(errno), path);
		return K3_IOD_NONE;
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* One try: 0; K3_IOD_NONE with err: it may be worth another; < 0. */
static int try(struct k3_iod *c, struct err *err)
{
	int fd, r = c->way.dial(c->way.data, &fd, err);

	if (r != 0)
		return r;
	r = converse(c, fd, err);
	return r < 0 && err_class(err->code) == ERR_CLASS_RETRY ? K3_IOD_NONE : r;
}

/* ---- again and again ------------------------------------------------------------------------- */

bool k3_iod_is_cancelled(const struct k3_iod *c)
{
	return c->way.is_cancelled && c->way.is_cancelled();
}

static void pause_ms(unsigned ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	(void)nanosleep(&t, NULL);
}

/* Try until it works, time is up (err: what the last try said), or trying is of no use. */
static int try_until(struct k3_iod *c, uint64_t limit_ns, struct err *err)
{
	unsigned pause = PAUSE_FIRST_MS;
	int r;

	c->limit_ns = limit_ns;
	for (;;) {
		err_clear(err);
		r = try(c, err);
		if (r <= 0 || k3_iod_now_ns() >= limit_ns || k3_iod_is_cancelled(c))
			break;
		pause_ms(pause);
		pause = pause * 2 < PAUSE_LAST_MS ? pause * 2 : PAUSE_LAST_MS;
	}
	c->limit_ns = 0;
	return r;
}

static uint64_t limit_of(const struct k3_iod_way *way)
{
	const uint64_t second = 1000000000;

	if (way->wait_seconds > UINT32_MAX)
		return UINT64_MAX;
	return k3_iod_now_ns() + way->wait_seconds * second;
}

/* Ask for what the step still needs. A loss on the way is left to the caller's loop. */
static int ask_again(struct k3_iod *c, struct err *err)
{
	int r;

	c->is_resuming = true;
	c->is_lost = false;
	r = k3_iod_tiles_resume(c, err);
	if (r == 0)
		r = k3_iod_experts_resume(c, err);
	c->is_resuming = false;
	return r;
}

/* What the daemon said before it closed: an ERROR that lies behind other messages. */
static void read_last_words(struct k3_iod *c)
{
	struct proto_message m;

	while (c->closing.code == ERR_NONE && proto_conn_receive(c->conn, &m, false, NULL) == 0) {
		if (m.type == PROTO_ERROR && (m.body.error.flags & WIRE_ERROR_CLOSING))
			k3_iod_on_error(c, &m);
		proto_message_close_fds(&m);
	}
}

static int reconnect(struct k3_iod *c, struct err *err)
{
	uint64_t start = k3_iod_now_ns(), limit = limit_of(&c->way);
	uint64_t waited = c->counts.wait_ns;
	struct err why = { 0 };
	int r;

	do {
		disconnect(c);
		r = try_until(c, limit, &why);
		if (r > 0)
			return k3_iod_fail(c, err, why.code, "k3-iod has not come back: %s",
					   why.text);
		if (r == 0)
			r = ask_again(c, &why);
		if (r < 0)
			return k3_iod_fail(c, err, why.code, "%s", why.text);
	} while (c->is_lost);
	c->counts.reconnects++;
	c->counts.wait_ns = waited + (k3_iod_now_ns() - start);
	log_info("k3-iod is back after %.1f s: the step goes on",
		 (double)(k3_iod_now_ns() - start) * 1e-9);
	return 0;
}

int k3_iod_lost(struct k3_iod *c, const char *while_what, struct err *err)
{
	read_last_words(c);
	if (c->closing.code != ERR_NONE &&
	    (!c->way.dial || err_class(c->closing.code) != ERR_CLASS_RETRY))
		return k3_iod_fail(c, err, c->closing.code, "%s", c->closing.text);
	if (c->is_resuming) {
		c->is_lost = true;
		return 0;
	}
	if (!c->way.dial || c->way.wait_seconds == 0)
		return k3_iod_fail(c, err, ERR_GONE,
				   "k3-iod closed the connection %s; if it was not stopped on "
				   "purpose, its log says why",
				   while_what);
	if (c->closing.code != ERR_NONE)
		log_warning("k3-iod closed the connection: %s; connecting again", c->closing.text);
	else if (c->way.wait_seconds <= UINT32_MAX)
		log_warning("k3-iod has gone %s; waiting up to %" PRIu64 " s for it to come back",
			    while_what, c->way.wait_seconds);
	else
		log_warning("k3-iod has gone %s; starting it again", while_what);
	return reconnect(c, err);
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* The first time nobody there is an error at once; who is there may be starting, ending or busy. */
static int open_first(struct k3_iod *c, struct err *err)
{
	uint64_t limit = limit_of(&c->way);
	int fd, r = c->way.dial(c->way.data, &fd, err);

	if (r != 0)
		return r < 0 ? r : -err_errno(err->code);
	r = converse(c, fd, err);
	if (r == 0 || err_class(err->code) != ERR_CLASS_RETRY || c->way.wait_seconds == 0)
		return r;
	if (c->way.wait_seconds <= UINT32_MAX)
		log_warning("%s; trying again for up to %" PRIu64 " s", err->text,
			    c->way.wait_seconds);
	r = try_until(c, limit, err);
	return r > 0 ? -err_errno(err->code) : r;
}

int k3_iod_open(struct k3_iod **ret, const struct k3_iod_way *way, struct err *err)
{
	CLEANUP(k3_iod_freep) struct k3_iod *c = calloc(1, sizeof(*c));
	struct err why = { 0 };
	int r;

	if (!c)
		return err_set(err, ERR_NO_MEMORY, "no memory for a connection");
	c->way = *way;
	r = open_first(c, &why);
	if (r < 0)
		return k3_iod_raise(&why, err);
	*ret = TAKE(c);
	return 0;
}

int k3_iod_adopt(struct k3_iod **ret, int fd, struct err *err)
{
	CLEANUP(k3_iod_freep) struct k3_iod *c = calloc(1, sizeof(*c));
	int r;

	if (!c) {
		(void)fd_close(fd);
		return err_set(err, ERR_NO_MEMORY, "no memory for a connection");
	}
	r = converse(c, fd, err);
	if (r < 0)
		return r;
	*ret = TAKE(c);
	return 0;
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
		(void)munmap(c->catalog_bytes, c->catalog_size);
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
