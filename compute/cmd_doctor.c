/*
 * k3 doctor: what this machine can do with this model, and the next command. Looks at everything a
 * run will need, by the same calls, and plans as k3 run would.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "compute/cpu_list.h"
#include "compute/doctor.h"
#include "compute/doctor_next.h"
#include "compute/model_config.h"
#include "compute/model_texts.h"
#include "compute/options.h"
#include "compute/plan.h"
#include "compute/plan_rates.h"
#include "compute/preset.h"
#include "shared/fd.h"
#include "shared/log.h"

/* Below this a trunk file is no gain worth a hint. */
#define TRUNK_WORTH 1000000000ull

struct checkup {
	const struct k3_command_line *line;
	struct k3_doctor doctor;
	struct config config;
	struct k3_plan_rates rates;
	struct k3_plan plan;
	enum k3_checkpoint checkpoint;
	bool has_plan, has_vocabulary;
	char *command; /* owned: the next one */
	const char *why;
};

static void plan_run(struct checkup *c)
{
	const struct k3_options *o = &c->line->options;
	uint64_t context = o->context ? o->context : K3_PLAN_CONTEXT;
	struct k3_plan_want want = {
		.memory = {
			.config = &c->config,
			.n_layers = o->layers ? (uint32_t)o->layers : c->config.n_layers,
			.n_rows = (uint32_t)(context < K3_USUAL_ROWS ? context : K3_USUAL_ROWS),
			.n_positions = (uint32_t)context,
			.n_logits = 1,
			.has_daemon = true,
			.preset = "auto",
			.trunk_gb = -1,
			.cache_gb = -1,
			.program_extra = k3_plan_vocabulary_size(&c->config),
		},
		.rates = &c->rates,
	};
	struct err err = { 0 };

	k3_plan_rates_for_ring(&c->rates, &want.memory.rates);
	if (k3_plan_make(&want, &c->plan, &err) < 0) {
		k3_doctor_add(&c->doctor, "plan", K3_VERDICT_BAD, err.code, "%s", err.text);
		return;
	}
	c->has_plan = true;
}

/* The largest fixed preset that fits, for those who want to leave memory to others. */
static const char *largest_preset(const struct checkup *c)
{
	static const char *const names[] = { "max", "server", "workstation", "desktop", "laptop" };

	for (size_t i = 0; i < N_ELEMENTS(names); i++) {
		struct k3_memplan_want want = c->plan.want;
		struct k3_memplan p;

		want.preset = names[i];
		if (k3_memplan_make(&want, &p, NULL) == 0)
			return names[i];
	}
	return "none";
}

static void say_expectation(struct checkup *c)
{
	const struct k3_memplan *m = &c->plan.memory;
	const struct k3_token_plan *t = &c->plan.token;

	k3_doctor_add(&c->doctor, "preset", K3_VERDICT_OK, ERR_NONE,
		      "auto: --trunk-gb %.3f --cache-gb %.3f, %.3f GB in all of %.3f; the largest "
		      "fixed one that fits: %s",
		      (double)m->trunk_budget / 1e9, (double)m->cache_budget / 1e9,
		      (double)m->total / 1e9, (double)m->limit / 1e9, largest_preset(c));
	k3_doctor_add(&c->doctor, "speed", K3_VERDICT_OK, ERR_NONE,
		      "%.3f s a token: %.3f GB of trunk and %.3f GB of experts from disk at %.3f "
		      "GB/s (%s), %.3f GB of weights computed on from memory at %.3f GB/s (%s); "
		      "docs/planning.md has the formula",
		      t->seconds, (double)t->trunk_read / 1e9, (double)t->experts_read / 1e9,
		      c->rates.rates.disk / 1e9, c->rates.disk_note,
		      (double)(t->layers_used + t->head_used + t->experts_used) / 1e9,
		      c->rates.rates.memory / 1e9, c->rates.memory_note);
}

static void look_at_vocabulary(struct checkup *c)
{
	CLEANUP(k3_tokenizer_freep) struct k3_tokenizer *t = NULL;
	struct config config;
	struct err err = { 0 };

	if (k3_model_texts_read(c->line, &config, &t, &err) < 0)
		k3_doctor_add(&c->doctor, "vocabulary", K3_VERDICT_BAD, err.code, "%s", err.text);
	else if (t)
		k3_doctor_add(&c->doctor, "vocabulary", K3_VERDICT_OK, ERR_NONE,
			      "tiktoken.model can be read");
	else
		k3_doctor_add(&c->doctor, "vocabulary", K3_VERDICT_NOTE, ERR_NONE,
			      "there is no tiktoken.model: prompts are given by --ids, and no text "
			      "is printed; --tok DIR names another directory");
	c->has_vocabulary = t != NULL;
}

