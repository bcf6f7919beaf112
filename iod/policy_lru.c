/* Evict what was used least recently. */
#include "iod/policy.h"

#include <stdlib.h>

#include "shared/list.h"

struct node {
	struct list link;
};

struct iod_policy {
	struct list order; /* least recently used first */
	struct node nodes[];
};

static struct iod_policy *lru_new(const struct iod_policy_shape *shape)
{
	struct iod_policy *p = malloc(sizeof(*p) + shape->n_slots * sizeof(struct node));

	if (!p)
		return NULL;
	list_init(&p->order);
	for (uint32_t i = 0; i < shape->n_slots; i++)
		list_init(&p->nodes[i].link);
	return p;
}

static struct iod_policy *lru_free(struct iod_policy *p)
{
	free(p);
	return NULL;
}

static void lru_begin(struct iod_policy *p, struct iod_policy_client *who)
{
	(void)p;
	(void)who;
}

static void lru_ask(struct iod_policy *p, struct iod_policy_client *who, uint32_t layer,
		    uint32_t number)
{
	(void)p;
	(void)who;
	(void)layer;
	(void)number;
}

static void lru_touch(struct iod_policy *p, uint32_t slot)
{
	list_remove(&p->nodes[slot].link);
	list_push_tail(&p->order, &p->nodes[slot].link);
}

static void lru_admit(struct iod_policy *p, uint32_t slot, uint32_t layer, uint32_t number)
{
	(void)layer;
	(void)number;
	lru_touch(p, slot);
}

static void lru_remove(struct iod_policy *p, uint32_t slot)
{
	list_remove(&p->nodes[slot].link);
}

static uint32_t lru_victim(const struct iod_policy *p, bool (*may)(void *data, uint32_t slot),
			   void *data)
{
	const struct list *at;

	list_foreach (at, &p->order) {
		uint32_t slot = (uint32_t)((const struct node *)(const void *)at - p->nodes);

		if (may(data, slot))
			return slot;
	}
	return UINT32_MAX;
}

const struct iod_policy_class iod_policy_lru = {
	.name = "lru",
	.new = lru_new,
	.free = lru_free,
	.begin = lru_begin,
	.ask = lru_ask,
	.leave = lru_begin,
	.admit = lru_admit,
	.touch = lru_touch,
	.remove = lru_remove,
	.victim = lru_victim,
};
