#include "iod/store/replay.h"

#include <errno.h>
#include <stdlib.h>

#include "shared/attr.h"
#include "shared/must.h"

struct sim {
	const struct iod_replay_want *want;
	const struct iod_policy_class *class;
	struct iod_policy *policy;
	struct iod_policy_client clients[IOD_REPLAY_CLIENTS];
	uint32_t steps[IOD_REPLAY_CLIENTS]; /* the client is in, + 1 */
	uint32_t n_slots, n_used;
	uint32_t *slot_of; /* [numbers]: slot + 1, 0 = in none */
	uint32_t *held;    /* [n_slots]: the number in it */
	uint32_t *needed;  /* [numbers]: of the asks that are made together */
};

static void freep(void *p)
{
	free(*(void **)p);
}

static void sim_deinit(struct sim *s)
{
	if (s->policy)
		s->class->free(s->policy);
	free(s->needed);
	free(s->held);
	free(s->slot_of);
}

static size_t n_numbers(const struct iod_routing *r)
{
	return (size_t)r->n_layers * r->n_ids;
}

static int sim_init(struct sim *s, const struct iod_replay_want *want, uint32_t n_slots,
		    const struct iod_policy_class *class)
{
	size_t n = n_numbers(want->routing);
	struct iod_policy_shape shape = {
		.n_slots = n_slots,
		.n_layers = want->routing->n_layers,
		.n_experts = (uint32_t)n,
	};

	s->want = want;
	s->class = class;
	s->n_slots = n_slots;
	s->policy = class->new (&shape);
	s->slot_of = calloc(n, sizeof(*s->slot_of));
	s->held = calloc(n_slots, sizeof(*s->held));
	s->needed = calloc(n, sizeof(*s->needed));
	return s->policy && s->slot_of && s->held && s->needed ? 0 : -ENOMEM;
}

static bool may(void *data, uint32_t slot)
{
	const struct sim *s = data;

	return s->needed[s->held[slot]] == 0;
}

static bool may_any(void *data, uint32_t slot)
{
	(void)data;
	(void)slot;
	return true;
}

static void announce(struct sim *s, const struct iod_routing_ask *a)
{
	struct iod_policy_client *who = &s->clients[a->client];

	if (s->steps[a->client] != a->step + 1) {
		s->steps[a->client] = a->step + 1;
		s->class->begin(s->policy, who);
	}
	s->class->ask(s->policy, who, a->layer, a->number);
	s->needed[a->number]++;
}

/* One expert through the slots; true: it was there. */
static bool use(struct sim *s, const struct iod_routing_ask *a)
{
	uint32_t slot = s->slot_of[a->number];

	if (slot > 0) {
		s->class->touch(s->policy, slot - 1);
		return true;
	}
	if (s->n_used < s->n_slots) {
		slot = s->n_used++;
	} else {
		slot = s->class->victim(s->policy, may, s);
		if (slot == UINT32_MAX) /* more announced than there are slots */
			slot = s->class->victim(s->policy, may_any, s);
		must(slot < s->n_slots);
		s->slot_of[s->held[slot]] = 0;
		s->class->remove(s->policy, slot);
	}
	s->slot_of[a->number] = slot + 1;
	s->held[slot] = a->number;
	s->class->admit(s->policy, slot, a->layer, a->number);
	return false;
}

static void count(struct iod_replay *ret, const struct iod_replay_want *want,
		  const struct iod_routing_ask *a, bool is_hit)
{
	if (a->token < want->warm)
		return;
	ret->asks++;
	ret->hits += is_hit;
	ret->clients[a->client].asks++;
	ret->clients[a->client].hits += is_hit;
}

int iod_replay_policy(const struct iod_replay_want *want, const struct iod_policy_class *class,
		      struct iod_replay *ret)
{
	const struct iod_routing *r = want->routing;
	CLEANUP(sim_deinit) struct sim s = { 0 };
	int e = sim_init(&s, want, want->n_slots, class);

	if (e < 0)
		return e;
	*ret = (struct iod_replay){ 0 };
	for (size_t at = 0, n; at < r->n; at += n) {
		n = want->keep_announced ? iod_routing_group(r, at) : 1;
		for (size_t i = at; i < at + n; i++)
			announce(&s, &r->asks[i]);
		for (size_t i = at; i < at + n; i++)
			count(ret, want, &r->asks[i], use(&s, &r->asks[i]));
		for (size_t i = at; i < at + n; i++)
			s.needed[r->asks[i].number]--;
	}
	return 0;
}

/* ---- pinned ---------------------------------------------------------------------------------- */

struct heat {
	uint32_t asks, number;
	size_t first; /* of equals the one asked for first */
};

static int hotter_first(const void *a, const void *b)
{
	const struct heat *x = a, *y = b;

	if (x->asks != y->asks)
		return x->asks > y->asks ? -1 : 1;
	return x->first < y->first ? -1 : x->first > y->first;
}

