/*
 * The choice of experts (k3-architecture 3.7, order contract rule 9): by sigmoid score plus bias,
 * descending, ties to the lower id; weights from the score alone, their sum in ascending id. Ends
 * with the table of who wants what: pairs (row, expert) sorted by expert, then row.
 */
#include <math.h>
#include <string.h>

#include "compute/layers.h"

/* Insert e into ids[0 ... n), kept by choice descending; the first come stays before its equal. */
static uint32_t insert(uint16_t *ids, float *choice, uint32_t n, uint32_t top_k, uint16_t id,
		       float value)
{
	uint32_t at = n;

	if (n == top_k && !(value > choice[n - 1]))
		return n;
	if (n < top_k)
		n++;
	else
		at--;
	for (; at > 0 && value > choice[at - 1]; at--) {
		choice[at] = choice[at - 1];
		ids[at] = ids[at - 1];
	}
	choice[at] = value;
	ids[at] = id;
	return n;
}

static void sort_ascending(uint16_t *ids, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++) {
		uint16_t id = ids[i];
		uint32_t at = i;

		for (; at > 0 && ids[at - 1] > id; at--)
			ids[at] = ids[at - 1];
		ids[at] = id;
	}
}

/* router [n_experts] holds the logits and then the scores; choice is room for top_k. False: a
 * number is not finite. An expert that has none would just never be chosen, and nothing later in
 * the step would show it. */
static bool route_row(const struct k3_engine *e, float *router, uint16_t *ids, float *weights)
{
	const struct config *c = e->config;
	const float *bias = e->scratch.vector[ROLE_ROUTER_BIAS];
	float *choice = weights, sum = 0;
	bool is_finite = k3_is_finite(router, c->n_experts) && k3_is_finite(bias, c->n_experts);
	uint32_t n = 0;

	e->kernel->sigmoid(router, c->n_experts, router);
	for (uint32_t i = 0; i < c->n_experts; i++) {
		float value = router[i] + bias[i];

		/* Whatever a broken stream brings, the ids stay distinct and in range. */
		n = insert(ids, choice, n, c->top_k, (uint16_t)i, isnan(value) ? -INFINITY : value);
	}
	sort_ascending(ids, n);
	for (uint32_t i = 0; i < n; i++)
		sum = sum + router[ids[i]];
	sum = sum + 1e-20f;
	for (uint32_t i = 0; i < n; i++)
		weights[i] = router[ids[i]] / sum * c->routed_scale;
	return is_finite;
}

struct route_job {
	struct k3_engine *e;
	_Atomic bool is_bad;
};

static void route_rows(void *data, size_t begin, size_t end, unsigned worker)
{
	struct route_job *job = data;
	const struct k3_engine *e = job->e;
	const struct config *c = e->config;
	const struct k3_scratch *s = &e->scratch;

	(void)worker;
	for (size_t i = begin; i < end; i++)
		if (!route_row(e, s->router + i * c->n_experts, s->ids + i * c->top_k,
			       s->weights + i * c->top_k))
			job->is_bad = true;
}

/* Counting sort of the pairs by expert. */
static void sort_pairs(struct k3_engine *e)
{
	const struct config *c = e->config;
	struct k3_scratch *s = &e->scratch;
	size_t n_pairs = (size_t)e->n_rows * c->top_k;
	uint32_t *first = s->expert_first;

	memset(first, 0, ((size_t)c->n_experts + 1) * sizeof(*first));
	for (size_t i = 0; i < n_pairs; i++)
		first[s->ids[i] + 1]++;
	for (uint32_t i = 0; i < c->n_experts; i++)
		first[i + 1] += first[i];
	/* Filling moves each expert's start to its end, which is the next one's start. */
	for (size_t i = 0; i < n_pairs; i++) {
		uint32_t at = first[s->ids[i]]++;

		s->pair_row[at] = (uint32_t)(i / c->top_k);
		s->pair_of[i] = at;
	}
	memmove(first + 1, first, c->n_experts * sizeof(*first));
	first[0] = 0;
}

int k3_route(struct k3_engine *e, uint32_t layer, struct err *err)
{
	struct route_job job = { e, false };
	const struct config *c = e->config;
	struct k3_scratch *s = &e->scratch;

	k3_team_run(e->team, e->n_rows, 1, route_rows, &job);
	/* a residual that was not finite before is told with the logits, by its own layer */
	if (job.is_bad && e->first_bad_layer == UINT32_MAX)
		return err_set(err, ERR_NOT_FINITE,
			       "the router's scores of layer %u are not finite, though every "
			       "residual before was: block_sparse_moe.gate of that layer is "
			       "damaged; fetch its shard again",
			       layer);
	sort_pairs(e);
	if (!e->on_routing)
		return 0;
	for (uint32_t i = 0; i < e->n_rows; i++)
		e->on_routing(e->routing_data, layer, i, s->ids + (size_t)i * c->top_k,
			      s->weights + (size_t)i * c->top_k, c->top_k);
	return 0;
}
