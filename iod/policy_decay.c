/*
 * Evict what is asked for least, recent steps counting most.
 *
 * Time is counted in steps. Each expert, resident or not, has two counts of the times it was asked
 * for: `fast` halves with every step, `slow` every 64 steps. Its worth is fast + slow / 20: what
 * was used in the last steps stays a little, what is used all the time stays through sweeps that
 * use anything else, and an expert that came once is the first to go (every expert asked for must
 * pass through a slot; leaving soon is what "not admitted" means here). Measured in
 * docs/decisions/0007-expert-cache.md.
 *
 * Worth is divided by the distance to the layer's next turn, because a slot kept for a near turn is
 * free again soon. Distances are those of the client that comes there first.
 *
 * Slots lie in one list a layer, ascending by worth as of the layer's last turn, when the list is
 * sorted anew; between turns of a layer nothing in it changes but the slots that are used. So a
 * victim is looked for at the heads of the lists only, past those that may not be evicted.
 */
#include "iod/policy.h"

#include <stdlib.h>

#include "shared/attr.h"

enum { SLOW_HALF_LIFE = 64 };
static const float slow_share = 1.0f / 20;

struct history {
	float fast, slow; /* as of step `at` */
	uint32_t at;
};

struct node {
	struct list link; /* in its layer's list */
	uint32_t layer, number;
	float worth;
};

struct turns {
	struct list slots; /* least worth first */
	uint64_t at;       /* the step of the worths */
};

struct iod_policy {
	struct iod_policy_shape shape;
	uint64_t clock; /* steps of the client that is fastest */
	struct list clients;
	struct turns *layers;        /* [n_layers] */
	struct history *history;     /* [n_experts] */
	float decay[SLOW_HALF_LIFE]; /* of slow, after so many steps */
	struct node nodes[];         /* [n_slots] */
};

static struct iod_policy *decay_free(struct iod_policy *p)
{
	if (!p)
		return NULL;
	free(p->history);
	free(p->layers);
	free(p);
	return NULL;
}

static void decay_freep(struct iod_policy **p)
{
	*p = decay_free(*p);
}

static struct iod_policy *decay_new(const struct iod_policy_shape *shape)
{
	/* 2^(-1/64), by multiplication alone: the same bits everywhere */
	const float root = 0.98922801f;
	CLEANUP(decay_freep)
	struct iod_policy *p = calloc(1, sizeof(*p) + shape->n_slots * sizeof(struct node));

	if (!p)
		return NULL;
	p->shape = *shape;
	list_init(&p->clients);
	p->layers = calloc((size_t)shape->n_layers + 1, sizeof(*p->layers));
	p->history = calloc((size_t)shape->n_experts + 1, sizeof(*p->history));
	if (!p->layers || !p->history)
		return NULL;
	for (uint32_t i = 0; i < shape->n_layers; i++)
		list_init(&p->layers[i].slots);
	for (uint32_t i = 0; i < shape->n_slots; i++)
		list_init(&p->nodes[i].link);
	p->decay[0] = 1;
	for (uint32_t i = 1; i < SLOW_HALF_LIFE; i++)
		p->decay[i] = p->decay[i - 1] * root;
	return TAKE(p);
}

/* Bring an expert's counts to the step `now`. */
static void age(const struct iod_policy *p, struct history *h, uint64_t now)
{
	uint32_t steps = (uint32_t)now - h->at;

	h->fast *= steps < 64 ? 1.0f / (float)(1ull << steps) : 0;
	for (uint32_t i = steps / SLOW_HALF_LIFE; i > 0 && h->slow > 0; i--)
		h->slow /= 2;
	h->slow *= p->decay[steps % SLOW_HALF_LIFE];
	h->at = (uint32_t)now;
}

/* Where it belongs in its layer's list; equals lie in the order in which they came. Searched from
 * the end: most of what is placed was just used. */
