/*
 * The client's side of the protocol against a daemon whose every message the test decides: what the
 * client sends and when, what it refuses, and what it does when bytes change under it.
 */
#include "tests/client/scripted_iod.h"
#include "tests/harness/test.h"

static struct err err;

static void begin_sweep(struct scripted_iod *s)
{
	union proto_body m;

	CHECK_EQ(k3_iod_sweep(s->client, 3, true, false, &err), 0);
	m = scripted_expect(s, PROTO_SWEEP);
	CHECK_EQ(m.sweep.first_tile, 0);
	CHECK_EQ(m.sweep.n_layers, 3);
	CHECK_EQ(m.sweep.flags, WIRE_SWEEP_HEAD);
}

static void leased_tile(void)
{
	struct scripted_iod s;
	struct k3_tile t;
	union proto_body m;

	scripted_open(&s, 3, 4);
	begin_sweep(&s);
	CHECK(!k3_iod_tile_is_ready(s.client, 0));
	scripted_tile_ready(&s, 1, 0);
	CHECK(k3_iod_tile_is_ready(s.client, 0));
	CHECK_EQ(k3_iod_tile(s.client, 0, &t, &err), 0);
	CHECK(!t.is_pinned);
	scripted_expect_silence(&s);
	CHECK_EQ(k3_iod_tile_done(s.client, &t, &err), 0);
	m = scripted_expect(&s, PROTO_TILE_DONE);
	CHECK_EQ(m.tile_done.tile, 0);
	CHECK_EQ(m.tile_done.sweep, 1);
	CHECK_EQ(k3_iod_counts(s.client)->trunk_bytes_read, 4096);
	scripted_close(&s);
}

static void skipped_tiles_are_given_back(void)
{
	struct scripted_iod s;
	struct k3_tile t;

	scripted_open(&s, 3, 4);
	begin_sweep(&s);
	scripted_tile_ready(&s, 1, 0);
	CHECK(!k3_iod_tile_is_ready(s.client, 2)); /* takes tile 0 in */
	scripted_tile_ready(&s, 1, 1);
	scripted_tile_ready(&s, 1, 2);
	CHECK_EQ(k3_iod_tile(s.client, 2, &t, &err), 0);
	CHECK_EQ(scripted_expect(&s, PROTO_TILE_DONE).tile_done.tile, 0);
	CHECK_EQ(scripted_expect(&s, PROTO_TILE_DONE).tile_done.tile, 1);
	scripted_expect_silence(&s);
	scripted_close(&s);
}

static void pinned_tile_needs_no_lease(void)
{
	struct scripted_iod s;
	struct k3_tile t;

	scripted_open(&s, 3, 4);
	begin_sweep(&s);
	scripted_place_tile(&s, 0, 0, SLAB_PINNED);
	CHECK_EQ(k3_iod_tile(s.client, 0, &t, &err), 0);
	CHECK(t.is_pinned);
	/* the daemon had leased it to us as well: given back when done */
	scripted_tile_ready(&s, 1, 0);
	s.slab->tiles[0].flags = SLAB_PINNED;
	CHECK(!k3_iod_tile_is_ready(s.client, 1));
	t.generation = atomic_load(&s.slab->tiles[0].generation);
	CHECK_EQ(k3_iod_tile_done(s.client, &t, &err), 0);
	CHECK_EQ(scripted_expect(&s, PROTO_TILE_DONE).tile_done.tile, 0);
	scripted_expect_silence(&s);
	scripted_close(&s);
}

