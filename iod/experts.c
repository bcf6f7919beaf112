#include "iod/experts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "iod/client.h"
#include "iod/daemon.h"
#include "iod/expert_check.h"
#include "iod/journal.h"
#include "iod/needs.h"
#include "shared/attr.h"
#include "shared/must.h"

static void iod_experts_freep(struct iod_experts **x)
{
	*x = iod_experts_free(*x);
}

int iod_experts_new(struct iod_experts **ret, struct iod_daemon *d,
		    const struct iod_policy_class *policy_class)
{
	CLEANUP(iod_experts_freep) struct iod_experts *x = calloc(1, sizeof(*x));
	struct iod_policy_shape shape = {
		.n_slots = d->plan.n_slots,
		.n_layers = d->source->n_experts
				    ? d->source->n_experts / d->source->config.n_experts
				    : 0,
		.n_experts = d->source->n_experts,
	};

	if (!x)
		return -ENOMEM;
	x->daemon = d;
	x->policy_class = policy_class;
	x->n_slots = x->n_empty = d->plan.n_slots;
	x->policy = policy_class->new (&shape);
	x->slots = calloc((size_t)x->n_slots + 1, sizeof(*x->slots));
	x->slot_of = calloc((size_t)d->source->n_experts + 1, sizeof(*x->slot_of));
	x->needs = calloc((size_t)d->source->n_experts + 1, sizeof(*x->needs));
	if (!x->policy || !x->slots || !x->slot_of || !x->needs)
		return -ENOMEM;
	for (uint32_t i = 0; i < x->n_slots; i++) {
		x->slots[i].experts = x;
		x->slots[i].index = i;
		list_init(&x->slots[i].refs);
		list_init(&x->slots[i].read.link);
	}
	*ret = TAKE(x);
	return 0;
}

struct iod_experts *iod_experts_free(struct iod_experts *x)
{
	if (!x)
		return NULL;
	if (x->policy)
		x->policy_class->free(x->policy);
	free(x->needs);
	free(x->slot_of);
	free(x->slots);
	free(x);
	return NULL;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static uint32_t *slot_of(struct iod_experts *x, uint32_t layer, uint32_t expert)
{
	return &x->slot_of[iod_expert_number(x, layer, expert)];
}

static struct iod_slot *find_slot(struct iod_experts *x, uint32_t layer, uint32_t expert)
{
	uint32_t number = *slot_of(x, layer, expert);

