/*
 * Slots that an earlier daemon filled. A READY one goes on as if this daemon had filled it, and
 * counts as used once. Into a LOADING one that daemon's read may still land: it is neither EMPTY
 * nor any expert's, and becomes EMPTY when all its reads have landed.
 */
#include "iod/daemon.h"
#include "iod/experts.h"
#include "iod/needs.h"
#include "shared/must.h"

static void keep_ready(struct iod_slot *slot, struct iod_policy_client *who)
{
	struct iod_experts *x = slot->experts;
	uint32_t number = iod_expert_number(x, slot->layer, slot->expert);

	slot->state = SLAB_READY;
	x->slot_of[number] = slot->index + 1;
	x->n_empty--;
	x->daemon->metrics.experts_resident++;
	x->policy_class->ask(x->policy, who, iod_expert_turn(x, slot->layer), number);
	x->policy_class->admit(x->policy, slot->index, iod_expert_turn(x, slot->layer), number);
}

void iod_experts_adopt(struct iod_experts *x, struct iod_kept *ret)
{
	struct iod_policy_client who = { 0 };

	x->policy_class->begin(x->policy, &who);
	for (uint32_t i = 0; i < x->n_slots; i++) {
		const struct slab_entry *e = &x->daemon->slab->slots[i];
		struct iod_slot *slot = &x->slots[i];
		uint32_t state = atomic_load_explicit(&e->state, memory_order_relaxed);

		if (state == SLAB_EMPTY)
			continue;
		slot->layer = e->layer;
		slot->expert = e->id;
		if (state == SLAB_READY) {
			keep_ready(slot, &who);
			ret->n_ready++;
			continue;
		}
		slot->state = SLAB_LOADING;
		slot->is_foreign = true;
		x->n_empty--;
		x->n_loading++;
		ret->n_loading++;
	}
	x->policy_class->leave(x->policy, &who);
}

void iod_experts_settle(struct iod_experts *x)
{
	for (uint32_t i = 0; i < x->n_slots; i++) {
		struct iod_slot *slot = &x->slots[i];
		struct slab_entry *e = &x->daemon->slab->slots[i];

		if (!slot->is_foreign)
			continue;
		must(slot->state == SLAB_LOADING && list_is_empty(&slot->refs));
		slab_entry_invalidate(e);
		e->id = UINT32_MAX;
		slot->is_foreign = false;
		slot->state = SLAB_EMPTY;
		x->n_loading--;
		x->n_empty++;
		if (i < x->next_empty)
			x->next_empty = i;
	}
}
