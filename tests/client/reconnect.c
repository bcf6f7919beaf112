/*
 * A connection that ends in the middle of a step: what the client asks for on the next one, what it
 * throws away, and when it gives up. The daemon is scripted.
 */
#include "tests/client/scripted_iod.h"
#include "tests/harness/test.h"

static struct err err;

/* In a sweep over all layers, tile 0 done, experts 3 and 8 of layer 1 asked for, 11 queued. */
static void begin_step(struct scripted_iod *s)
{
	static const uint16_t ids[] = { 3, 8, 11 };
	struct k3_tile t;

	CHECK_EQ(k3_iod_sweep(s->client, 3, true, false, &err), 0);
	(void)scripted_expect(s, PROTO_SWEEP);
	scripted_tile_ready(s, 1, 0);
	CHECK_EQ(k3_iod_tile(s->client, 0, &t, &err), 0);
	CHECK_EQ(k3_iod_tile_done(s->client, &t, &err), 0);
	(void)scripted_expect(s, PROTO_TILE_DONE);
	CHECK_EQ(k3_iod_experts(s->client, 1, ids, 3, &err), 0);
	CHECK_EQ(scripted_expect(s, PROTO_EXPERTS).experts.n, 2);
}

/* On the new connection: HELLO, the sweep from first_tile on, the experts in order. */
static struct wire_experts expect_asked_again(struct scripted_iod *s, uint32_t first_tile)
{
	union proto_body m;

	(void)scripted_expect(s, PROTO_HELLO);
	m = scripted_expect(s, PROTO_SWEEP);
	CHECK_EQ(m.sweep.sweep, 2);
	CHECK_EQ(m.sweep.first_tile, first_tile);
	CHECK_EQ(m.sweep.n_layers, 3);
	CHECK_EQ(m.sweep.flags, WIRE_SWEEP_HEAD);
	return scripted_expect(s, PROTO_EXPERTS).experts;
}

static void goes_on_where_it_was(void)
{
	struct scripted_iod s;
	struct wire_experts asked;
	struct k3_expert e;
	union proto_body m = { 0 };

	scripted_open_again(&s, 3, 2);
	begin_step(&s);
	/* expert 8 has landed: its lease goes with the connection */
	m.experts = (struct wire_experts){ .layer = 1, .n = 1, .step = 1, .ids = { 8 } };
	scripted_expert_ready(&s, &m.experts, 0, 5, 100);
	scripted_die(&s);
	s.n_nobody = 2;
	scripted_new_slab(&s);
	CHECK_EQ(k3_iod_expert_next(s.client, false, &e, &err), K3_IOD_NONE);
	CHECK_EQ(s.n_dials, 4);
	CHECK_EQ(k3_iod_counts(s.client)->reconnects, 1);
	asked = expect_asked_again(&s, 1);
	CHECK_EQ(asked.n, 2);
	CHECK_EQ(asked.ids[0], 3);
	CHECK_EQ(asked.ids[1], 8);
	scripted_expect_silence(&s);
	scripted_expert_ready(&s, &asked, 1, 0, 100);
	CHECK_EQ(k3_iod_expert_next(s.client, true, &e, &err), 0);
	CHECK_EQ(e.expert, 8);
	CHECK_EQ(k3_iod_expert_done(s.client, &e, &err), 0);
	CHECK_EQ(scripted_expect(&s, PROTO_EXPERT_DONE).expert_done.expert, 8);
	CHECK_EQ(scripted_expect(&s, PROTO_EXPERTS).experts.ids[0], 11);
	scripted_close(&s);
}

static void waits_for_a_tile_across(void)
{
	struct scripted_iod s;
	struct k3_tile t;

	scripted_open_again(&s, 3, 2);
	begin_step(&s);
	scripted_place_tile(&s, 1, 0, SLAB_PINNED); /* the next daemon has it */
	scripted_die(&s);
	CHECK(!k3_iod_tile_is_ready(s.client, 2));
	(void)expect_asked_again(&s, 1);
	CHECK_EQ(k3_iod_tile(s.client, 1, &t, &err), 0);
	CHECK_EQ(k3_iod_tile_done(s.client, &t, &err), 0);
	scripted_close(&s);
}

static void larger_window(void)
{
	struct scripted_iod s;
	struct wire_experts asked;

	scripted_open_again(&s, 3, 2);
	begin_step(&s);
	s.expert_window = 8;
	scripted_die(&s);
	CHECK(!k3_iod_tile_is_ready(s.client, 2));
	asked = expect_asked_again(&s, 1);
	CHECK_EQ(asked.n, 3);
	CHECK_EQ(asked.ids[2], 11);
	scripted_close(&s);
}

