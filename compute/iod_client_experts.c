/*
 * Routed experts: a queue of wanted ones, sent to the daemon as far as its window allows, and a
 * table of those that are under way or in our hands. Order of asking is the caller's order; order
 * of landing is the disk's; of several that have landed the lowest id is given out first, so that
 * the caller seldom keeps a contribution until its turn.
 */
#include "compute/iod_client_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "shared/must.h"

static int by_layer_and_id(const void *a, const void *b)
{
	const struct wanted_expert *x = a, *y = b;

	if (x->layer != y->layer)
		return x->layer < y->layer ? -1 : 1;
	return (x->expert > y->expert) - (x->expert < y->expert);
}

/* The queue with what was asked of an earlier connection before it: nothing of that will come. */
static int requeue_asked(struct iod_experts *x, size_t least)
{
	size_t n = 0, n_queued = x->tail - x->head;
	struct wanted_expert *queue = calloc(x->n_asked + n_queued + least, sizeof(*queue));

	if (!queue)
		return -ENOMEM;
	for (uint32_t i = 0; x->asked && i < x->window; i++)
		if (x->asked[i].state != ASKED_FREE)
			queue[n++] = (struct wanted_expert){ x->asked[i].layer,
							     (uint16_t)x->asked[i].expert };
	qsort(queue, n, sizeof(*queue), by_layer_and_id);
	if (n_queued > 0)
		memcpy(queue + n, x->queue + x->head, n_queued * sizeof(*queue));
	free(x->queue);
	x->queue = queue;
	x->capacity = x->n_asked + n_queued + least;
	x->head = 0;
	x->tail = n + n_queued;
	x->n_asked = 0;
	return 0;
}

int k3_iod_experts_init(struct k3_iod *c, struct err *err)
{
	const struct catalog_header *h = c->catalog.header;
	struct iod_experts *x = &c->experts;
	int r = requeue_asked(x, (size_t)h->n_experts + 1);

	for (int i = 0; i < EXPERT_PARTS; i++)
		x->part_size[i] = (uint64_t)h->expert_rows[i] * h->expert_cols[i];
	free(x->asked);
	x->window = c->welcome.expert_window;
	if (x->window > h->n_experts)
		x->window = h->n_experts; /* more are never wanted at once */
	x->asked = calloc((size_t)x->window + 1, sizeof(*x->asked));
	if (!x->asked || r < 0)
		return err_set(err, ERR_NO_MEMORY, "no memory for the expert window");
	return 0;
}

void k3_iod_experts_deinit(struct k3_iod *c)
{
	free(c->experts.queue);
	free(c->experts.asked);
	c->experts.queue = NULL;
	c->experts.asked = NULL;
}

static struct asked_expert *find_asked(struct iod_experts *x, uint32_t layer, uint32_t expert)
{
	for (uint32_t i = 0; i < x->window; i++) {
		struct asked_expert *a = &x->asked[i];

		if (a->state != ASKED_FREE && a->layer == layer && a->expert == expert)
			return a;
	}
	return NULL;
}

static struct asked_expert *find_free(struct iod_experts *x)
{
	for (uint32_t i = 0; i < x->window; i++)
		if (x->asked[i].state == ASKED_FREE)
			return &x->asked[i];
	return NULL;
}

static void forget(struct iod_experts *x, struct asked_expert *a)
{
	a->state = ASKED_FREE;
	x->n_asked--;
}

/* The numbers of an EXPERT_READY that the decoder cannot know. */
static int check_ready(struct k3_iod *c, const struct wire_expert_ready *m, struct err *err)
{
	uint64_t size = c->slab->header.slot_size;
	const char *wrong = NULL;

	if (m->slot >= c->slab->header.n_slots)
		wrong = "slot";
	else if (m->offset % SLAB_PAGE || !slab_range(c->slab, m->offset, size))
		wrong = "offset";
	for (int i = 0; i < EXPERT_PARTS && !wrong; i++)
		if (m->part_off[i] > size || c->experts.part_size[i] > size - m->part_off[i])
			wrong = "part_off";
	if (!wrong)
		return 0;
	return k3_iod_fail(c, err, ERR_PROTOCOL,
			   "EXPERT_READY for layer %" PRIu32 " expert %" PRIu32
			   ": %s lies outside the slab",
			   m->layer, m->expert, wrong);
}

int k3_iod_expert_ready(struct k3_iod *c, const struct wire_expert_ready *m, struct err *err)
{
	struct asked_expert *a = find_asked(&c->experts, m->layer, m->expert);
	int r;

	if (!a || a->state != ASKED_WAITING || a->step != m->step)
		return k3_iod_fail(c, err, ERR_PROTOCOL,
				   "EXPERT_READY for layer %" PRIu32 " expert %" PRIu32
				   ", which was not asked for",
				   m->layer, m->expert);
	r = check_ready(c, m, err);
	if (r < 0)
		return r;
	a->ready = *m;
	a->state = ASKED_LANDED;
	c->counts.expert_bytes_read += m->bytes_read;
	if (m->bytes_read > 0)
		c->counts.experts_read++;
	else
		c->counts.experts_resident++;
	return 0;
}

