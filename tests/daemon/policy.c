/*
 * The eviction policies: LRU against a plain list of uses, decay against its definition, computed
 * anew from all asks in double precision for every victim.
 */
#include "iod/policy.h"

#include "shared/attr.h"
#include "tests/harness/test.h"

enum { SLOTS = 16 };

static bool held[64];
static bool may(void *data, uint32_t slot)
{
	(void)data;
	return !held[slot];
}

static uint64_t state = 88172645463325252ull;
static uint32_t draw(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 16) % below);
}

static void against_times_of_use(void)
{
	const struct iod_policy_shape shape = { SLOTS, 2, 1000 };
	struct iod_policy *p = iod_policy_lru.new(&shape);
	uint64_t used[SLOTS] = { 0 }; /* 0: empty */

	CHECK(p);
	for (uint64_t now = 1; now < 20000; now++) {
		uint32_t slot = draw(SLOTS), want = UINT32_MAX;

		if (draw(5) == 0)
			held[slot] = !held[slot];
		if (used[slot] == 0) {
			iod_policy_lru.admit(p, slot, 1, draw(800));
			used[slot] = now;
		} else if (draw(4) == 0) {
			iod_policy_lru.remove(p, slot);
			used[slot] = 0;
		} else {
			iod_policy_lru.touch(p, slot);
			used[slot] = now;
		}
		for (uint32_t i = 0; i < SLOTS; i++)
			if (used[i] > 0 && !held[i] && (want == UINT32_MAX || used[i] < used[want]))
				want = i;
		CHECK_EQ(iod_policy_lru.victim(p, may, NULL), want);
	}
	CHECK(iod_policy_lru.free(p) == NULL && iod_policy_lru.free(NULL) == NULL);
}

/* ---- decay ----------------------------------------------------------------------------------- */

enum { LAYERS = 5, EXPERTS = 24, CLIENTS = 2, ASKS = 20000, CACHE = 40, TOP = 4 };

/* The definition: what the head of policy_decay.c says, from the list of all asks. */
static struct {
	struct {
		uint32_t number;
		int step;
	} asks[ASKS];
	int n_asks;
	int clock, turn[LAYERS]; /* steps */
	struct {
		int step;
		uint32_t layer;
		bool is_here;
	} clients[CLIENTS];
	int slot_of[LAYERS * EXPERTS]; /* + 1 */
	uint32_t number_in[CACHE];
	int n_used;
} plain;

/* As of the last time at which the slot was placed or its layer sorted. */
static double worth(uint32_t number)
{
	int now = plain.turn[number / EXPERTS];
	double sum = 0;

	for (int i = 0; i < plain.n_asks; i++) {
		int age = now - plain.asks[i].step;

		if (plain.asks[i].number == number && age >= 0)
			sum += exp2(-age) + exp2(-age / 64.0) / 20;
	}
	return sum;
}

static double value(uint32_t number)
{
	uint32_t layer = number / EXPERTS, distance = LAYERS;

	for (int c = 0; c < CLIENTS; c++) {
		uint32_t d = (layer + LAYERS - plain.clients[c].layer - 1) % LAYERS + 1;

		if (plain.clients[c].is_here && plain.clients[c].step + 1 >= plain.clock &&
		    d < distance)
			distance = d;
	}
	return worth(number) / distance;
}

static void check_victim(const struct iod_policy *p)
{
	uint32_t victim = iod_policy_decay.victim(p, may, NULL);
	double least = INFINITY;

	for (int i = 0; i < plain.n_used; i++)
		if (!held[i])
			least = fmin(least, value(plain.number_in[i]));
	if (least == INFINITY) {
		CHECK_EQ(victim, UINT32_MAX);
		return;
	}
	CHECK(victim < (uint32_t)plain.n_used && !held[victim]);
	CHECK_MSG(value(plain.number_in[victim]) <= least * (1 + 1e-4),
		  "slot %u is worth %.9g, the least is %.9g", victim,
		  value(plain.number_in[victim]), least);
}

