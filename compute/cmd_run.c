/*
 * k3 run: one prompt to the end, or with --batch-file those of a file together. In order: check the
 * options, read config and tokenizer, make ids of the prompt, plan the memory, start (or reach) the
 * daemon, make the engine, generate, report. With a private daemon config and tokenizer are read
 * from the model's directory, before the daemon starts; with --socket they come from the daemon,
 * and no file of the model is opened.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compute/cpu_list.h"
#include "compute/embedded.h"
#include "compute/generate.h"
#include "compute/jobs.h"
#include "compute/memplan.h"
#include "compute/model_texts.h"
#include "compute/options.h"
#include "compute/preset.h"
#include "compute/prompt.h"
#include "compute/report.h"
#include "compute/ring_rates.h"
#include "compute/run.h"
#include "compute/run_check.h"
#include "compute/summary.h"
#include "compute/trace.h"
#include "shared/fd.h"
#include "shared/log.h"
#include "shared/slab.h"
#include "shared/timeline.h"

enum { USUAL_SEQUENCES = 8 };
enum { RESTARTS_MAX = 3 }; /* of a private daemon that is killed again and again */

/* Everything a run owns, in the order in which it is made. */
struct run {
	const struct k3_command_line *line;
	const struct k3_options *o;
	struct config config;
	struct k3_tokenizer *tokenizer; /* NULL: the model has none */
	struct k3_ids prompt, generated, stop_ids;
	struct k3_jobs jobs; /* --batch-file, in place of prompt */
	struct k3_jobs_run carried;
	uint64_t n_needed;    /* positions of the longest sequence */
	uint64_t n_positions; /* that, or --context */
	struct k3_memplan plan;
	cpu_set_t cpus;               /* before --cpus: the private daemon's */
	struct k3_embedded *embedded; /* NULL with --socket */
	struct k3_iod *iod;
	struct k3_team *team;
	struct kern_table kernels;
	struct timeline *timeline; /* NULL: none is wanted */
	struct k3_engine *engine;
	struct k3_sequence *sequence;
	FILE *first_logits, *all_logits, *trace, *results;
	struct k3_report report;
	struct k3_generation generation;
	const char *trace_dir;   /* k3 trace; NULL otherwise */
	struct k3_trace *values; /* likewise */
	uint32_t n_layers;
	bool has_no_report;  /* --out cannot be written, or must not be, which was said */
	unsigned n_restarts; /* of the private daemon */
	int daemon_exit;     /* of a private daemon that ended by itself */
};

/* ---- the plan -------------------------------------------------------------------------------- */

static int choose_layers(struct run *r, struct err *err)
{
	uint32_t most = r->iod ? k3_iod_catalog(r->iod)->header->n_layers : r->config.n_layers;

	r->n_layers = r->o->layers ? (uint32_t)r->o->layers : most;
	if (r->n_layers > most)
		return err_set(err, ERR_USAGE, "--layers %" PRIu32 ": %s has %" PRIu32 " layers",
			       r->n_layers, r->iod ? "the daemon" : "the model", most);
	return 0;
}

static int read_jobs(struct run *r, uint64_t limit, struct err *err)
{
	struct k3_jobs_want want = {
		.tokenizer = r->tokenizer,
		.n_vocab = r->config.vocab_size,
		.max_positions = limit,
		.n_generate = r->o->gen,
		.stop_ids = &r->stop_ids,
	};
	int e = k3_jobs_read(&r->jobs, r->o->batch_file, &want, err);

	r->n_positions = k3_jobs_positions(&r->jobs);
	return e;
}

static int read_prompt(struct run *r, uint64_t limit, struct err *err)
{
	int e = k3_prompt_read(r->o, r->tokenizer, r->config.vocab_size, &r->prompt, err);

	r->n_positions = r->prompt.n + (r->o->gen > 0 ? r->o->gen - 1 : 0);
	if (e == 0 && r->n_positions > limit)
		return err_set(err, ERR_USAGE,
			       "%zu tokens of prompt and %" PRIu64 " to generate are more than the "
			       "%" PRIu64 " positions of this model",
			       r->prompt.n, r->o->gen, limit);
	return e;
}

