/*
 * k3 plan: what a run would take, before there is one. Everything comes from config.json; nothing
 * is started and no weight file is opened, but for --measure, which reads a little of the shards.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "compute/cpu_list.h"
#include "compute/model_config.h"
#include "compute/options.h"
#include "compute/plan.h"
#include "compute/plan_rates.h"
#include "compute/preset.h"
#include "compute/prompt.h"
#include "compute/ring_rates.h"
#include "shared/fd.h"
#include "shared/log.h"
#include "shared/memlock.h"

static int check(const struct k3_command_line *line, const struct config *c, struct err *err)
{
	const struct k3_options *o = &line->options;

	if (o->layers > c->n_layers)
		return err_set(err, ERR_USAGE,
			       "--layers %" PRIu64 ": the model has %" PRIu32 " layers", o->layers,
			       c->n_layers);
	if (c->max_positions && o->context > c->max_positions)
		return err_set(err, ERR_USAGE,
			       "--context %" PRIu64 " is more than the %" PRIu32
			       " positions of this model",
			       o->context, c->max_positions);
	if (option_was_given(line->program, o, "memory-gb") && o->memory_gb == 0)
		return err_set(err, ERR_USAGE, "--memory-gb 0: give more than 0");
	if (memlock_parse(o->lock) == MEMLOCK_YES && o->memory_gb > 0)
		return err_set(err, ERR_USAGE,
			       "--lock yes asks this machine, --memory-gb plans for another");
	return 0;
}

static int make(const struct k3_command_line *line, const struct config *c,
		const struct k3_plan_rates *rates, struct k3_plan *ret, struct err *err)
{
	const struct k3_options *o = &line->options;
	struct option_list tok = { .items = { o->tok }, .n = 1 };
	CLEANUP(k3_tokenizer_freep) struct k3_tokenizer *t = NULL;
	uint64_t context = o->context ? o->context : K3_PLAN_CONTEXT;
	uint64_t most = o->prefill_rows ? o->prefill_rows : K3_USUAL_ROWS;
	struct k3_plan_want want = {
		.memory = {
			.config = c,
			.n_layers = o->layers ? (uint32_t)o->layers : c->n_layers,
			.n_rows = (uint32_t)(context < most ? context : most),
			.n_rows_is_given = o->prefill_rows > 0,
			.n_positions = (uint32_t)context,
			.n_logits = (uint32_t)o->batch,
			.has_daemon = true,
			.preset = o->preset,
			.trunk_gb = k3_option_trunk_gb(line),
			.cache_gb = k3_option_cache_gb(line),
			.tile_bytes = o->tile,
			.wants_reserved = k3_option_wants_reserved(o),
			.n_sequences = (uint32_t)o->batch,
			.n_sequences_is_given = true,
			.n_clients = (uint32_t)o->clients,
			.limit = o->memory_gb > 0 ? (uint64_t)(o->memory_gb * 1e9 + 0.5) : 0,
		},
		.rates = rates,
	};
	int r = k3_ring_rates_find(line, &want.memory, err);

	k3_plan_rates_for_ring(rates, &want.memory.rates);
	if (r == 0 && (o->tok || line->words.n > 0))
		r = k3_tokenizer_open(&t, o->tok ? &tok : &line->words, c->vocab_size, err);
	if (r < 0)
		return r;
	if (!t && line->words.n == 0)
		want.memory.program_extra = k3_plan_vocabulary_size(c);
	if (want.memory.n_rows < o->batch)
		want.memory.n_rows = (uint32_t)o->batch;
	return k3_plan_make(&want, ret, err);
}

static void show(const struct k3_plan *plan, bool as_json)
{
	json_t *o;

	if (!as_json) {
		k3_plan_print(plan, stdout);
		return;
	}
	o = k3_plan_json(plan);
	(void)json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
	(void)putchar('\n');
	json_decref(o);
}

static int plan(const struct k3_command_line *line, struct k3_plan *p, struct err *err)
{
	struct k3_plan_rates rates;
	struct config config;
	int r;

	if (line->words.n == 0 && !line->options.config)
		return err_set(err, ERR_USAGE, "give a MODEL directory, or --config FILE");
	r = k3_config_read(&line->words, line->options.config, &config, err);
	if (r == 0)
		r = check(line, &config, err);
	if (r == 0)
		r = k3_plan_rates_find(&rates, line, err);
	if (r < 0)
		return r;
	r = make(line, &config, &rates, p, err);
	/* refused for another reason than the sum: there is no plan to show */
	if (r == 0 || (err->code == ERR_BUDGET && p->memory.total > p->memory.limit))
		show(p, line->options.json);
	return r < 0 ? r : k3_memplan_check_lock(&p->memory, line->options.lock, err);
}

int k3_cmd_plan(const struct k3_command_line *line)
{
	CLEANUP(freep) struct k3_plan *p = NULL;
	struct err err = { 0 };
	int r;

	if (line->options.list_presets) {
		k3_preset_print(stdout);
		return 0;
	}
	r = k3_cpus_use(line->options.cpus, NULL, &err);
	p = calloc(1, sizeof(*p));
	if (r == 0)
		r = p ? plan(line, p, &err) : err_set(&err, ERR_NO_MEMORY, "no memory for a plan");
	if (r == 0)
		return 0;
	log_error("%s", err.text);
	return err_exit_code(err.code);
}