static void stale_tile_is_asked_for_again(void)
{
	struct scripted_iod s;
	struct k3_tile t;
	union proto_body m;

	scripted_open(&s, 3, 4);
	begin_sweep(&s);
	scripted_tile_ready(&s, 1, 0);
	CHECK_EQ(k3_iod_tile(s.client, 0, &t, &err), 0);
	CHECK_EQ(k3_iod_tile_done(s.client, &t, &err), 0);
	(void)scripted_expect(&s, PROTO_TILE_DONE);
	scripted_tile_ready(&s, 1, 1);
	scripted_tile_ready(&s, 1, 2);
	CHECK_EQ(k3_iod_tile(s.client, 1, &t, &err), 0);
	slab_entry_invalidate(&s.slab->tiles[1]);
	CHECK_EQ(k3_iod_tile_done(s.client, &t, &err), K3_IOD_STALE);
	m = scripted_expect(&s, PROTO_SWEEP);
	CHECK_EQ(m.sweep.sweep, 2);
	CHECK_EQ(m.sweep.first_tile, 1);
	CHECK_EQ(m.sweep.n_layers, 3);
	/* one of the old sweep that was under way carries no lease: no answer */
	scripted_tile_ready(&s, 1, 3);
	CHECK(!k3_iod_tile_is_ready(s.client, 1));
	scripted_tile_ready(&s, 2, 1);
	CHECK_EQ(k3_iod_tile(s.client, 1, &t, &err), 0);
	CHECK_EQ(k3_iod_tile_done(s.client, &t, &err), 0);
	CHECK_EQ(scripted_expect(&s, PROTO_TILE_DONE).tile_done.sweep, 2);
	CHECK_EQ(k3_iod_counts(s.client)->stale, 1);
	scripted_close(&s);
}

static void experts_keep_to_the_window(void)
{
	static const uint16_t ids[] = { 1, 5, 9, 14 };
	struct scripted_iod s;
	struct k3_expert e;
	union proto_body m;

	scripted_open(&s, 3, 2);
	CHECK_EQ(k3_iod_expert_next(s.client, true, &e, &err), K3_IOD_NONE); /* none asked for */
	CHECK_EQ(k3_iod_experts(s.client, 1, ids, 4, &err), 0);
	m = scripted_expect(&s, PROTO_EXPERTS);
	CHECK_EQ(m.experts.n, 2);
	CHECK_EQ(m.experts.ids[0], 1);
	CHECK_EQ(m.experts.ids[1], 5);
	CHECK_EQ(k3_iod_expert_next(s.client, false, &e, &err), K3_IOD_NONE);
	scripted_expert_ready(&s, &m.experts, 1, 3, 100);
	scripted_expert_ready(&s, &m.experts, 0, 4, 0);
	CHECK_EQ(k3_iod_expert_next(s.client, true, &e, &err), 0);
	CHECK_EQ(e.expert, 1); /* the lowest of those that are there */
	CHECK_EQ(e.slot, 4);
	CHECK_EQ(k3_iod_expert_done(s.client, &e, &err), 0);
	CHECK_EQ(scripted_expect(&s, PROTO_EXPERT_DONE).expert_done.expert, 1);
	m = scripted_expect(&s, PROTO_EXPERTS);
	CHECK_EQ(m.experts.n, 1);
	CHECK_EQ(m.experts.ids[0], 9);
	scripted_expect_silence(&s);
	CHECK_EQ(k3_iod_counts(s.client)->experts_read, 1);
	CHECK_EQ(k3_iod_counts(s.client)->experts_resident, 1);
	CHECK_EQ(k3_iod_counts(s.client)->expert_bytes_read, 100);
	scripted_close(&s);
}

static void many_experts_go_in_messages_of_the_largest_size(void)
{
	uint16_t ids[24];
	struct scripted_iod s;

	scripted_open(&s, 3, 1000);
	for (size_t i = 0; i < N_ELEMENTS(ids); i++)
		ids[i] = (uint16_t)i;
	CHECK_EQ(k3_iod_experts(s.client, 1, ids, N_ELEMENTS(ids), &err), 0);
	CHECK_EQ(scripted_expect(&s, PROTO_EXPERTS).experts.n, N_ELEMENTS(ids));
	scripted_expect_silence(&s);
	scripted_close(&s);
}