static void ask(struct iod_policy *p, struct iod_policy_client *who, int c, uint32_t number)
{
	uint32_t layer = number / EXPERTS;

	iod_policy_decay.ask(p, who, layer, number);
	plain.clients[c].layer = layer;
	plain.clients[c].is_here = true;
	plain.turn[layer] = plain.clock;
	plain.asks[plain.n_asks].number = number;
	plain.asks[plain.n_asks++].step = plain.clock;
}

static void use(struct iod_policy *p, uint32_t number)
{
	int slot = plain.slot_of[number] - 1;

	if (slot >= 0) {
		iod_policy_decay.touch(p, (uint32_t)slot);
		return;
	}
	if (plain.n_used < CACHE) {
		slot = plain.n_used++;
	} else {
		uint32_t victim = iod_policy_decay.victim(p, may, NULL);

		if (victim == UINT32_MAX)
			return;
		slot = (int)victim;
		iod_policy_decay.remove(p, victim);
		plain.slot_of[plain.number_in[slot]] = 0;
	}
	iod_policy_decay.admit(p, (uint32_t)slot, number / EXPERTS, number);
	plain.slot_of[number] = slot + 1;
	plain.number_in[slot] = number;
}

static void begin(struct iod_policy *p, struct iod_policy_client *who, int c)
{
	iod_policy_decay.begin(p, who);
	if (plain.clients[c].step == plain.clock)
		plain.clock++;
	plain.clients[c].step = plain.clock;
}

static void against_definition(void)
{
	const struct iod_policy_shape shape = { CACHE, LAYERS, LAYERS * EXPERTS };
	struct iod_policy *p = iod_policy_decay.new(&shape);
	struct iod_policy_client clients[CLIENTS] = { 0 };

	CHECK(p);
	CHECK_EQ(iod_policy_decay.victim(p, may, NULL), UINT32_MAX);
	for (int round = 0; round < 150; round++) {
		/* the second comes later, pauses, and goes */
		int n = round > 20 && round % 40 < 30 ? CLIENTS : 1;

		for (int c = 0; c < n; c++)
			begin(p, &clients[c], c);
		for (uint32_t turn = 0; turn < (uint32_t)(LAYERS * n); turn++) {
			uint32_t wanted[TOP], layer = turn / (uint32_t)n;
			int c = (int)(turn % (uint32_t)n);

			for (uint32_t k = 0; k < TOP; k++) {
				/* some are asked for far more than others */
				wanted[k] = layer * EXPERTS + k * (EXPERTS / TOP) +
					    draw(draw(2) ? 2 : EXPERTS / TOP);
				ask(p, &clients[c], c, wanted[k]);
			}
			for (uint32_t k = 0; k < TOP; k++) {
				/* a hit is placed anew when it is used, as the definition has
				 * it at once: no victim in between */
				if (plain.slot_of[wanted[k]] > 0)
					use(p, wanted[k]);
			}
			for (uint32_t k = 0; k < TOP; k++) {
				if (draw(5) == 0)
					held[draw(CACHE)] ^= true;
				check_victim(p);
				if (plain.slot_of[wanted[k]] == 0)
					use(p, wanted[k]);
			}
		}
		if (round == 120) {
			iod_policy_decay.leave(p, &clients[1]);
			plain.clients[1].is_here = false;
		}
	}
	CHECK(iod_policy_decay.free(p) == NULL && iod_policy_decay.free(NULL) == NULL);
}