/* The prompt, or with --batch-file all of them, and how many positions that takes. */
static int read_prompts(struct run *r, struct err *err)
{
	uint64_t limit = r->config.max_positions ? r->config.max_positions : UINT32_MAX;
	int e = k3_run_stop_ids(r->o, &r->config, r->tokenizer, &r->stop_ids, err);

	if (e == 0)
		e = (r->o->batch_file ? read_jobs : read_prompt)(r, limit, err);
	r->n_needed = r->n_positions;
	if (e == 0 && r->o->context > limit)
		return err_set(err, ERR_USAGE,
			       "--context %" PRIu64 " is more than the %" PRIu64
			       " positions of this model",
			       r->o->context, limit);
	if (r->o->context > r->n_positions)
		r->n_positions = r->o->context;
	return e;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Rows that one step could use at most. */
static uint64_t rows_of_a_step(const struct run *r)
{
	if (r->o->batch_file)
		return k3_jobs_prompt_tokens(&r->jobs);
	return r->o->recompute ? r->n_needed : r->prompt.n;
}

static int plan_memory(struct run *r, struct err *err)
{
	const struct k3_options *o = r->o;
	uint64_t most = o->prefill_rows ? o->prefill_rows : K3_USUAL_ROWS;
	uint64_t sequences = o->batch_max ? o->batch_max : USUAL_SEQUENCES;
	struct k3_memplan_want want = {
		.config = &r->config,
		.n_layers = r->n_layers,
		.n_rows = (uint32_t)min_u64(rows_of_a_step(r), most),
		.n_rows_is_given = o->prefill_rows > 0,
		.n_positions = (uint32_t)r->n_positions,
		.n_sequences = o->batch_file ? (uint32_t)min_u64(sequences, r->jobs.n) : 1,
		.n_sequences_is_given = o->batch_max > 0,
		.n_logits = o->dump_logits_all ? 0 : 1,
		.has_trace = o->dump_cache_trace,
		.has_daemon = !o->socket,
		.preset = o->preset,
		.trunk_gb = k3_option_trunk_gb(r->line),
		.cache_gb = k3_option_cache_gb(r->line),
		.tile_bytes = o->tile,
		.wants_reserved = k3_option_wants_reserved(o),
	};
	int e = k3_ring_plan(r->line, &want, &r->plan, err);

	if (e == 0 || err->code == ERR_BUDGET)
		k3_memplan_print(&r->plan, stderr);
	return e < 0 || o->socket ? e : k3_memplan_check_lock(&r->plan, o->lock, err);
}

/* ---- daemon and engine ----------------------------------------------------------------------- */

/* What ended the private daemon. */
static int say_end(struct run *r, struct err *err)
{
	if (r->daemon_exit < 128)
		return err_set(err, ERR_GONE,
			       "the private k3-iod ended (exit code %d); its reason stands above",
			       r->daemon_exit);
	return err_set(err, ERR_GONE,
		       "the private k3-iod was ended by a signal (%s), %u times; if memory was "
		       "short, give smaller --trunk-gb and --cache-gb",
		       strsignal(r->daemon_exit - 128), r->n_restarts + 1);
}

/* Start the private daemon; again when it was killed, a few times. One that ended by itself had its
 * reason. */
static int dial_private(void *data, int *ret_fd, struct err *err)
{
	struct run *r = data;
	const struct k3_options *o = r->o;
	struct k3_embedded_settings settings = {
		.model_dirs = &r->line->words,
		.trunk = &o->trunk,
		.config = o->config,
		.tok = o->tok,
		.backend = o->backend,
		.direct = o->direct,
		.policy = o->policy,
		.lock = o->lock,
		.huge_pages = o->huge_pages,
		.sums = o->sums,
		.verify_reads = o->verify_reads,
		.trunk_gb = (double)r->plan.trunk_budget / 1e9,
		.cache_gb = (double)r->plan.cache_budget / 1e9,
		.disk_rate = r->plan.rates.disk / 1e9,
		.memory_rate = r->plan.rates.memory / 1e9,
		.profile = o->profile,
		.timeline = o->timeline,
		.queue_depth = &o->queue_depth,
		.chunk = &o->chunk,
		.tile = o->tile,
		.layers = o->layers,
		.cpus = o->cpus ? &r->cpus : NULL,
	};

	if (r->embedded) {
		r->daemon_exit = k3_embedded_finish(TAKE(r->embedded));
		if ((r->daemon_exit > 0 && r->daemon_exit < 128) || r->n_restarts == RESTARTS_MAX)
			return say_end(r, err);
		r->n_restarts++;
		r->daemon_exit = 0;
	}
	return k3_embedded_start(&r->embedded, &settings, ret_fd, err);
}

static int start_daemon(struct run *r, struct err *err)
{
	struct k3_iod_way way = { .dial = dial_private,
				  .data = r,
				  .wait_seconds = UINT64_MAX, /* its life says how long */
				  .is_cancelled = k3_generate_was_interrupted };

	return k3_iod_open(&r->iod, &way, err);
}

static int reach_daemon(struct run *r, struct err *err)
{
	struct k3_iod_way way = { .dial = k3_iod_dial,
				  .data = (void *)r->o->socket,
				  .wait_seconds = r->o->reconnect_wait,
				  .is_cancelled = k3_generate_was_interrupted };
	int e = k3_iod_open(&r->iod, &way, err);

	return e < 0 ? e : k3_model_texts_take(r->iod, r->line, &r->config, &r->tokenizer, err);
}

static int make_engine(struct run *r, struct err *err)
{
	const struct k3_options *o = r->o;
	struct k3_engine_settings settings = { .config = &r->config,
					       .iod = r->iod,
					       .kernels = &r->kernels,
					       .timeline = r->timeline,
					       .n_layers = r->n_layers,
					       .max_rows = r->plan.n_rows,
					       .max_positions = (uint32_t)r->n_positions };
	int isa = o->isa ? kern_isa_parse(o->isa) : KERN_ISA_N_;
	int e;

	e = kern_table_init(&r->kernels, (enum kern_isa)isa, err);
	if (e == 0)
		e = k3_team_new(&r->team, (unsigned)o->threads, err);
	if (e < 0)
		return e;
	log_info("kernels of %s on %u thread%s", kern_isa_name(r->kernels.isa),
		 k3_team_n_threads(r->team), k3_team_n_threads(r->team) == 1 ? "" : "s");
	r->report.kernels = &r->kernels;
	settings.team = r->team;
	e = k3_engine_new(&r->engine, &settings, err);
	if (e == 0 && !o->batch_file)
		e = k3_sequence_new(&r->sequence, r->engine, err);
	return e == 0 && r->sequence && o->context > 0 ? k3_sequence_take(r->sequence, err) : e;
}

/* ---- outputs --------------------------------------------------------------------------------- */

static int open_output(FILE **ret, const char *path, struct err *err)
{
	if (!path)
		return 0;
	*ret = fopen(path, "we");
	if (!*ret)
		return err_set(err, ERR_IO, "cannot write %s: %s", path, strerror(errno));
	return 0;
}

static int open_trace(struct run *r, struct err *err)
{
	CLEANUP(freep) char *path = NULL;

	if (!r->o->dump_cache_trace)
		return 0;
	if (mkdir(r->o->dump_cache_trace, 0777) < 0 && errno != EEXIST)
		return err_set(err, ERR_IO, "cannot make the directory %s: %s",
			       r->o->dump_cache_trace, strerror(errno));
	if (asprintf(&path, "%s/trace.jsonl", r->o->dump_cache_trace) < 0)
		return err_set(err, ERR_NO_MEMORY, "no memory for a path");
	return open_output(&r->trace, path, err);
}

static int open_outputs(struct run *r, struct err *err)
{
	int e;

	if (r->o->timeline && timeline_new(&r->timeline, r->o->timeline, "k3", true, err) < 0)
		return -1;
	if (r->o->batch_file)
		return open_output(&r->results, r->o->out, err);
	e = r->o->out ? k3_report_try(r->o->out, err) : 0;
	r->has_no_report = e < 0;
	if (e == 0)
		e = open_output(&r->first_logits, r->o->dump_logits, err);
	if (e == 0)
		e = open_output(&r->all_logits, r->o->dump_logits_all, err);
	return e < 0 ? e : open_trace(r, err);
}

static int close_output(FILE **f, const char *name, struct err *err)
{
	FILE *file = TAKE(*f);
	bool has_failed = file && ferror(file); /* a write before the last: errno is gone */

	errno = 0;
	if (!file || (fclose(file) == 0 && !has_failed))
		return 0;
	if (errno == 0)
		errno = EIO;
	return err_set(err, errno == ENOSPC ? ERR_SPACE : ERR_IO, "cannot write %s: %s", name,
		       strerror(errno));
}

static int close_outputs(struct run *r, struct err *err)
{
	int e = close_output(&r->first_logits, r->o->dump_logits, err);
	int e2 = close_output(&r->all_logits, r->o->dump_logits_all, err);
	int e3 = close_output(&r->trace, "the trace", err);
	int e4 = close_output(&r->results, r->o->out, err);

	return e < 0 ? e : e2 < 0 ? e2 : e3 < 0 ? e3 : e4;
}

/* ---- the run --------------------------------------------------------------------------------- */

static int prepare(struct run *r, struct err *err)
{
	int e = k3_run_check(r->line, !r->trace_dir, err);

	/* what is refused may be just the file that --out names */
	r->has_no_report = e < 0;
	if (e < 0)
		return e;
	e = r->o->socket ? reach_daemon(r, err)
			 : k3_model_texts_read(r->line, &r->config, &r->tokenizer, err);
	if (e == 0)
		e = choose_layers(r, err);
	if (e == 0)
		e = read_prompts(r, err);
	if (e == 0)
		e = plan_memory(r, err);
	return e < 0 ? e : open_outputs(r, err);
}

static int start(struct run *r, struct err *err)
{
	const struct wire_welcome *w;
	int e = r->o->socket ? 0 : start_daemon(r, err);

	if (e < 0)
		return e;
	w = k3_iod_welcome(r->iod);
	k3_iod_set_timeline(r->iod, r->timeline);
	r->report.backend = w->backend;
	r->report.slab_bytes = w->slab_size;
	k3_memplan_correct(&r->plan, w);
	r->report.plan = &r->plan;
	r->report.has_lasting_daemon = r->o->socket != NULL;
	e = make_engine(r, err);
	if (e == 0 && r->trace_dir)
		e = k3_trace_new(&r->values, r->trace_dir, &r->config, r->n_layers,
				 (uint32_t)r->prompt.n, err);
	if (e == 0 && r->values)
		k3_trace_watch(r->values, r->engine);
	return e;
}

/* What k3_generate is for one prompt. */
static int carry_jobs(struct run *r, struct err *err)
{
	r->carried = (struct k3_jobs_run){
		.jobs = &r->jobs,
		.engine = r->engine,
		.config = &r->config,
		.tokenizer = r->tokenizer,
		.n_places = r->plan.n_sequences,
		.max_rows = r->plan.n_rows,
		.takes_memory = r->o->context > 0,
		.out = r->results ? r->results : stdout,
	};
	return k3_jobs_carry(&r->carried, err);
}

static int generate(struct run *r, struct err *err)
{
	r->generation = (struct k3_generation){
		.engine = r->engine,
		.sequence = r->sequence,
		.iod = r->iod,
		.config = &r->config,
		.tokenizer = r->tokenizer,
		.prompt = &r->prompt,
		.stop_ids = r->stop_ids.ids,
		.n_stop_ids = r->stop_ids.n,
		.n_generate = (uint32_t)r->o->gen,
		.n_layers = r->n_layers,
		.max_rows = r->plan.n_rows,
		.recompute = r->o->recompute,
		.text_out = stdout,
		.first_logits = r->first_logits,
		.all_logits = r->all_logits,
		.trace = r->trace,
		.report = &r->report,
		.generated = &r->generated,
	};
	return k3_generate(&r->generation, err);
}

/* The daemon's peak, while it still answers. */
static void ask_daemon(struct run *r)
{
	enum {
#define STAT(name, unit, kind, sentence) COUNTER_##name,
#include "proto/stats.def"
#undef STAT
	};
	uint64_t values[PROTO_STATS_MAX];
	uint32_t n;

	if (r->iod && k3_iod_stats(r->iod, values, &n, NULL) == 0 && n > COUNTER_peak_rss_bytes) {
		r->report.daemon_peak_rss_bytes = values[COUNTER_peak_rss_bytes];
		r->report.row_bytes_read = values[COUNTER_row_bytes_read];
	}
}

static void say_batch_summary(const struct run *r)
{
	const struct k3_iod_counts *c = k3_iod_counts(r->iod);

	log_info("%zu prompts, %" PRIu64 " tokens generated in %" PRIu64 " steps of up to %" PRIu32
		 " sequences; waited %.3f s; read %.3f GB of trunk, %.3f GB of experts; %s",
		 r->carried.n_done, r->carried.n_generated, r->carried.n_steps, r->carried.n_places,
		 (double)c->wait_ns * 1e-9, (double)c->trunk_bytes_read / 1e9,
		 (double)c->expert_bytes_read / 1e9, r->report.backend);
}

static void say_summary(const struct run *r)
{
	const struct k3_report *p = &r->report;
	double rest = 0, waited = 0;
	uint64_t trunk = 0, experts = 0;

	for (size_t i = 0; i < p->n_steps; i++) {
		rest += i > 0 ? p->steps[i].seconds : 0;
		waited += p->steps[i].wait_seconds;
		trunk += p->steps[i].trunk_bytes_read;
		experts += p->steps[i].expert_bytes_read;
	}
	if (p->n_steps == 0)
		return;
	log_info("prompt of %zu token%s in %.3f s, %zu more steps in %.3f s (%.3f s each); waited "
		 "%.3f s; read %.3f GB of trunk, %.3f GB of experts; %s",
		 r->prompt.n, r->prompt.n == 1 ? "" : "s", p->steps[0].seconds, p->n_steps - 1,
		 rest, p->n_steps > 1 ? rest / (double)(p->n_steps - 1) : 0.0, waited,
		 (double)trunk / 1e9, (double)experts / 1e9, p->backend);
}

static void write_report(struct run *r, int *exit_code)
{
	struct err err = { 0 };

	if (!r->o->out || r->o->batch_file || r->has_no_report)
		return;
	r->report.prompt = &r->prompt;
	r->report.generated = &r->generated;
	r->report.text = r->generation.text ? r->generation.text : r->tokenizer ? "" : NULL;
	r->report.text_len = r->generation.text_len;
	r->report.exit_code = *exit_code;
	if (k3_report_write(&r->report, r->o->out, &err) < 0) {
		log_error("%s", err.text);
		if (*exit_code == 0)
			*exit_code = err_exit_code(err.code);
	}
}

/* The exit code of what ends only here: 0, or that of a timeline that could not be written. */
static int run_free(struct run *r)
{
	struct err unused = { 0 }, err = { 0 };
	int e;

	(void)close_outputs(r, &unused);
	k3_report_deinit(&r->report);
	free(r->generation.text);
	(void)k3_trace_free(r->values);
	(void)k3_sequence_free(r->sequence);
	(void)k3_engine_free(r->engine);
	(void)k3_team_free(r->team);
	(void)k3_iod_free(r->iod);
	(void)k3_embedded_finish(r->embedded);
	/* the daemon has added its part */
	e = timeline_finish(r->timeline, &err);
	if (e != 0)
		log_warning("%s", err.text);
	k3_ids_deinit(&r->stop_ids);
	k3_ids_deinit(&r->generated);
	k3_ids_deinit(&r->prompt);
	k3_jobs_deinit(&r->jobs);
	(void)k3_tokenizer_free(r->tokenizer);
	free(r);
	return e < 0 ? err_exit_code(err.code) : 0;
}

static int exit_code_of(const struct run *r, int e, const struct err *err)
{
	if (e >= 0)
		return 0;
	return r->daemon_exit > 0 && r->daemon_exit < 128 ? r->daemon_exit
							  : err_exit_code(err->code);
}

int k3_run(const struct k3_command_line *line, const char *trace_dir)
{
	struct run *r = calloc(1, sizeof(*r));
	struct err err = { 0 };
	int e, exit_code, last;

	if (!r || k3_report_init(&r->report, &err) < 0) {
		log_error("out of memory");
		free(r);
		return err_exit_code(ERR_NO_MEMORY);
	}
	r->line = line;
	r->o = &line->options;
	r->trace_dir = trace_dir;
	e = k3_cpus_use(r->o->cpus, &r->cpus, &err);
	if (e == 0)
		e = prepare(r, &err);
	if (e == 0) {
		k3_generate_catch_interrupts();
		e = start(r, &err);
	}
	if (e == 0)
		e = r->o->batch_file ? carry_jobs(r, &err) : generate(r, &err);
	if (e == 0)
		e = close_outputs(r, &err);
	if (e == 0 && r->values)
		e = k3_trace_finish(r->values, &err);
	if (e == 0 && k3_generate_was_interrupted() && !r->o->batch_file)
		e = err_set(&err, ERR_GONE, "interrupted after %zu tokens", r->generated.n);
	ask_daemon(r);
	if (e < 0)
		log_error("%s", err.text);
	else if (r->o->batch_file)
		say_batch_summary(r);
	else
		say_summary(r);
	if (e == 0 && !r->o->batch_file)
		k3_summary_say(&r->report, (unsigned)r->o->threads, stderr);
	exit_code = exit_code_of(r, e, &err);
	write_report(r, &exit_code);
	last = run_free(r);
	return exit_code ? exit_code : last;
}

int k3_cmd_run(const struct k3_command_line *line)
{
	if (line->options.list_presets) {
		k3_preset_print(stdout);
		return 0;
	}
	return k3_run(line, NULL);
}
