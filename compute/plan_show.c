/* A plan as text and as JSON: the same numbers under the same names. */
#include <inttypes.h>

#include "compute/plan.h"
#include "shared/attr.h"
#include "shared/memlock.h"

static double gb(uint64_t bytes)
{
	return (double)bytes / 1e9;
}

static double budget_gb(const struct k3_memplan *m, enum k3_memplan_item a, enum k3_memplan_item b)
{
	return gb(m->item[a] + (a == b ? 0 : m->item[b]));
}

static double trunk_gb(const struct k3_memplan *m)
{
	return budget_gb(m, K3_MEMPLAN_daemon_pinned_tiles, K3_MEMPLAN_daemon_tile_ring);
}

static double cache_gb(const struct k3_memplan *m)
{
	return budget_gb(m, K3_MEMPLAN_daemon_expert_slots, K3_MEMPLAN_daemon_expert_slots);
}

/* What --lock auto would come to; nothing for a machine elsewhere. */
static void print_lock(const struct k3_plan *plan, FILE *out)
{
	uint64_t slab = k3_memplan_slab_size(&plan->memory);

	if (plan->want.limit > 0)
		return;
	if (memlock_is_allowed(slab))
		(void)fprintf(out, "the slab of %.3f GB will be locked: it is never swapped\n",
			      gb(slab));
	else
		(void)fprintf(
			out,
			"the slab of %.3f GB will not be locked and may be swapped: the limit "
			"of locked memory (ulimit -l) is %.3f GB; --lock yes refuses that\n",
			gb(slab), gb(memlock_limit()));
}

static void print_bytes(const struct k3_plan *plan, FILE *out)
{
	const struct k3_token_plan *t = &plan->token;

	(void)fprintf(out,
		      "state of a sequence: %.3f MB, and %" PRIu64 " bytes for every position\n",
		      (double)plan->state_bytes / 1e6, plan->position_bytes);
	if (t->n_tokens == 1)
		(void)fprintf(out, "bytes a token (GB)\n");
	else
		(void)fprintf(out,
			      "bytes a step of %" PRIu32 " tokens (GB): %" PRIu32 " sequences in "
			      "each of %" PRIu32 " clients, in phase\n",
			      t->n_tokens,
			      t->n_tokens / (plan->want.n_clients ? plan->want.n_clients : 1),
			      plan->want.n_clients ? plan->want.n_clients : 1);
	(void)fprintf(out, "  %12.3f  used of the trunk\n", gb(t->layers_used));
	(void)fprintf(out, "  %12.3f  used of the head\n", gb(t->head_used));
	(void)fprintf(out, "  %12.3f  used of experts\n", gb(t->experts_used));
	(void)fprintf(out, "  %12.3f  read of trunk and head: what is not resident\n",
		      gb(t->trunk_read));
	(void)fprintf(out, "  %12.3f  read of experts, with %.1f %% found in the cache\n",
		      gb(t->experts_read), 100 * t->hit_rate);
}

static void print_time(const struct k3_plan *plan, FILE *out)
{
	const struct k3_token_plan *t = &plan->token;

	(void)fprintf(out, "disk %.3f GB/s (%s)\n", plan->rates->rates.disk / 1e9,
		      plan->rates->disk_note);
	(void)fprintf(out, "memory %.3f GB/s (%s)\n", plan->rates->rates.memory / 1e9,
		      plan->rates->memory_note);
	if (plan->want.limit == 0)
		(void)fprintf(out, "threads that compute: %u, on CPUs %s\n", plan->rates->n_threads,
			      plan->rates->cpus);
	if (t->n_tokens == 1)
		(void)fprintf(out, "expected %.3f s a token", t->seconds);
	else
		(void)fprintf(out, "expected %.3f s a step, %.3f tokens/s in all", t->seconds,
			      t->n_tokens / t->seconds);
	(void)fprintf(out,
		      ": reading alone %.3f s, computing alone %.3f s, most of it side by side; "
		      "before the first, %.1f s to read what stays resident\n",
		      t->disk_seconds, t->compute_seconds, t->fill_seconds);
}

static void print_ladder(const struct k3_plan *plan, FILE *out)
{
	(void)fprintf(out,
		      "memory ladder (GB in all, as --preset auto splits it)\n"
		      "  %9s %9s %9s %6s %10s %10s %6s %9s\n",
		      "total", "trunk-gb", "cache-gb", "rows", "trunk read", "expert rd", "hits",
		      "s/step");
	for (uint32_t i = 0; i < plan->n_ladder; i++) {
		const struct k3_plan_row *r = &plan->ladder[i];

		(void)fprintf(out, "  %9.3f %9.3f %9.3f %6" PRIu32 " %10.3f %10.3f %5.1f%% %9.3f\n",
			      gb(r->memory.total), trunk_gb(&r->memory), cache_gb(&r->memory),
			      r->memory.n_rows, gb(r->token.trunk_read), gb(r->token.experts_read),
			      100 * r->token.hit_rate, r->token.seconds);
	}
}

