#include "compute/plan.h"

#include <inttypes.h>
#include <string.h>

#include "compute/cpus.h"
#include "compute/engine.h"
#include "compute/rates.h"

/* What one NVMe disk gave to the published measurements by O_DIRECT (their environment.txt). */
#define DISK_ASSUMED 3.2e9
/* Two channels of DDR4: where memory cannot be measured. */
#define MEMORY_ASSUMED 20e9

void k3_plan_rates_init(struct k3_plan_rates *ret, double disk, double memory, unsigned n_threads)
{
	*ret = (struct k3_plan_rates){ .rates = { disk, memory } };
	ret->n_threads = n_threads ? n_threads : k3_cpus_usable();
	k3_cpus_text(ret->cpus);
	(void)snprintf(ret->disk_note, sizeof(ret->disk_note), "given");
	(void)snprintf(ret->memory_note, sizeof(ret->memory_note), "given");
	if (disk <= 0) {
		ret->rates.disk = DISK_ASSUMED;
		ret->is_disk_assumed = true;
		(void)snprintf(
			ret->disk_note, sizeof(ret->disk_note),
			"assumed: the disk of the published measurements; --measure measures "
			"this model's, --disk-rate gives another");
	}
	if (memory > 0)
		return;
	ret->rates.memory = k3_rate_memory(n_threads);
	(void)snprintf(ret->memory_note, sizeof(ret->memory_note), "measured now");
	if (ret->rates.memory <= 0) {
		ret->rates.memory = MEMORY_ASSUMED;
		(void)snprintf(ret->memory_note, sizeof(ret->memory_note),
			       "assumed, since it could not be measured");
	}
}

void k3_plan_rates_for_ring(const struct k3_plan_rates *rates, struct ring_rates *ret)
{
	ret->disk = rates->is_disk_assumed ? 0 : rates->rates.disk;
	ret->memory = rates->rates.memory;
}

static void plan_tokens(const struct k3_plan_want *w, const struct k3_memplan *memory,
			struct k3_token_plan *ret)
{
	struct k3_token_want want = {
		.config = w->memory.config,
		.plan = memory,
		.rates = w->rates->rates,
		.n_sequences = w->memory.n_sequences,
		.n_clients = w->memory.n_clients,
		.hit_rate = -1,
	};

	k3_token_plan_make(&want, ret);
}

/* One row of the ladder; limit 0: everything resident. False when it does not work. */
static bool add_row(const struct k3_plan_want *w, uint64_t limit, struct k3_plan *plan)
{
	struct k3_plan_row *row = &plan->ladder[plan->n_ladder];
	struct k3_memplan_want want = w->memory;
	int r;

	want.preset = "auto";
	want.trunk_gb = want.cache_gb = -1;
	want.limit = limit ? limit : UINT64_MAX / 2;
	r = k3_memplan_make(&want, &row->memory, NULL);
	if (r < 0)
		return false;
	plan_tokens(w, &row->memory, &row->token);
	plan->n_ladder++;
	return true;
}

static bool has_everything(const struct k3_plan_row *row)
{
	return row->token.trunk_read == 0 && row->token.experts_read == 0;
}

static void make_ladder(const struct k3_plan_want *w, struct k3_plan *plan)
{
	static const unsigned steps[] = { 1,  2,   4,   8,   12,  16,  24,  32,  48, 64,
					  96, 128, 160, 192, 224, 256, 384, 512, 768 };
	struct k3_plan_row *row;

	for (uint64_t unit = 1000000; unit <= 1000000000000; unit *= 1000)
		for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
			if (plan->n_ladder == K3_PLAN_LADDER_MAX - 1 ||
			    !add_row(w, steps[i] * unit, plan))
				continue;
			row = &plan->ladder[plan->n_ladder - 1];
			if (!has_everything(row))
				continue;
			/* the exact size of everything stands in its place */
			plan->n_ladder--;
			(void)add_row(w, 0, plan);
			return;
		}
}

int k3_plan_make(const struct k3_plan_want *want, struct k3_plan *ret, struct err *err)
{
	const struct k3_memplan_want *m = &want->memory;
	struct k3_engine_memory one;
	int r;

	memset(ret, 0, sizeof(*ret));
	ret->want = *m;
	ret->rates = want->rates;
	k3_engine_plan(m->config, m->n_layers, 1, 1, &one);
	ret->state_bytes = one.state_kda;
	ret->position_bytes = one.state_mla;
	r = k3_memplan_make(m, &ret->memory, err);
	plan_tokens(want, &ret->memory, &ret->token);
	make_ladder(want, ret);
	return r;
}