void k3_iod_expert_failed(struct k3_iod *c, uint32_t layer, uint32_t expert, enum err_code code,
			  const char *sentence)
{
	struct asked_expert *a = find_asked(&c->experts, layer, expert);

	if (a)
		forget(&c->experts, a);
	(void)err_set(&c->experts.error, code, "%s", sentence);
}

/* Ask for queued experts while the window has room. */
static int send_queued(struct k3_iod *c, struct err *err)
{
	struct iod_experts *x = &c->experts;

	while (x->head < x->tail && x->n_asked < x->window) {
		struct wire_experts m = { .layer = x->queue[x->head].layer, .step = ++x->step };
		int r;

		while (x->head < x->tail && x->n_asked < x->window && m.n < PROTO_EXPERTS_MAX &&
		       x->queue[x->head].layer == m.layer) {
			struct asked_expert *a = find_free(x);

			must(a);
			*a = (struct asked_expert){ .state = ASKED_WAITING,
						    .step = m.step,
						    .layer = m.layer,
						    .expert = x->queue[x->head].expert };
			m.ids[m.n++] = x->queue[x->head++].expert;
			x->n_asked++;
		}
		r = k3_iod_send(c, PROTO_EXPERTS, &m, err);
		if (r < 0)
			return r;
	}
	if (x->head == x->tail)
		x->head = x->tail = 0;
	return 0;
}

int k3_iod_experts_resume(struct k3_iod *c, struct err *err)
{
	return send_queued(c, err);
}

static int enqueue(struct iod_experts *x, uint32_t layer, const uint16_t *ids, size_t n,
		   struct err *err)
{
	struct wanted_expert *queue;

	if (x->head > 0) {
		memmove(x->queue, x->queue + x->head, (x->tail - x->head) * sizeof(*x->queue));
		x->tail -= x->head;
		x->head = 0;
	}
	if (n > x->capacity - x->tail) {
		queue = realloc(x->queue, (x->tail + n) * sizeof(*queue));
		if (!queue)
			return err_set(err, ERR_NO_MEMORY, "no memory for a list of experts");
		x->queue = queue;
		x->capacity = x->tail + n;
	}
	for (size_t i = 0; i < n; i++)
		x->queue[x->tail++] = (struct wanted_expert){ .layer = layer, .expert = ids[i] };
	return 0;
}

int k3_iod_experts(struct k3_iod *c, uint32_t layer, const uint16_t *ids, size_t n, struct err *err)
{
	int r = enqueue(&c->experts, layer, ids, n, err);

	return r < 0 ? r : send_queued(c, err);
}

static struct asked_expert *find_landed(const struct iod_experts *x)
{
	struct asked_expert *best = NULL;

	for (uint32_t i = 0; i < x->window; i++) {
		struct asked_expert *a = &x->asked[i];

		if (a->state != ASKED_LANDED)
			continue;
		if (!best || a->expert < best->expert)
			best = a;
	}
	return best;
}

bool k3_iod_expert_has_landed(const struct k3_iod *c)
{
	return find_landed(&c->experts) || c->experts.error.code != ERR_NONE;
}

int k3_iod_expert_next(struct k3_iod *c, bool wait, struct k3_expert *ret, struct err *err)
{
	struct iod_experts *x = &c->experts;
	struct asked_expert *a;
	int r;

	/* What lies in the socket first: it costs one call, and more to choose from. */
	do
		r = k3_iod_receive(c, false, NULL, err);
	while (r == 0);
	if (r < 0)
		return r;
	while (!(a = find_landed(x))) {
		if (x->error.code != ERR_NONE)
			return k3_iod_raise(&x->error, err);
		if (!wait || x->n_asked == 0)
			return K3_IOD_NONE;
		r = k3_iod_wait(c, "an expert", "wait for expert", "left", x->n_asked, err);
		if (r < 0)
			return r;
	}
	a->state = ASKED_TAKEN;
	*ret = (struct k3_expert){ .layer = a->layer,
				   .expert = a->expert,
				   .slot = a->ready.slot,
				   .generation = a->ready.generation,
				   .epoch = c->epoch };
	for (int i = 0; i < EXPERT_PARTS; i++)
		ret->part[i] = c->slab->base + a->ready.offset + a->ready.part_off[i];
	return 0;
}

int k3_iod_expert_done(struct k3_iod *c, const struct k3_expert *e, struct err *err)
{
	struct asked_expert *a;
	struct wire_expert_done done = {
		.layer = e->layer, .expert = e->expert, .slot = e->slot, .generation = e->generation
	};
	uint16_t id = (uint16_t)e->expert;
	bool is_stale;
	int r;

	if (e->epoch != c->epoch)
		return K3_IOD_STALE; /* of a slab that has gone; asked for again already */
	a = find_asked(&c->experts, e->layer, e->expert);
	must(a && a->state == ASKED_TAKEN);
	is_stale = !slab_entry_is_same(&c->slab->slots[e->slot], e->generation);
	forget(&c->experts, a);
	if (is_stale) {
		c->counts.stale++;
		r = enqueue(&c->experts, e->layer, &id, 1, err);
		if (r < 0)
			return r;
	}
	r = k3_iod_send(c, PROTO_EXPERT_DONE, &done, err);
	if (r == 0)
		r = send_queued(c, err);
	if (r < 0)
		return r;
	return is_stale ? K3_IOD_STALE : 0;
}