void k3_plan_print(const struct k3_plan *plan, FILE *out)
{
	k3_memplan_print(&plan->memory, out);
	print_lock(plan, out);
	print_bytes(plan, out);
	print_time(plan, out);
	print_ladder(plan, out);
}

static void set(json_t *o, const char *name, json_t *value)
{
	(void)json_object_set_new(o, name, value);
}

static json_t *bytes(uint64_t n)
{
	return json_integer((json_int_t)n);
}

static json_t *token_json(const struct k3_token_plan *t)
{
	json_t *o = json_object();

	set(o, "tokens", bytes(t->n_tokens));
	set(o, "layers_bytes_used", bytes(t->layers_used));
	set(o, "head_bytes_used", bytes(t->head_used));
	set(o, "expert_bytes_used", bytes(t->experts_used));
	set(o, "row_bytes_used", bytes(t->rows_used));
	set(o, "trunk_bytes_read", bytes(t->trunk_read));
	set(o, "expert_bytes_read", bytes(t->experts_read));
	set(o, "hit_rate", json_real(t->hit_rate));
	set(o, "disk_seconds", json_real(t->disk_seconds));
	set(o, "compute_seconds", json_real(t->compute_seconds));
	set(o, "seconds", json_real(t->seconds));
	set(o, "fill_seconds", json_real(t->fill_seconds));
	return o;
}

static json_t *rate_json(double rate, const char *note)
{
	json_t *o = json_object();

	set(o, "bytes_per_second", json_real(rate));
	set(o, "source", json_string(note));
	return o;
}

static json_t *memory_json(const struct k3_memplan *m)
{
	json_t *o = json_object(), *plan = json_object();

	for (int i = 0; i < K3_MEMPLAN_N_; i++)
		set(plan, k3_memplan_item_name(i), bytes(m->item[i]));
	set(o, "total", bytes(m->total));
	set(o, "limit", m->limit < INT64_MAX ? bytes(m->limit) : json_null());
	set(o, "limit_source", json_string(m->limit_note));
	set(o, "fits", json_boolean(m->total <= m->limit));
	set(o, "trunk_gb", json_real(trunk_gb(m)));
	set(o, "cache_gb", json_real(cache_gb(m)));
	set(o, "rows", bytes(m->n_rows));
	set(o, "plan", plan);
	return o;
}

static json_t *ladder_json(const struct k3_plan *plan)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < plan->n_ladder; i++) {
		const struct k3_plan_row *r = &plan->ladder[i];
		json_t *o = json_object();

		set(o, "total", bytes(r->memory.total));
		set(o, "trunk_gb", json_real(trunk_gb(&r->memory)));
		set(o, "cache_gb", json_real(cache_gb(&r->memory)));
		set(o, "rows", bytes(r->memory.n_rows));
		set(o, "step", token_json(&r->token));
		(void)json_array_append_new(a, o);
	}
	return a;
}

json_t *k3_plan_json(const struct k3_plan *plan)
{
	json_t *o = json_object(), *model = json_object();
	const struct k3_model_size *size = &plan->memory.size;

	set(model, "layers_bytes", bytes(size->layers_data));
	set(model, "head_bytes", bytes(size->head_data));
	set(model, "expert_bytes", bytes(size->expert_data));
	set(model, "experts", bytes(size->n_experts));
	set(model, "state_bytes", bytes(plan->state_bytes));
	set(model, "position_bytes", bytes(plan->position_bytes));
	set(o, "model", model);
	set(o, "context", bytes(plan->want.n_positions));
	set(o, "memory", memory_json(&plan->memory));
	set(o, "may_lock",
	    plan->want.limit > 0
		    ? json_null()
		    : json_boolean(memlock_is_allowed(k3_memplan_slab_size(&plan->memory))));
	set(o, "step", token_json(&plan->token));
	set(o, "disk", rate_json(plan->rates->rates.disk, plan->rates->disk_note));
	set(o, "memory_rate", rate_json(plan->rates->rates.memory, plan->rates->memory_note));
	set(o, "threads", bytes(plan->rates->n_threads));
	set(o, "cpus", json_string(plan->rates->cpus));
	set(o, "ladder", ladder_json(plan));
	return o;
}