static void stale_expert_comes_back(void)
{
	static const uint16_t ids[] = { 7 };
	struct scripted_iod s;
	struct k3_expert e;
	union proto_body m;

	scripted_open(&s, 3, 2);
	CHECK_EQ(k3_iod_experts(s.client, 1, ids, 1, &err), 0);
	m = scripted_expect(&s, PROTO_EXPERTS);
	scripted_expert_ready(&s, &m.experts, 0, 0, 0);
	CHECK_EQ(k3_iod_expert_next(s.client, true, &e, &err), 0);
	slab_entry_invalidate(&s.slab->slots[0]);
	CHECK_EQ(k3_iod_expert_done(s.client, &e, &err), K3_IOD_STALE);
	CHECK_EQ(scripted_expect(&s, PROTO_EXPERT_DONE).expert_done.slot, 0);
	m = scripted_expect(&s, PROTO_EXPERTS);
	CHECK_EQ(m.experts.ids[0], 7);
	scripted_expert_ready(&s, &m.experts, 0, 1, 0);
	CHECK_EQ(k3_iod_expert_next(s.client, true, &e, &err), 0);
	CHECK_EQ(k3_iod_expert_done(s.client, &e, &err), 0);
	scripted_close(&s);
}

static void failed_expert_is_an_error(void)
{
	static const uint16_t ids[] = { 7 };
	struct scripted_iod s;
	struct k3_expert e;
	struct wire_error m = { .code = ERR_EXPERT, .request = PROTO_EXPERTS, .a = 1, .b = 7 };

	scripted_open(&s, 3, 2);
	CHECK_EQ(k3_iod_experts(s.client, 1, ids, 1, &err), 0);
	scripted_send_error(&s, &m, "layer 1 expert 7 cannot be read");
	CHECK(k3_iod_expert_next(s.client, true, &e, &err) < 0);
	CHECK_EQ(err.code, ERR_EXPERT);
	CHECK_STR(err.text, "layer 1 expert 7 cannot be read");
	CHECK_EQ(err_exit_code(err.code), 4);
	scripted_close(&s);
}

static void expert_that_was_not_asked_for(void)
{
	struct wire_experts never = { .layer = 1, .n = 1, .step = 1, .ids = { 3 } };
	struct scripted_iod s;
	struct k3_expert e;

	scripted_open(&s, 3, 2);
	scripted_expert_ready(&s, &never, 0, 0, 0);
	CHECK(k3_iod_expert_next(s.client, false, &e, &err) < 0);
	CHECK_EQ(err.code, ERR_PROTOCOL);
	/* and every later call says the same */
	err_clear(&err);
	CHECK(k3_iod_sweep(s.client, 1, false, false, &err) < 0);
	CHECK_EQ(err.code, ERR_PROTOCOL);
	scripted_close(&s);
}

static void tile_outside_the_slab(void)
{
	struct wire_tile_ready m = { .sweep = 1, .tile = 0, .offset = 1ull << 40 };
	struct scripted_iod s;
	struct k3_tile t;

	scripted_open(&s, 3, 2);
	begin_sweep(&s);
	scripted_send(&s, PROTO_TILE_READY, &m);
	CHECK(k3_iod_tile(s.client, 0, &t, &err) < 0);
	CHECK_EQ(err.code, ERR_PROTOCOL);
	scripted_close(&s);
}

static void more_leases_than_the_window(void)
{
	struct scripted_iod s;
	struct k3_tile t;

	scripted_open(&s, 3, 2);
	begin_sweep(&s);
	for (uint32_t tile = 1; tile <= 4; tile++)
		scripted_tile_ready(&s, 1, tile);
	CHECK(k3_iod_tile(s.client, 0, &t, &err) < 0);
	CHECK_EQ(err.code, ERR_PROTOCOL);
	scripted_close(&s);
}