static void look(struct checkup *c)
{
	const struct k3_options *o = &c->line->options;
	const struct option_list *dirs = &c->line->words;
	struct err err = { 0 };

	k3_doctor_machine(&c->doctor, (unsigned)o->threads);
	k3_doctor_disks(&c->doctor, dirs, &o->trunk);
	if (dirs->n > 0)
		c->checkpoint = k3_doctor_checkpoint(&c->doctor, dirs, &o->trunk, o->config,
						     (uint32_t)o->layers);
	if (dirs->n == 0 && !o->config)
		return;
	if (k3_config_read(dirs, o->config, &c->config, &err) < 0) {
		if (c->checkpoint == K3_CHECKPOINT_WHOLE || dirs->n == 0)
			k3_doctor_add(&c->doctor, "config", K3_VERDICT_BAD, err.code, "%s",
				      err.text);
		return;
	}
	if (o->layers > c->config.n_layers) {
		if (c->checkpoint == K3_CHECKPOINT_WHOLE || dirs->n == 0)
			k3_doctor_add(&c->doctor, "config", K3_VERDICT_BAD, ERR_USAGE,
				      "--layers %" PRIu64 ": the model has %" PRIu32 " layers",
				      o->layers, c->config.n_layers);
		return;
	}
	if (k3_plan_rates_find(&c->rates, c->line, &err) < 0) {
		k3_doctor_add(&c->doctor, "disk rate", K3_VERDICT_NOTE, ERR_NONE, "%s", err.text);
		k3_plan_rates_init(&c->rates, 0, o->memory_rate * 1e9, (unsigned)o->threads);
	}
	if (o->measure)
		k3_doctor_add(&c->doctor, "disk rate", K3_VERDICT_OK, ERR_NONE, "%.3f GB/s (%s)",
			      c->rates.rates.disk / 1e9, c->rates.disk_note);
	plan_run(c);
	if (c->has_plan)
		say_expectation(c);
	if (dirs->n > 0)
		look_at_vocabulary(c);
}

static void choose_command(struct checkup *c)
{
	const struct k3_options *o = &c->line->options;
	uint64_t trunk_size = c->plan.memory.size.trunk_size;
	struct k3_next_want want = {
		.dirs = &c->line->words,
		.trunk = &o->trunk,
		.config = o->config,
		.tok = o->tok,
		.n_layers = (unsigned)o->layers,
		.checkpoint = c->checkpoint,
		.fits = c->has_plan && c->doctor.bad == ERR_NONE,
		.has_vocabulary = c->has_vocabulary,
		.trunk_size =
			trunk_size > TRUNK_WORTH && c->plan.token.trunk_read > 0 ? trunk_size : 0,
	};

	c->command = k3_next_command(&want, &c->why);
}

static void show(const struct checkup *c)
{
	json_t *o;

	if (!c->line->options.json) {
		k3_doctor_print(&c->doctor, stdout);
		if (c->command)
			(void)printf("next: %s\n  %s\n", c->why, c->command);
		return;
	}
	o = json_object();
	(void)json_object_set_new(o, "findings", k3_doctor_json(&c->doctor));
	if (c->has_plan)
		(void)json_object_set_new(o, "plan", k3_plan_json(&c->plan));
	(void)json_object_set_new(o, "next", c->command ? json_string(c->command) : json_null());
	(void)json_object_set_new(o, "can_run", json_boolean(c->doctor.bad == ERR_NONE));
	(void)json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
	(void)putchar('\n');
	json_decref(o);
}

int k3_cmd_doctor(const struct k3_command_line *line)
{
	struct checkup *c;
	struct err err = { 0 };
	int code;

	if (k3_cpus_use(line->options.cpus, NULL, &err) < 0) {
		log_error("%s", err.text);
		return err_exit_code(err.code);
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		log_error("no memory to look around");
		return err_exit_code(ERR_NO_MEMORY);
	}
	c->line = line;
	look(c);
	choose_command(c);
	show(c);
	code = c->doctor.bad == ERR_NONE ? 0 : err_exit_code(c->doctor.bad);
	free(c->command);
	free(c);
	return code;
}
