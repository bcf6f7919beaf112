#include "iod/needs.h"

#include <string.h>

#include "iod/client.h"
#include "iod/daemon.h"
#include "iod/record.h"

static_assert((int)IOD_QUOTA_CLIENTS * (int)IOD_QUOTA_EXPERTS <= UINT16_MAX, "asked fits");

uint32_t iod_expert_number(const struct iod_experts *x, uint32_t layer, uint32_t expert)
{
	return x->daemon->source->expert_base[layer] + expert;
}

uint32_t iod_expert_turn(const struct iod_experts *x, uint32_t layer)
{
	const struct source *s = x->daemon->source;

	return s->expert_base[layer] / s->config.n_experts;
}

struct iod_need *iod_need_of(struct iod_experts *x, uint32_t layer, uint32_t expert)
{
	return &x->needs[iod_expert_number(x, layer, expert)];
}

static void forget_hint(struct iod_client *c, uint32_t i)
{
	struct iod_expert_refs *e = &c->experts;

	iod_need_of(c->daemon->experts, e->hints_layer, e->hints[i])->hinted--;
	e->n_hints--;
	memmove(e->hints + i, e->hints + i + 1, (e->n_hints - i) * sizeof(*e->hints));
	if (i < e->next_hint)
		e->next_hint--;
}

static void forget_hints(struct iod_client *c)
{
	while (c->experts.n_hints > 0)
		forget_hint(c, c->experts.n_hints - 1);
}

/* Layers ascend within a step; the next begins with a lower one, or, where only one layer has
 * experts, with a new sweep. */
static bool begins_step(const struct iod_client *c, uint32_t layer)
{
	const struct iod_expert_refs *e = &c->experts;

	return !e->has_asked || layer < e->last_layer ||
	       (layer == e->last_layer && c->sweep.number != e->last_sweep);
}

void iod_needs_ask(struct iod_client *c, uint32_t layer, uint32_t expert)
{
	struct iod_expert_refs *e = &c->experts;
	struct iod_experts *x = c->daemon->experts;

	if (begins_step(c, layer)) {
		x->policy_class->begin(x->policy, &e->policy);
		iod_record_begin(c->daemon->recorder, c);
	}
	e->has_asked = true;
	e->last_layer = layer;
	e->last_sweep = c->sweep.number;
	x->policy_class->ask(x->policy, &e->policy, iod_expert_turn(x, layer),
			     iod_expert_number(x, layer, expert));
	iod_record_ask(c->daemon->recorder, c, iod_expert_number(x, layer, expert));
	iod_need_of(x, layer, expert)->asked++;
	for (uint32_t i = e->n_hints; layer == e->hints_layer && i-- > 0;)
		if (e->hints[i] == expert)
			forget_hint(c, i);
}

void iod_needs_hint(struct iod_client *c, const struct wire_experts *m)
{
	struct iod_expert_refs *e = &c->experts;

	static_assert((int)PROTO_EXPERTS_MAX <= (int)IOD_QUOTA_HINTS, "a HINT fits");
	forget_hints(c);
	e->hints_layer = m->layer;
	e->n_hints = m->n < c->max_hints ? m->n : c->max_hints;
	e->next_hint = 0;
	memcpy(e->hints, m->ids, e->n_hints * sizeof(*m->ids));
	for (uint32_t i = 0; i < e->n_hints; i++)
		iod_need_of(c->daemon->experts, m->layer, m->ids[i])->hinted++;
}

void iod_needs_end(struct iod_client *c)
{
	struct iod_experts *x = c->daemon->experts;

	forget_hints(c);
	x->policy_class->leave(x->policy, &c->experts.policy);
	iod_record_end(c->daemon->recorder, c);
}