/* *ret_pinned: [numbers], 1 for those that get a slot of their own; caller frees. */
static int choose_pinned(const struct iod_routing *r, uint32_t n, unsigned char **ret_pinned)
{
	size_t size = n_numbers(r);
	CLEANUP(freep) struct heat *heat = calloc(size, sizeof(*heat));
	unsigned char *pinned = calloc(size, 1);

	*ret_pinned = pinned;
	if (!heat || !pinned)
		return -ENOMEM;
	for (size_t i = 0; i < size; i++)
		heat[i].number = (uint32_t)i;
	for (size_t i = r->n; i-- > 0;) {
		heat[r->asks[i].number].asks++;
		heat[r->asks[i].number].first = i;
	}
	qsort(heat, size, sizeof(*heat), hotter_first);
	for (size_t i = 0; i < n && i < size && heat[i].asks > 0; i++)
		pinned[heat[i].number] = 1;
	return 0;
}

int iod_replay_pinned(const struct iod_replay_want *want, struct iod_replay *ret)
{
	const struct iod_routing *r = want->routing;
	CLEANUP(freep) unsigned char *pinned = NULL;
	CLEANUP(sim_deinit) struct sim s = { 0 };
	uint32_t n_pinned = want->n_slots / 2;
	int e = choose_pinned(r, n_pinned, &pinned);

	if (e == 0)
		e = sim_init(&s, want, want->n_slots - n_pinned, &iod_policy_lru);
	if (e < 0)
		return e;
	*ret = (struct iod_replay){ 0 };
	for (size_t i = 0; i < r->n; i++) {
		unsigned char *pin = &pinned[r->asks[i].number];

		if (*pin) {
			count(ret, want, &r->asks[i], *pin == 2);
			*pin = 2; /* it is read once */
			continue;
		}
		announce(&s, &r->asks[i]);
		count(ret, want, &r->asks[i], use(&s, &r->asks[i]));
		s.needed[r->asks[i].number]--;
	}
	return 0;
}

/* ---- Belady ---------------------------------------------------------------------------------- */

struct use_of {
	size_t next;
	uint32_t number;
};

/* A heap, latest next use on top. Entries whose expert is used or evicted meanwhile stay until they
 * come up. */
struct uses {
	struct use_of *items;
	size_t n;
};

static void uses_push(struct uses *u, struct use_of x)
{
	size_t i = u->n++;

	for (; i > 0 && u->items[(i - 1) / 2].next < x.next; i = (i - 1) / 2)
		u->items[i] = u->items[(i - 1) / 2];
	u->items[i] = x;
}

static void uses_pop(struct uses *u)
{
	struct use_of x = u->items[--u->n];
	size_t i = 0;

	for (;;) {
		size_t child = 2 * i + 1;

		if (child + 1 < u->n && u->items[child + 1].next > u->items[child].next)
			child++;
		if (child >= u->n || u->items[child].next <= x.next)
			break;
		u->items[i] = u->items[child];
		i = child;
	}
	u->items[i] = x;
}

/* next[i]: the ask after i for the same expert, SIZE_MAX = never. last: scratch, [numbers]. */
static void find_next(const struct iod_routing *r, size_t *next, size_t *last)
{
	for (size_t i = 0; i < n_numbers(r); i++)
		last[i] = SIZE_MAX;
	for (size_t i = r->n; i-- > 0;) {
		next[i] = last[r->asks[i].number];
		last[r->asks[i].number] = i;
	}
}

int iod_replay_belady(const struct iod_replay_want *want, struct iod_replay *ret)
{
	const struct iod_routing *r = want->routing;
	CLEANUP(freep) size_t *next = calloc(r->n, sizeof(*next));
	/* 0: not in a slot; else its next use, SIZE_MAX when there is none */
	CLEANUP(freep) size_t *held = calloc(n_numbers(r), sizeof(*held));
	CLEANUP(freep) struct use_of *items = calloc(r->n + 1, sizeof(*items));
	struct uses uses = { .items = items };
	uint32_t n_used = 0;

	if (!next || !held || !items)
		return -ENOMEM;
	*ret = (struct iod_replay){ 0 };
	find_next(r, next, held);
	for (size_t i = 0; i < n_numbers(r); i++)
		held[i] = 0;
	for (size_t i = 0; i < r->n; i++) {
		uint32_t number = r->asks[i].number;

		count(ret, want, &r->asks[i], held[number] > 0);
		if (held[number] == 0 && n_used == want->n_slots) {
			while (held[uses.items[0].number] != uses.items[0].next)
				uses_pop(&uses);
			if (uses.items[0].next <= next[i])
				continue;
			held[uses.items[0].number] = 0;
			uses_pop(&uses);
			n_used--;
		}
		n_used += held[number] == 0;
		held[number] = next[i];
		uses_push(&uses, (struct use_of){ .next = next[i], .number = number });
	}
	return 0;
}