static void place(struct iod_policy *p, struct node *n)
{
	struct turns *layer = &p->layers[n->layer];
	struct history *h = &p->history[n->number];
	struct list *at = layer->slots.prev;

	age(p, h, layer->at);
	n->worth = h->fast + h->slow * slow_share;
	while (at != &layer->slots && CONTAINER_OF(at, struct node, link)->worth > n->worth)
		at = at->prev;
	list_push_head(at, &n->link);
}

/* The layer's turn in a new step. Ageing leaves the order nearly as it is: an insertion sort. */
static void sort(struct iod_policy *p, struct turns *layer)
{
	struct list old, *at, *next;

	layer->at = p->clock;
	if (list_is_empty(&layer->slots))
		return;
	old = layer->slots;
	old.next->prev = old.prev->next = &old;
	list_init(&layer->slots);
	list_foreach_safe (at, next, &old)
		place(p, CONTAINER_OF(at, struct node, link));
}

static void decay_begin(struct iod_policy *p, struct iod_policy_client *who)
{
	/* Clients side by side share a step; one that is slower does not hold up the clock. */
	if (who->at == p->clock)
		p->clock++;
	who->at = p->clock;
}

static void decay_ask(struct iod_policy *p, struct iod_policy_client *who, uint32_t layer,
		      uint32_t number)
{
	struct history *h = &p->history[number];

	if (!who->link.next) {
		list_init(&who->link);
		list_push_tail(&p->clients, &who->link);
		who->at = p->clock;
	}
	who->layer = layer;
	if (p->layers[layer].at != p->clock)
		sort(p, &p->layers[layer]);
	age(p, h, p->clock);
	h->fast += 1;
	h->slow += 1;
}

static void decay_leave(struct iod_policy *p, struct iod_policy_client *who)
{
	(void)p;
	if (who->link.next)
		list_remove(&who->link);
	who->link.next = NULL;
}

static void decay_touch(struct iod_policy *p, uint32_t slot)
{
	list_remove(&p->nodes[slot].link);
	place(p, &p->nodes[slot]);
}

static void decay_admit(struct iod_policy *p, uint32_t slot, uint32_t layer, uint32_t number)
{
	p->nodes[slot].layer = layer;
	p->nodes[slot].number = number;
	place(p, &p->nodes[slot]);
}

static void decay_remove(struct iod_policy *p, uint32_t slot)
{
	list_remove(&p->nodes[slot].link);
}

/* Layers until a client comes to this one: 1 for the next, n_layers for the one it is in. Clients
 * that have not asked for a step or more do not count. */
static uint32_t distance(const struct iod_policy *p, uint32_t layer)
{
	uint32_t least = p->shape.n_layers;
	const struct list *at;

	list_foreach (at, &p->clients) {
		const struct iod_policy_client *c =
			CONTAINER_OF(at, const struct iod_policy_client, link);
		uint32_t d =
			layer > c->layer ? layer - c->layer : layer + p->shape.n_layers - c->layer;

		if (c->at + 1 >= p->clock && d < least)
			least = d;
	}
	return least;
}

static uint32_t decay_victim(const struct iod_policy *p, bool (*may)(void *data, uint32_t slot),
			     void *data)
{
	float least = 0;
	uint32_t victim = UINT32_MAX;
	const struct list *at;

	for (uint32_t l = 0; l < p->shape.n_layers; l++) {
		float scale = 1;

		if (!list_is_empty(&p->layers[l].slots))
			scale = (float)distance(p, l);
		list_foreach (at, &p->layers[l].slots) {
			const struct node *n = CONTAINER_OF(at, const struct node, link);
			uint32_t slot = (uint32_t)(n - p->nodes);

			if (victim != UINT32_MAX && n->worth / scale >= least)
				break;
			if (!may(data, slot))
				continue;
			least = n->worth / scale;
			victim = slot;
			break;
		}
	}
	return victim;
}

const struct iod_policy_class iod_policy_decay = {
	.name = "decay",
	.new = decay_new,
	.free = decay_free,
	.begin = decay_begin,
	.ask = decay_ask,
	.leave = decay_leave,
	.admit = decay_admit,
	.touch = decay_touch,
	.remove = decay_remove,
	.victim = decay_victim,
};