/* What came once goes before what is used all the time, however recent it is. */
static void a_scan_passes_by(void)
{
	const struct iod_policy_shape shape = { 8, 1, 5000 };
	struct iod_policy *p = iod_policy_decay.new(&shape);
	struct iod_policy_client who = { 0 };
	uint32_t in[8];

	for (uint32_t i = 0; i < 8; i++)
		held[i] = false;
	for (uint32_t step = 0; step < 100; step++) {
		iod_policy_decay.begin(p, &who);
		for (uint32_t i = 0; i < 4; i++) {
			iod_policy_decay.ask(p, &who, 0, i);
			if (step == 0)
				iod_policy_decay.admit(p, i, 0, in[i] = i);
			else
				iod_policy_decay.touch(p, i);
		}
		for (uint32_t i = 0; i < 40; i++) {
			uint32_t number = 4 + step * 40 + i, slot = 4 + i;

			iod_policy_decay.ask(p, &who, 0, number);
			if (step > 0 || i >= 4) {
				slot = iod_policy_decay.victim(p, may, NULL);
				CHECK_MSG(step < 2 || in[slot] >= 4, "expert %u goes in step %u",
					  in[slot], step);
				iod_policy_decay.remove(p, slot);
			}
			iod_policy_decay.admit(p, slot, 0, in[slot] = number);
		}
	}
	iod_policy_decay.free(p);
}

/* ---- one client beside a flood --------------------------------------------------------------- */

/* Hits in a thousand of a client with TOP experts in each layer, some of them often, in a cache of
 * n_slots; flood: experts of every layer that a second client asks for in each step, evenly. */
static int hits_beside(uint32_t flood, uint32_t n_slots)
{
	const struct iod_policy_shape shape = { n_slots, LAYERS, LAYERS * 256 };
	struct iod_policy *p = iod_policy_decay.new(&shape);
	struct iod_policy_client clients[2] = { 0 };
	static uint32_t slot_of[LAYERS * 256], in[64];
	uint32_t n_used = 0, hits = 0, asks = 0;

	CHECK(p && n_slots <= N_ELEMENTS(in));
	memset(slot_of, 0, sizeof(slot_of));
	state = 88172645463325252ull;
	for (uint32_t turn = 0; turn < 400 * LAYERS * 2; turn++) {
		uint32_t c = turn % 2, layer = turn / 2 % LAYERS, n = c ? flood : TOP;
		uint32_t first = draw(256);

		if (layer == 0)
			iod_policy_decay.begin(p, &clients[c]);
		for (uint32_t k = 0; k < n; k++) {
			uint32_t id = c ? (first + k * 97) % 256 : k * 60 + draw(draw(3) ? 3 : 60);
			uint32_t number = layer * 256 + id, slot = slot_of[number];

			iod_policy_decay.ask(p, &clients[c], layer, number);
			asks += c == 0;
			hits += c == 0 && slot > 0;
			if (slot > 0) {
				iod_policy_decay.touch(p, slot - 1);
				continue;
			}
			slot = n_used < n_slots ? n_used++ : iod_policy_decay.victim(p, may, NULL);
			if (slot_of[in[slot]] == slot + 1) {
				iod_policy_decay.remove(p, slot);
				slot_of[in[slot]] = 0;
			}
			iod_policy_decay.admit(p, slot, layer, in[slot] = number);
			slot_of[number] = slot + 1;
		}
	}
	iod_policy_decay.free(p);
	return (int)(hits * 1000 / asks);
}

/* However much another asks for, a client has the hits it would have in half of the slots. */
static void beside_a_flood(void)
{
	memset(held, 0, sizeof(held));
	for (uint32_t n_slots = 24; n_slots <= 64; n_slots += 20) {
		int alone = hits_beside(0, n_slots / 2);

		CHECK_MSG(alone > 50, "%d of 1000 alone", alone);
		for (uint32_t flood = 4; flood <= 256; flood *= 4) {
			int beside = hits_beside(flood, n_slots);

			CHECK_MSG(beside >= alone, "%u slots, flood of %u: %d of 1000, alone %d",
				  n_slots, flood, beside, alone);
		}
	}
}

static void by_name(void)
{
	CHECK(iod_policy_find("lru") == &iod_policy_lru);
	CHECK(iod_policy_find("decay") == &iod_policy_decay);
	CHECK(iod_policy_find("") == NULL && iod_policy_find("LRU") == NULL);
}

static const struct test_case cases[] = {
	{ "against times of use", against_times_of_use },
	{ "decay against its definition", against_definition },
	{ "a scan passes by", a_scan_passes_by },
	{ "beside a flood", beside_a_flood },
	{ "by name", by_name },
};
TEST_MAIN(cases)