/* What was handed out before and is given back after was computed from memory that may be gone. */
static void held_across_is_stale(void)
{
	struct scripted_iod s;
	struct wire_experts asked = { .layer = 1, .n = 1, .step = 1, .ids = { 3 } };
	struct k3_expert e;
	struct k3_tile t;

	scripted_open_again(&s, 3, 2);
	begin_step(&s);
	scripted_tile_ready(&s, 1, 1);
	CHECK_EQ(k3_iod_tile(s.client, 1, &t, &err), 0);
	scripted_expert_ready(&s, &asked, 0, 5, 100);
	CHECK_EQ(k3_iod_expert_next(s.client, false, &e, &err), 0);
	scripted_die(&s);
	CHECK(!k3_iod_tile_is_ready(s.client, 2));
	asked = expect_asked_again(&s, 1);
	CHECK_EQ(asked.ids[0], 3);
	CHECK_EQ(k3_iod_tile_done(s.client, &t, &err), K3_IOD_STALE);
	CHECK_EQ(k3_iod_expert_done(s.client, &e, &err), K3_IOD_STALE);
	scripted_expect_silence(&s);
	scripted_close(&s);
}

static void nothing_between_steps(void)
{
	struct scripted_iod s;
	uint64_t values[PROTO_STATS_MAX];
	uint32_t n;

	scripted_open_again(&s, 3, 2);
	scripted_die(&s);
	(void)k3_iod_tile_is_ready(s.client, 0);
	(void)scripted_expect(&s, PROTO_HELLO);
	scripted_expect_silence(&s);
	/* a reason of the daemon that is worth another try */
	scripted_send_error(&s,
			    &(struct wire_error){ .code = ERR_STALE,
						  .class = ERR_CLASS_RETRY,
						  .flags = WIRE_ERROR_CLOSING },
			    "stopped for too long");
	scripted_die(&s);
	(void)k3_iod_tile_is_ready(s.client, 0);
	CHECK_EQ(k3_iod_counts(s.client)->reconnects, 2);
	scripted_send(&s, PROTO_STATS_REPLY, &(struct wire_stats_reply){ .n = 1, .values = { 7 } });
	CHECK_EQ(k3_iod_stats(s.client, values, &n, &err), 0);
	CHECK_EQ(values[0], 7);
	scripted_close(&s);
}

static void busy_is_tried_again(void)
{
	struct scripted_iod s;

	scripted_open_again(&s, 3, 2);
	begin_step(&s);
	s.n_busy = 3;
	scripted_die(&s);
	CHECK(!k3_iod_tile_is_ready(s.client, 2));
	CHECK_EQ(s.n_dials, 5);
	(void)expect_asked_again(&s, 1);
	scripted_close(&s);
}

static void another_model(void)
{
	struct scripted_iod s;
	struct k3_tile t;

	scripted_open_again(&s, 3, 2);
	begin_step(&s);
	s.has_other_model = true;
	scripted_die(&s);
	CHECK(k3_iod_tile(s.client, 1, &t, &err) < 0);
	CHECK_EQ(err.code, ERR_CHECKPOINT);
	CHECK(strstr(err.text, "another model"));
	CHECK_EQ(err_exit_code(err.code), 1);
	CHECK_EQ(s.n_dials, 2);
	scripted_close(&s);
}

/* The daemon threw this client out for what it did: no second try. */
static void fatal_reason(void)
{
	struct scripted_iod s;
	struct k3_tile t;

	scripted_open_again(&s, 3, 2);
	begin_step(&s);
	scripted_send_error(
		&s, &(struct wire_error){ .code = ERR_PROTOCOL, .flags = WIRE_ERROR_CLOSING },
		"TILE_DONE for a tile that it has not");
	scripted_die(&s);
	CHECK(k3_iod_tile(s.client, 1, &t, &err) < 0);
	CHECK_EQ(err.code, ERR_PROTOCOL);
	CHECK_EQ(s.n_dials, 1);
	scripted_close(&s);
}

static const struct test_case cases[] = {
	{ "goes on where it was", goes_on_where_it_was },
	{ "waits for a tile across", waits_for_a_tile_across },
	{ "larger window", larger_window },
	{ "held across is stale", held_across_is_stale },
	{ "nothing between steps", nothing_between_steps },
	{ "busy is tried again", busy_is_tried_again },
	{ "another model", another_model },
	{ "fatal reason", fatal_reason },
};
TEST_MAIN(cases)
