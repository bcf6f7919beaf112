#include "tests/client/scripted_iod.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shared/fd.h"
#include "tests/harness/test.h"

static const char *model_dir;

static int open_model_file(const char *name)
{
	char path[4096];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s", model_dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

static void open_model(struct scripted_iod *s)
{
	struct source_want sources = { .n_model_dirs = 1, .model_dirs = &model_dir };
	struct err err = { 0 };

	model_dir = test_source("tests/oracle/tiny");
	CHECK_MSG(source_open(&sources, &s->source, &err) == 0, "%s", err.text);
}

void scripted_new_slab(struct scripted_iod *s)
{
	struct slab_want want = { 0 };
	const struct catalog_header *h = s->source->catalog.header;
	struct slab_plan plan;
	struct err err = { 0 };

	s->slab = slab_free(s->slab);
	want.trunk_size = h->trunk_size;
	want.max_tile_size = h->max_tile_size;
	want.n_tiles = h->n_tiles;
	want.expert_size = h->expert_size;
	want.n_experts = s->source->n_experts;
	want.cache_budget = 16 * h->expert_size;
	CHECK_MSG(slab_plan(&want, &plan, &err) == 0, "%s", err.text);
	CHECK_MSG(slab_new(&s->slab, &plan, s->source->model_digest, &err) == 0, "%s", err.text);
}

static void send_welcome(struct scripted_iod *s, uint32_t tile_window, uint32_t expert_window)
{
	const struct slab_header *h = &s->slab->header;
	struct proto_message m = { .type = PROTO_WELCOME, .n_fds = 3 };
	struct wire_welcome *w = &m.body.welcome;

	*w = (struct wire_welcome){ .version = 1,
				    .slab_size = h->total_size,
				    .catalog_size = s->source->catalog_size,
				    .n_slots = h->n_slots,
				    .tile_window = tile_window,
				    .expert_window = expert_window,
				    .client = 1,
				    .backend = "none" };
	memcpy(w->model_digest, s->source->model_digest, sizeof(w->model_digest));
	if (s->has_other_model)
		w->model_digest[0] ^= 1;
	m.fds[WIRE_FD_SLAB] = fd_reopen_read_only(s->slab->fd);
	m.fds[WIRE_FD_CATALOG] = fd_memfd("catalog", s->source->catalog_size, 0);
	CHECK(fd_pwrite_all(m.fds[WIRE_FD_CATALOG], s->source->catalog_bytes,
			    s->source->catalog_size, 0) == 0);
	m.fds[WIRE_FD_CONFIG] = open_model_file("config.json");
	CHECK_EQ(proto_conn_send(s->conn, &m, false), 0);
	for (uint32_t i = 0; i < m.n_fds; i++)
		(void)close(m.fds[i]);
}

void scripted_open(struct scripted_iod *s, uint32_t tile_window, uint32_t expert_window)
{
	struct err err = { 0 };
	union proto_body hello;
	int pair[2];

	memset(s, 0, sizeof(*s));
	open_model(s);
	scripted_new_slab(s);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	CHECK_EQ(proto_conn_new(&s->conn, pair[0], PROTO_D2C), 0);
	send_welcome(s, tile_window, expert_window);
	CHECK_MSG(k3_iod_adopt(&s->client, pair[1], &err) == 0, "%s", err.text);
	hello = scripted_expect(s, PROTO_HELLO);
	CHECK_EQ(hello.hello.version_min, PROTO_VERSION_MIN);
}

static int dial(void *data, int *ret_fd, struct err *err)
{
	struct wire_error busy = { .code = ERR_BUSY,
				   .class = ERR_CLASS_RETRY,
				   .flags = WIRE_ERROR_CLOSING };
	struct scripted_iod *s = data;
	int pair[2];

	s->n_dials++;
	if (s->n_nobody > 0) {
		s->n_nobody--;
		(void)err_set(err, ERR_GONE, "nobody answers");
		return K3_IOD_NONE;
	}
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	s->conn = proto_conn_free(s->conn);
	CHECK_EQ(proto_conn_new(&s->conn, pair[0], PROTO_D2C), 0);
	if (s->n_busy > 0) {
		s->n_busy--;
		scripted_send_error(s, &busy, "no room now");
		s->conn = proto_conn_free(s->conn);
	} else {
		send_welcome(s, s->tile_window, s->expert_window);
	}
	*ret_fd = pair[1];
	return 0;
}

void scripted_open_again(struct scripted_iod *s, uint32_t tile_window, uint32_t expert_window)
{
	struct k3_iod_way way = { .dial = dial, .data = s, .wait_seconds = 60 };
	struct err err = { 0 };

	memset(s, 0, sizeof(*s));
	s->tile_window = tile_window;
	s->expert_window = expert_window;
	open_model(s);
	scripted_new_slab(s);
	CHECK_MSG(k3_iod_open(&s->client, &way, &err) == 0, "%s", err.text);
	(void)scripted_expect(s, PROTO_HELLO);
}

void scripted_die(struct scripted_iod *s)
{
	s->conn = proto_conn_free(s->conn);
}

void scripted_close(struct scripted_iod *s)
{
	(void)k3_iod_free(s->client);
	(void)proto_conn_free(s->conn);
	(void)slab_free(s->slab);
	(void)source_free(s->source);
}

void scripted_send(struct scripted_iod *s, enum proto_type type, const void *body)
{
	struct proto_message m = { .type = type };

	memcpy(&m.body, body, proto_struct_size(type));
	CHECK_EQ(proto_conn_send(s->conn, &m, false), 0);
}

void scripted_send_error(struct scripted_iod *s, const struct wire_error *e, const char *sentence)
{
	struct proto_message m = { .type = PROTO_ERROR,
				   .body.error = *e,
				   .tail = (const uint8_t *)sentence,
				   .tail_size = strlen(sentence) };

	m.body.error.size = (uint32_t)m.tail_size;
	CHECK_EQ(proto_conn_send(s->conn, &m, false), 0);
}

union proto_body scripted_expect(struct scripted_iod *s, enum proto_type type)
{
	struct proto_message m;
	struct err err = { 0 };
	int r = proto_conn_receive(s->conn, &m, false, &err);

	CHECK_MSG(r == 0, "no %s: %d %s", proto_name(type), r, err.text);
	CHECK_STR(proto_name(m.type), proto_name(type));
	return m.body;
}

void scripted_expect_silence(struct scripted_iod *s)
{
	struct proto_message m;
	struct err err = { 0 };

	CHECK_EQ(proto_conn_receive(s->conn, &m, false, &err), PROTO_AGAIN);
}

uint32_t scripted_place_tile(struct scripted_iod *s, uint32_t tile, uint64_t offset, uint32_t flags)
{
	struct slab_entry *e = &s->slab->tiles[tile];

	slab_entry_invalidate(e);
	e->offset = s->slab->header.ring_off + offset;
	e->flags = flags;
	atomic_store_explicit(&e->state, SLAB_READY, memory_order_release);
	return atomic_load(&e->generation);
}

void scripted_tile_ready(struct scripted_iod *s, uint32_t sweep, uint32_t tile)
{
	struct wire_tile_ready m = { .sweep = sweep, .tile = tile, .bytes_read = 4096 };

	m.generation = scripted_place_tile(s, tile, 0, 0);
	m.offset = s->slab->tiles[tile].offset;
	scripted_send(s, PROTO_TILE_READY, &m);
}

void scripted_expert_ready(struct scripted_iod *s, const struct wire_experts *request, size_t index,
			   uint32_t slot, uint64_t bytes_read)
{
	const struct source_expert *e =
		source_expert(s->source, request->layer, request->ids[index]);
	struct slab_entry *entry = &s->slab->slots[slot];
	struct wire_expert_ready m = { .layer = request->layer,
				       .expert = request->ids[index],
				       .step = request->step,
				       .slot = slot,
				       .bytes_read = bytes_read };

	slab_entry_invalidate(entry);
	entry->layer = request->layer;
	entry->id = request->ids[index];
	entry->offset = s->slab->header.slots_off + slot * s->slab->header.slot_size;
	atomic_store_explicit(&entry->state, SLAB_READY, memory_order_release);
	m.generation = atomic_load(&entry->generation);
	m.offset = entry->offset;
	memcpy(m.part_off, e->part_off, sizeof(m.part_off));
	scripted_send(s, PROTO_EXPERT_READY, &m);
}