	return number ? &x->slots[number - 1] : NULL;
}

static struct slab_entry *entry_of(const struct iod_slot *slot)
{
	return &slot->experts->daemon->slab->slots[slot->index];
}

/* Held by refs, or loading without any: keep the two counts right around a change of refs. */
static void attach(struct iod_slot *slot, struct iod_expert_ref *ref, enum iod_ref_state state)
{
	struct iod_experts *x = slot->experts;

	if (list_is_empty(&slot->refs)) {
		x->n_held++;
		if (slot->state == SLAB_LOADING)
			x->n_loading--;
	}
	must(ref->state == IOD_REF_WAITING);
	iod_need_of(x, ref->layer, ref->expert)->asked--;
	list_remove(&ref->link);
	list_push_tail(&slot->refs, &ref->link);
	ref->slot = slot;
	ref->state = state;
	ref->client->experts.n_held++;
	if (state == IOD_REF_LEASED)
		x->daemon->metrics.expert_leases++;
}

/* Give a ref back to its client's free list, whatever state it is in. */
static void release(struct iod_expert_ref *ref)
{
	struct iod_slot *slot = ref->slot;

	if (ref->state == IOD_REF_WAITING)
		iod_need_of(ref->client->daemon->experts, ref->layer, ref->expert)->asked--;
	list_remove(&ref->link);
	list_push_tail(&ref->client->experts.free, &ref->link);
	if (ref->state == IOD_REF_LEASED)
		slot->experts->daemon->metrics.expert_leases--;
	ref->state = IOD_REF_FREE;
	ref->slot = NULL;
	if (!slot)
		return;
	ref->client->experts.n_held--;
	if (list_is_empty(&slot->refs)) {
		slot->experts->n_held--;
		if (slot->state == SLAB_LOADING)
			slot->experts->n_loading++;
	}
}

static void empty_slot(struct iod_slot *slot)
{
	struct iod_experts *x = slot->experts;

	*slot_of(x, slot->layer, slot->expert) = 0;
	entry_of(slot)->id = UINT32_MAX;
	slot->state = SLAB_EMPTY;
	slot->is_hint = false;
	x->n_empty++;
	if (slot->index < x->next_empty)
		x->next_empty = slot->index;
}

static void evict(struct iod_slot *slot)
{
	struct iod_experts *x = slot->experts;

	must(slot->state == SLAB_READY && list_is_empty(&slot->refs));
	/* the generation rises before a byte changes */
	slab_entry_invalidate(entry_of(slot));
	x->policy_class->remove(x->policy, slot->index);
	x->daemon->metrics.experts_evicted++;
	x->daemon->metrics.experts_resident--;
	empty_slot(slot);
}

/* What may be evicted. */
enum evictable { EVICT_UNNEEDED, EVICT_HINTED, EVICT_ASKED };

struct eviction {
	struct iod_experts *experts;
	enum evictable most;
};

static bool may_evict(void *data, uint32_t index)
{
	const struct eviction *e = data;
	const struct iod_slot *slot = &e->experts->slots[index];
	const struct iod_need *need;

	if (slot->state != SLAB_READY || !list_is_empty(&slot->refs))
		return false;
	need = iod_need_of(e->experts, slot->layer, slot->expert);
	return (need->asked == 0 || e->most >= EVICT_ASKED) &&
	       (need->hinted == 0 || e->most >= EVICT_HINTED);
}

/* An EMPTY slot, if need be by evicting; NULL when there is nothing that may be evicted. */
static struct iod_slot *take_slot(struct iod_experts *x, enum evictable most)
{
	struct eviction e = { .experts = x };
	uint32_t victim = UINT32_MAX;