static void rows_are_asked_for_once(void)
{
	static const uint32_t ids[] = { 5, 9, 5 };
	uint8_t bytes[4096] = { 0 };
	struct proto_message m = { .type = PROTO_ROW };
	struct wire_error wrong = { .code = ERR_IO, .request = PROTO_ROWS, .a = 2 };
	struct scripted_iod s;
	float *out;
	uint32_t cols, size;

	scripted_open(&s, 3, 2);
	cols = s.source->catalog.header->embed_cols;
	size = cols * (s.source->catalog.header->embed_dtype == CATALOG_BF16 ? 2 : 4);
	CHECK(size <= sizeof(bytes));
	out = calloc(3 * (size_t)cols, sizeof(*out));
	for (uint32_t i = 0; i < 2; i++) { /* 1.0 and 2.0 as bf16, in the reverse order */
		m.body.row = (struct wire_row){
			.serial = 1, .index = 1 - i, .id = ids[1 - i], .size = size
		};
		CHECK_EQ(s.source->catalog.header->embed_dtype, CATALOG_BF16);
		for (uint32_t c = 0; c < size; c += 2) {
			bytes[c] = i ? 0x80 : 0x00;
			bytes[c + 1] = i ? 0x3f : 0x40;
		}
		m.tail = bytes;
		m.tail_size = size;
		CHECK_EQ(proto_conn_send(s.conn, &m, false), 0);
	}
	CHECK_EQ(k3_iod_rows(s.client, ids, 3, out, &err), 0);
	CHECK_EQ(scripted_expect(&s, PROTO_ROWS).rows.n, 2);
	for (uint32_t c = 0; c < cols; c++)
		CHECK(out[c] == 1.0f && out[cols + c] == 2.0f && out[2 * cols + c] == 1.0f);
	scripted_send_error(&s, &wrong, "the embedding cannot be read");
	CHECK(k3_iod_rows(s.client, ids, 1, out, &err) < 0);
	CHECK_EQ(err.code, ERR_IO);
	/* another row of that request failed as well; the next request does not */
	scripted_send_error(&s, &wrong, "the embedding cannot be read");
	m.body.row = (struct wire_row){ .serial = 3, .index = 0, .id = ids[0], .size = size };
	CHECK_EQ(proto_conn_send(s.conn, &m, false), 0);
	err_clear(&err);
	CHECK_EQ(k3_iod_rows(s.client, ids, 1, out, &err), 0);
	free(out);
	scripted_close(&s);
}

static void closing_error_is_the_reason(void)
{
	struct wire_error m = { .code = ERR_BUSY, .flags = WIRE_ERROR_CLOSING };
	struct scripted_iod s;
	struct k3_tile t;

	scripted_open(&s, 3, 2);
	begin_sweep(&s);
	scripted_send_error(&s, &m, "too many clients");
	s.conn = proto_conn_free(s.conn);
	CHECK(k3_iod_tile(s.client, 0, &t, &err) < 0);
	CHECK_EQ(err.code, ERR_BUSY);
	CHECK_STR(err.text, "too many clients");
	scripted_close(&s);
}

static void daemon_that_dies(void)
{
	struct scripted_iod s;
	struct k3_tile t;

	scripted_open(&s, 3, 2);
	begin_sweep(&s);
	s.conn = proto_conn_free(s.conn);
	CHECK(k3_iod_tile(s.client, 0, &t, &err) < 0);
	CHECK_EQ(err.code, ERR_GONE);
	CHECK(strstr(err.text, "a tile of the trunk"));
	scripted_close(&s);
}

static void stats(void)
{
	struct wire_stats_reply m = { .n = 2, .values = { 11, 22 } };
	uint64_t values[PROTO_STATS_MAX];
	struct scripted_iod s;
	uint32_t n;

	scripted_open(&s, 3, 2);
	scripted_send(&s, PROTO_STATS_REPLY, &m);
	CHECK_EQ(k3_iod_stats(s.client, values, &n, &err), 0);
	CHECK_EQ(n, 2);
	CHECK_EQ(values[1], 22);
	scripted_close(&s);
}

static const struct test_case cases[] = {
	{ "leased tile", leased_tile },
	{ "skipped tiles are given back", skipped_tiles_are_given_back },
	{ "pinned tile needs no lease", pinned_tile_needs_no_lease },
	{ "stale tile is asked for again", stale_tile_is_asked_for_again },
	{ "experts keep to the window", experts_keep_to_the_window },
	{ "many experts in one message", many_experts_go_in_messages_of_the_largest_size },
	{ "stale expert comes back", stale_expert_comes_back },
	{ "failed expert is an error", failed_expert_is_an_error },
	{ "expert that was not asked for", expert_that_was_not_asked_for },
	{ "tile outside the slab", tile_outside_the_slab },
	{ "more leases than the window", more_leases_than_the_window },
	{ "rows are asked for once", rows_are_asked_for_once },
	{ "closing error is the reason", closing_error_is_the_reason },
	{ "daemon that dies", daemon_that_dies },
	{ "stats", stats },
};
TEST_MAIN(cases)
