/*
 * The time of a step is a chain through its layers. The disk works without a break on what is known
 * in advance, the trunk; a layer's experts are known only when its router has spoken, and then both
 * go on together:
 *
 *     seconds = experts read + max(trunk read, compute that no expert read can hide)
 *
 * Hidden behind experts is at most the work on experts and shared experts.
 */
#include "compute/token_plan.h"

#include <math.h>
#include <stddef.h>

#include "shared/attr.h"
#include "shared/slab.h"

/* Weights computed on a second as a share of the plain read rate: decoding on the slice takes 1.32
 * times the plain read of its bytes (bench/step.py). */
#define COMPUTE_SHARE 0.75
/* Rows that cost no more than one, since the read of the weights binds; then in proportion
 * (docs/kernels.md). */
#define FREE_ROWS 6.0

struct point {
	double at, value;
};

/* Hits of the daemon's policy by sweeps of slots: 12 recorded positions of the released model
 * (docs/decisions/0007-expert-cache.md). */
static const struct point hits[] = { { 0, 0 },     { 0.25, 0.106 }, { 0.5, 0.186 }, { 0.75, 0.276 },
				     { 1, 0.357 }, { 1.5, 0.414 },  { 2, 0.445 },   { 4, 0.491 } };
/* Distinct experts of n positions, as a share of all choices: published prefills of the released
 * model (k3flow notes, in REFERENCE_OUTPUTS.md of the data). */
static const struct point distinct[] = {
	{ 1, 1 }, { 5, 0.772 }, { 7, 0.588 }, { 18, 0.452 }, { 225, 0.143 }
};

static double look_up(const struct point *points, size_t n, double at)
{
	for (size_t i = 1; i < n; i++)
		if (at < points[i].at)
			return points[i - 1].value + (points[i].value - points[i - 1].value) *
							     (at - points[i - 1].at) /
							     (points[i].at - points[i - 1].at);
	return points[n - 1].value;
}

/* Never below what chance gives, slots / experts; beyond the recorded sizes on a line to 1. The
 * least slots are always in the hands of what is being read and computed. */
static double estimate_hits(double slots, double sweep, double n_experts)
{
	const struct point *last = &hits[N_ELEMENTS(hits) - 1];
	double share, most;

	if (sweep <= 0 || slots >= n_experts)
		return 1;
	slots = fmax(0, slots - SLAB_LEAST_SLOTS);
	share = look_up(hits, N_ELEMENTS(hits), slots / sweep);
	most = n_experts / sweep;
	if (slots / sweep > last->at && most > last->at)
		share = last->value +
			(1 - last->value) * (slots / sweep - last->at) / (most - last->at);
	return fmax(share, slots / n_experts);
}

/* Experts of all MoE layers that n rows choose between them. */
static double experts_of(const struct k3_token_want *w, double n_rows)
{
	double all = w->config->n_experts, k = w->config->top_k;
	double by_chance, recorded = k * n_rows * look_up(distinct, N_ELEMENTS(distinct), n_rows);

	if (w->plan->size.n_moe_layers == 0 || all <= 0)
		return 0;
	by_chance = all * (1 - pow(1 - k / all, n_rows));
	return w->plan->size.n_moe_layers * fmax(k, fmin(by_chance, recorded));
}

static double positive(double x)
{
	return x > 0 ? x : 0;
}

static void estimate_time(const struct k3_token_want *w, double n_clients, double n_rows,
			  struct k3_token_plan *p)
{
	double work = n_clients * fmax(1, n_rows / FREE_ROWS) / (w->rates.memory * COMPUTE_SHARE);
	double experts_seconds = (double)p->experts_read / w->rates.disk;
	double trunk_seconds = (double)p->trunk_read / w->rates.disk;
	double hidden = (double)(p->experts_used + w->plan->size.shared_data) * work;

	p->disk_seconds = experts_seconds + trunk_seconds;
	p->compute_seconds = (double)(p->layers_used + p->head_used + p->experts_used) * work;
	hidden = fmin(hidden, experts_seconds);
	p->seconds = experts_seconds + fmax(trunk_seconds, p->compute_seconds - hidden);
	p->fill_seconds = (double)w->plan->item[K3_MEMPLAN_daemon_pinned_tiles] / w->rates.disk;
}

void k3_token_plan_make(const struct k3_token_want *w, struct k3_token_plan *ret)
{
	const struct k3_model_size *size = &w->plan->size;
	double n_rows = w->n_sequences > 0 ? w->n_sequences : 1;
	double n_clients = w->n_clients > 0 ? w->n_clients : 1;
	uint64_t pinned = w->plan->item[K3_MEMPLAN_daemon_pinned_tiles];
	double wanted = experts_of(w, n_rows), read = experts_of(w, n_rows * n_clients);
	struct k3_token_plan p = { .n_tokens = (uint32_t)(n_rows * n_clients),
				   .layers_used = size->layers_data,
				   .head_used = size->head_data };
	double slots = size->expert_size > 0
			       ? (double)w->plan->item[K3_MEMPLAN_daemon_expert_slots] /
					 (double)size->expert_size
			       : 0;

	p.rows_used = (uint64_t)p.n_tokens * size->embed_row;
	p.experts_used = (uint64_t)(wanted * (double)size->expert_data + 0.5);
	p.trunk_read = size->trunk_size > pinned ? size->trunk_size - pinned : 0;
	p.hit_rate = w->hit_rate >= 0 ? w->hit_rate : estimate_hits(slots, read, size->n_experts);
	p.experts_read =
		(uint64_t)(positive(1 - p.hit_rate) * read * (double)size->expert_data + 0.5);
	estimate_time(w, n_clients, n_rows, &p);
	*ret = p;
}