	if (x->n_empty > 0) {
		while (x->slots[x->next_empty].state != SLAB_EMPTY)
			x->next_empty++;
		return &x->slots[x->next_empty];
	}
	for (; e.most <= most && victim == UINT32_MAX; e.most++)
		victim = x->policy_class->victim(x->policy, may_evict, &e);
	if (victim == UINT32_MAX)
		return NULL;
	evict(&x->slots[victim]);
	return &x->slots[victim];
}

static void send_ready(struct iod_expert_ref *ref, uint64_t bytes_read)
{
	struct iod_slot *slot = ref->slot;
	struct iod_daemon *d = slot->experts->daemon;
	const struct source_expert *e = source_expert(d->source, slot->layer, slot->expert);
	struct proto_message m = { .type = PROTO_EXPERT_READY };

	must(e);
	m.body.expert_ready = (struct wire_expert_ready){
		.layer = slot->layer,
		.expert = slot->expert,
		.step = ref->step,
		.slot = slot->index,
		.generation =
			atomic_load_explicit(&entry_of(slot)->generation, memory_order_relaxed),
		.offset = entry_of(slot)->offset,
		.bytes_read = bytes_read,
	};
	memcpy(m.body.expert_ready.part_off, e->part_off, sizeof(e->part_off));
	d->metrics.experts_served++;
	iod_client_send(ref->client, &m);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void land(struct iod_slot *slot, uint64_t bytes_read)
{
	struct iod_experts *x = slot->experts;
	struct list *at, *next;

	slot->state = SLAB_READY;
	/* pairs with the client's acquire of the message: bytes come first */
	atomic_store_explicit(&entry_of(slot)->state, SLAB_READY, memory_order_release);
	x->daemon->metrics.experts_resident++;
	list_foreach_safe (at, next, &slot->refs) {
		struct iod_expert_ref *ref = list_entry(at, struct iod_expert_ref, link);

		ref->state = IOD_REF_LEASED;
		x->daemon->metrics.expert_leases++;
		send_ready(ref, ref->is_first ? bytes_read : 0);
	}
}

static void fail(struct iod_slot *slot, const struct err *err)
{
	struct list *at, *next;
	uint32_t layer = slot->layer, expert = slot->expert;

	atomic_store_explicit(&entry_of(slot)->state, SLAB_EMPTY, memory_order_release);
	if (iod_daemon_may_complain(slot->experts->daemon))
		iod_event_log(LOG_LEVEL_WARNING, IOD_EVENT_READ_FAILED, NULL, "%s", err->text);
	list_foreach_safe (at, next, &slot->refs) {
		struct iod_expert_ref *ref = list_entry(at, struct iod_expert_ref, link);
		struct iod_client *c = ref->client;

		release(ref);
		iod_client_send_error(c, err, PROTO_EXPERTS, layer, expert);
	}
	slot->experts->policy_class->remove(slot->experts->policy, slot->index);
	slot->experts->n_loading--;
	empty_slot(slot);
}

static void on_read(struct iod_read *r, int result);

static void submit(struct iod_slot *slot, enum iod_read_class class)
{
	struct iod_daemon *d = slot->experts->daemon;
	const struct source_expert *e = source_expert(d->source, slot->layer, slot->expert);

	must(e);
	slot->read = (struct iod_read){
		.class = class,
		.segments = d->source->segments + e->first_segment,
		.n_segments = e->n_segments,
		.dst = d->slab->base + entry_of(slot)->offset,
		.dst_size = d->plan.slot_size,
		.done = on_read,
		.data = slot,
	};
	list_init(&slot->read.link);
	iod_reader_submit(d->reader, &slot->read);
}

/* 0, an error, or 1: the bytes did not have their checksum, they are read once more. */
static int check(struct iod_slot *slot, struct err *err)
{
	struct iod_daemon *d = slot->experts->daemon;
	int r = iod_checks_expert(&d->checks, slot->layer, slot->expert, slot->read.dst, err);

	if (r < 0 && !slot->is_again) {
		iod_checks_tell_again(&d->checks, err);
		slot->is_again = true;
		submit(slot, slot->read.class);
		return 1;
	}
	return r < 0 ? r
		     : iod_expert_check(d->source, slot->layer, slot->expert, slot->read.dst, err);
}

static void on_read(struct iod_read *r, int result)
{
	struct iod_slot *slot = r->data;
	struct iod_experts *x = slot->experts;
	struct iod_daemon *d = x->daemon;
	struct err err = { 0 };

	must(slot->state == SLAB_LOADING);
	d->metrics.expert_bytes_read += r->bytes_read;
	if (result == 0)
		result = check(slot, &err);
	else
		iod_expert_describe_failure(d->source, slot->layer, slot->expert, r, result, &err);
	if (result > 0)
		return;
	d->metrics.experts_read++;
	if (slot->is_hint)
		x->has_hint_under_way = false;
	if (result < 0) {
		fail(slot, &err);
	} else {
		if (list_is_empty(&slot->refs))
			x->n_loading--;
		land(slot, r->bytes_read);
	}
	slot->is_hint = false;
	iod_daemon_wake(d);
}

static void start_read(struct iod_slot *slot, uint32_t layer, uint32_t expert,
		       enum iod_read_class class)
{
	struct iod_experts *x = slot->experts;
	struct slab_entry *entry = entry_of(slot);

	must(slot->state == SLAB_EMPTY);
	slot->state = SLAB_LOADING;
	slot->layer = layer;
	slot->expert = expert;
	slot->is_hint = class == IOD_READ_HINT;
	slot->is_again = false;
	*slot_of(x, layer, expert) = slot->index + 1;
	x->n_empty--;
	x->n_loading++;
	/* now, not when it lands: the order of landing leaves no trace in what is evicted */
	x->policy_class->admit(x->policy, slot->index, iod_expert_turn(x, layer),
			       iod_expert_number(x, layer, expert));
	entry->layer = layer;
	entry->id = expert;
	atomic_store_explicit(&entry->state, SLAB_LOADING, memory_order_relaxed);
	submit(slot, class);
}

/* ---- serving --------------------------------------------------------------------------------- */

static void serve_resident(struct iod_slot *slot, struct iod_expert_ref *ref)
{
	struct iod_experts *x = slot->experts;

	attach(slot, ref, IOD_REF_LEASED);
	x->policy_class->touch(x->policy, slot->index);
	x->daemon->metrics.experts_hit++;
	send_ready(ref, 0);
}

/* The client's first waiting ref whose expert is there, and may be leased. */
static struct iod_expert_ref *find_resident(struct iod_experts *x, struct iod_client *c)
{
	struct list *at;

	list_foreach (at, &c->experts.waiting) {
		struct iod_expert_ref *ref = list_entry(at, struct iod_expert_ref, link);
		struct iod_slot *slot = find_slot(x, ref->layer, ref->expert);

		if (slot && slot->state == SLAB_READY &&
		    iod_quota_may_hold_slot(c, !list_is_empty(&slot->refs)))
			return ref;
	}
	return NULL;
}

/* Its expert is in no slot. false: it has to wait on. */
static bool serve_missing(struct iod_experts *x, struct iod_expert_ref *ref)
{
	struct iod_client *c = ref->client;
	struct iod_slot *slot = take_slot(x, EVICT_HINTED);

	if (!slot) {
		/* All are held, or announced: what of it is this client's frees them. */
		struct iod_expert_ref *other = find_resident(x, c);

		if (other) {
			serve_resident(find_slot(x, other->layer, other->expert), other);
			return true;
		}
		/* A client that has stopped must not hold up this one with what it asked for. */
		if (c->experts.n_held < IOD_PROMISED_EXPERTS)
			slot = take_slot(x, EVICT_ASKED);
	}
	if (!slot)
		return false;
	ref->is_first = true;
	start_read(slot, ref->layer, ref->expert, IOD_READ_DEMAND);
	attach(slot, ref, IOD_REF_ATTACHED);
	return true;
}

/* Serve one waiting ref, or another of its client instead; false when it has to wait on. */
static bool serve(struct iod_experts *x, struct iod_expert_ref *ref)
{
	struct iod_daemon *d = x->daemon;
	struct iod_slot *slot = find_slot(x, ref->layer, ref->expert);

	if (!iod_quota_may_hold_slot(ref->client, slot && !list_is_empty(&slot->refs)))
		return false;
	if (slot && slot->state == SLAB_READY) {
		serve_resident(slot, ref);
		return true;
	}
	if (slot) {
		if (list_is_empty(&slot->refs))
			ref->is_first = true; /* a hint's read becomes this client's */
		else
			d->metrics.experts_shared++;
		attach(slot, ref, IOD_REF_ATTACHED);
		if (slot->is_hint) {
			slot->is_hint = false;
			x->has_hint_under_way = false;
			iod_reader_promote(d->reader, &slot->read, IOD_READ_DEMAND);
		}
		return true;
	}
	return serve_missing(x, ref);
}

/* One request of one client; false when it has none that can be served now. */
static bool serve_client(struct iod_experts *x, struct iod_client *c)
{
	if (c->state != IOD_CLIENT_OPEN || list_is_empty(&c->experts.waiting))
		return false;
	return serve(x, list_entry(c->experts.waiting.next, struct iod_expert_ref, link));
}

static void pump_demand(struct iod_experts *x)
{
	struct iod_daemon *d = x->daemon;
	bool any;

	/* in turn, one request each, so that a long list of one does not delay the others */
	do {
		struct list *at, *next;

		any = false;
		list_foreach_safe (at, next, &d->clients)
			if (serve_client(x, list_entry(at, struct iod_client, link)))
				any = true;
	} while (any);
}

/* The next hinted expert of any client that is not there; false: none. */
static bool next_hint(struct iod_experts *x, uint32_t *ret_layer, uint32_t *ret_expert)
{
	struct list *at;

	list_foreach (at, &x->daemon->clients) {
		struct iod_expert_refs *e = &list_entry(at, struct iod_client, link)->experts;

		while (e->next_hint < e->n_hints) {
			uint32_t expert = e->hints[e->next_hint++];
			struct iod_slot *slot = find_slot(x, e->hints_layer, expert);

			if (slot && slot->state == SLAB_READY)
				x->policy_class->touch(x->policy, slot->index);
			if (slot)
				continue;
			*ret_layer = e->hints_layer;
			*ret_expert = expert;
			return true;
		}
	}
	return false;
}

/* One at a time, when neither demands nor the trunk keep the disks busy. */
static void pump_hints(struct iod_experts *x)
{
	uint32_t layer, expert;
	struct iod_slot *slot;

	if (x->has_hint_under_way || !iod_reader_is_idle(x->daemon->reader, IOD_READ_TRUNK) ||
	    !iod_quota_may_hint(x->daemon) || !next_hint(x, &layer, &expert))
		return;
	slot = take_slot(x, EVICT_UNNEEDED);
	if (!slot)
		return;
	x->has_hint_under_way = true;
	x->daemon->metrics.hints_read++;
	start_read(slot, layer, expert, IOD_READ_HINT);
}

void iod_experts_pump(struct iod_daemon *d)
{
	pump_demand(d->experts);
	pump_hints(d->experts);
}

/* ---- requests -------------------------------------------------------------------------------- */

static int check_ids(const struct iod_client *c, const char *name, const struct wire_experts *m,
		     struct err *err)
{
	const struct source *s = c->daemon->source;

	for (uint32_t i = 0; i < m->n; i++)
		if (!source_expert(s, m->layer, m->ids[i]))
			return err_set(err, ERR_PROTOCOL, "%s: layer %u has no routed expert %u",
				       name, m->layer, m->ids[i]);
	return 0;
}

/* Beyond what WELCOME promised: the others are served, this one may be asked for again. */
static void refuse(struct iod_client *c, uint32_t layer, uint32_t expert)
{
	struct err err = { 0 };

	(void)err_set(&err, ERR_BUSY,
		      "EXPERTS: more than the window of %u experts asked for and not done",
		      c->experts.window);
	c->daemon->metrics.requests_refused++;
	iod_client_send_error(c, &err, PROTO_EXPERTS, layer, expert);
}

int iod_experts_ask(struct iod_client *c, const struct wire_experts *m, struct err *err)
{
	struct iod_expert_refs *e = &c->experts;
	int r = check_ids(c, "EXPERTS", m, err);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < m->n; i++) {
		struct iod_expert_ref *ref;

		if (list_is_empty(&e->free)) {
			refuse(c, m->layer, m->ids[i]);
			continue;
		}
		ref = list_entry(e->free.next, struct iod_expert_ref, link);
		ref->state = IOD_REF_WAITING;
		ref->layer = m->layer;
		ref->expert = m->ids[i];
		ref->step = m->step;
		ref->is_first = false;
		list_remove(&ref->link);
		list_push_tail(&e->waiting, &ref->link);
		iod_needs_ask(c, m->layer, m->ids[i]);
	}
	return 0;
}

int iod_experts_done(struct iod_client *c, const struct wire_expert_done *m, struct err *err)
{
	struct iod_experts *x = c->daemon->experts;
	struct list *at;

	if (m->slot >= x->n_slots)
		return err_set(err, ERR_PROTOCOL, "EXPERT_DONE: slot %u of %u", m->slot,
			       x->n_slots);
	list_foreach (at, &x->slots[m->slot].refs) {
		struct iod_expert_ref *ref = list_entry(at, struct iod_expert_ref, link);

		if (ref->client != c || ref->state != IOD_REF_LEASED || ref->layer != m->layer ||
		    ref->expert != m->expert)
			continue;
		release(ref);
		return 0;
	}
	return err_set(err, ERR_PROTOCOL,
		       "EXPERT_DONE: expert %u of layer %u in slot %u is not leased to this "
		       "client",
		       m->expert, m->layer, m->slot);
}

int iod_experts_hint(struct iod_client *c, const struct wire_experts *m, struct err *err)
{
	int r = check_ids(c, "HINT", m, err);

	if (r < 0)
		return r;
	iod_needs_hint(c, m);
	return 0;
}

void iod_experts_end(struct iod_client *c)
{
	struct iod_expert_refs *e = &c->experts;

	for (uint32_t i = 0; i < e->window; i++)
		if (e->refs[i].state != IOD_REF_FREE)
			release(&e->refs[i]);
	iod_needs_end(c);
}
