#include "compute/generate.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "compute/prompt.h"
#include "shared/fd.h"
#include "shared/log.h"
#include "shared/must.h"
#include "shared/timeline.h"

/* A long prompt says how far it is no more often than this. */
#define PROGRESS_SECONDS 2.0

/* Set by a signal: the one piece of state outside main.c that must be global. */
static volatile sig_atomic_t interrupted;

struct run {
	struct k3_generation *g;
	struct k3_ids tokens; /* prompt and generated */
	uint32_t n_dumped;    /* positions whose logits and routing are written */
	float *logits;        /* [rows kept][vocab_size] */
	struct k3_decoder decoder;
	/* routing of the chunk under way */
	uint16_t *routing;   /* [max_rows][n_moe_layers][top_k] */
	uint32_t *moe_index; /* [n_layers] */
	uint32_t n_moe_layers;
	double last_progress;
};

static void on_interrupt(int number)
{
	(void)number;
	interrupted = 1;
}

void k3_generate_catch_interrupts(void)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction action = { .sa_handler = on_interrupt, .sa_flags = SA_RESETHAND };

	for (size_t i = 0; i < N_ELEMENTS(signals); i++) {
		struct sigaction before;

		if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
			(void)sigaction(signals[i], &action, NULL);
	}
}

bool k3_generate_was_interrupted(void)
{
	return interrupted != 0;
}

static double now_seconds(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void keep_routing(void *data, uint32_t layer, uint32_t row, const uint16_t *ids,
			 const float *weights, uint32_t top_k)
{
	struct run *r = data;
	size_t at = (size_t)row * r->n_moe_layers + r->moe_index[layer];

	(void)weights;
	memcpy(r->routing + at * top_k, ids, top_k * sizeof(*ids));
}

static int init_trace(struct run *r, struct err *err)
{
	const struct k3_generation *g = r->g;

	if (!g->trace)
		return 0;
	r->moe_index = calloc(g->n_layers, sizeof(*r->moe_index));
	if (!r->moe_index)
		return err_set(err, ERR_NO_MEMORY, "no memory for the trace");
	for (uint32_t layer = 0; layer < g->n_layers; layer++) {
		r->moe_index[layer] = r->n_moe_layers;
		r->n_moe_layers += config_layer_is_moe(g->config, layer);
	}
	r->routing = calloc((size_t)g->max_rows * r->n_moe_layers * g->config->top_k + 1,
			    sizeof(*r->routing));
	if (!r->routing)
		return err_set(err, ERR_NO_MEMORY, "no memory for the trace");
	k3_engine_on_routing(g->engine, keep_routing, r);
	return 0;
}

static void write_trace_line(const struct run *r, uint32_t row, uint32_t position)
{
	uint32_t top_k = r->g->config->top_k;
	const uint16_t *ids = r->routing + (size_t)row * r->n_moe_layers * top_k;
	FILE *f = r->g->trace;

	(void)fprintf(f, "{\"tok\": %" PRIu32 ", \"layers\": [", position);
	for (uint32_t layer = 0; layer < r->n_moe_layers; layer++) {
		for (uint32_t k = 0; k < top_k; k++)
			(void)fprintf(f, "%s%d", k ? ", " : layer ? ", [" : "[", *ids++);
		(void)fputc(']', f);
	}
	(void)fputs("]}\n", f);
}

static int write_logits(FILE *f, const float *logits, size_t n, struct err *err)
{
	if (fwrite(logits, sizeof(*logits), n, f) != n)
		return err_set(err, errno == ENOSPC ? ERR_SPACE : ERR_IO, "cannot write logits: %s",
			       strerror(errno));
	return 0;
}

/* Run tokens [from, to) as one chunk; logits of the rows from first_kept on. */
static int run_chunk(struct run *r, uint32_t from, uint32_t to, uint32_t first_kept, bool again,
		     struct err *err)
{
	struct k3_generation *g = r->g;
	struct k3_rows rows = { .sequence = g->sequence,
				.ids = r->tokens.ids + from,
				.n = to - from,
				.n_logits = to - first_kept,
				.logits = r->logits };
	struct k3_batch batch = { .rows = &rows, .n_rows = 1, .again = again };
	int e = k3_engine_step(g->engine, &batch, err);

	if (e < 0)
		return e;
	if (g->all_logits && to > first_kept)
		e = write_logits(g->all_logits, r->logits,
				 (size_t)(to - first_kept) * g->config->vocab_size, err);
	for (uint32_t at = from; g->trace && at < to; at++)
		if (at >= r->n_dumped)
			write_trace_line(r, at - from, at);
	if (to > r->n_dumped)
		r->n_dumped = to;
	return e;
}

static void show_progress(struct run *r, uint32_t done, uint32_t n, double start)
{
	double now = now_seconds();

	if (now - r->last_progress < PROGRESS_SECONDS)
		return;
	r->last_progress = now;
	log_info("%" PRIu32 " of %" PRIu32 " tokens of the prompt in %.1f s", done, n, now - start);
}

/* Take in the tokens that the sequence has not seen; *ret_last: the row of the last one. */
static int evaluate(struct run *r, bool another_follows, double start, const float **ret_last,
		    struct err *err)
{
	struct k3_generation *g = r->g;
	uint32_t n = (uint32_t)r->tokens.n;
	uint32_t to, first_kept = n;

	if (g->recompute)
		k3_sequence_reset(g->sequence);
	for (uint32_t from = k3_sequence_position(g->sequence); from < n; from = to) {
		int e;

		to = n - from > g->max_rows ? from + g->max_rows : n;
		first_kept = to == n ? n - 1 : to;
		if (g->all_logits)
			first_kept = from > r->n_dumped ? from : r->n_dumped;
		if (first_kept > to)
			first_kept = to;
		e = run_chunk(r, from, to, first_kept, to < n || another_follows, err);
		if (e < 0)
			return e;
		if (to < n && interrupted)
			return err_set(err, ERR_GONE,
				       "interrupted after %" PRIu32 " of %" PRIu32 " tokens", to,
				       n);
		if (to < n)
			show_progress(r, to, n, start);
	}
	*ret_last = r->logits + (size_t)(n - 1 - first_kept) * g->config->vocab_size;
	return 0;
}

/* Text of one more token, or with UINT32_MAX what is left at the end. */
static int put_text(struct run *r, uint32_t id, bool final, struct err *err)
{
	struct k3_generation *g = r->g;
	size_t before = g->text_len;
	int e;

	if (!g->tokenizer)
		return 0;
	e = k3_decoder_push(&r->decoder, g->tokenizer, id, final, &g->text, &g->text_len);
	if (e < 0)
		return err_set(err, ERR_NO_MEMORY, "no memory for the text");
	if (!g->text_out || g->text_len == before)
		return 0;
	if (fwrite(g->text + before, 1, g->text_len - before, g->text_out) !=
		    g->text_len - before ||
	    fflush(g->text_out) != 0)
		return err_set(err, ERR_IO, "cannot write to standard output: %s", strerror(errno));
	return 0;
}

static void begin_step(const struct k3_generation *g, struct k3_step_report *s)
{
	const struct k3_iod_counts *c = k3_iod_counts(g->iod);

	*s = (struct k3_step_report){ .seconds = now_seconds(),
				      .wait_seconds = (double)c->wait_ns * 1e-9,
				      .trunk_bytes_read = c->trunk_bytes_read,
				      .expert_bytes_read = c->expert_bytes_read,
				      .experts_resident = c->experts_resident,
				      .experts_read = c->experts_read };
}

static int end_step(const struct k3_generation *g, struct k3_step_report *s, struct err *err)
{
	struct k3_step_report end;

	begin_step(g, &end);
	s->seconds = end.seconds - s->seconds;
	s->wait_seconds = end.wait_seconds - s->wait_seconds;
	s->trunk_bytes_read = end.trunk_bytes_read - s->trunk_bytes_read;
	s->expert_bytes_read = end.expert_bytes_read - s->expert_bytes_read;
	s->experts_resident = end.experts_resident - s->experts_resident;
	s->experts_read = end.experts_read - s->experts_read;
	k3_report_sample_memory(g->report);
	log_debug("step %zu: %.3f s, waited %.3f s; read trunk %.3f GB, experts %.3f GB (%" PRIu64
		  " read, %" PRIu64 " resident)",
		  g->report->n_steps, s->seconds, s->wait_seconds,
		  (double)s->trunk_bytes_read / 1e9, (double)s->expert_bytes_read / 1e9,
		  s->experts_read, s->experts_resident);
	return k3_report_step(g->report, s, err);
}

/* One step: evaluate, and choose a token when one is wanted. > 0: it was a stop id. */
static int run_step(struct run *r, uint32_t step, struct err *err)
{
	struct k3_generation *g = r->g;
	struct k3_step_report s;
	const float *last = NULL;
	uint64_t begin, sampling;
	uint32_t id;
	int e;

	begin_step(g, &s);
	begin = timeline_now(k3_iod_timeline(g->iod));
	e = evaluate(r, step + 1 < g->n_generate, s.seconds, &last, err);
	if (e == 0 && step == 0 && g->first_logits)
		e = write_logits(g->first_logits, last, g->config->vocab_size, err);
	if (e < 0)
		return e;
	sampling = timeline_now(k3_iod_timeline(g->iod));
	k3_digest_add(&g->report->digest, last, g->config->vocab_size);
	if (g->n_generate > 0) {
		id = k3_logits_highest(last, g->config->vocab_size);
		e = k3_ids_push(g->generated, id, err);
		if (e == 0)
			e = k3_ids_push(&r->tokens, id, err);
		if (e == 0 && k3_ids_contain(g->stop_ids, g->n_stop_ids, id))
			e = 1;
		if (e == 0)
			e = put_text(r, id, false, err);
	}
	if (e < 0)
		return e;
	timeline_span(k3_iod_timeline(g->iod), "sampling", sampling, NULL, 0);
	timeline_span(k3_iod_timeline(g->iod), "step", begin, "step", step);
	return end_step(g, &s, err) < 0 ? -ENOMEM : e;
}

/* On a terminal the next line of the log must not go on in the last line of the text. The newline
 * is the log's: standard output has the text and nothing else. */
static void leave_text_line(const struct k3_generation *g)
{
	if (g->text_out && g->text_len > 0 && g->text[g->text_len - 1] != '\n' &&
	    isatty(fileno(g->text_out)) && isatty(STDERR_FILENO))
		(void)fputc('\n', stderr);
}

static int run_steps(struct run *r, struct err *err)
{
	struct k3_generation *g = r->g;
	uint32_t step = 0;
	int e = 0;

	do
		e = run_step(r, step, err);
	while (e == 0 && ++step < g->n_generate && !interrupted);
	if (e >= 0)
		e = put_text(r, UINT32_MAX, true, err);
	leave_text_line(g);
	return e;
}

int k3_generate(struct k3_generation *g, struct err *err)
{
	uint32_t rows_kept = g->all_logits ? g->max_rows : 1;
	struct run r = { .g = g };
	int e = 0;

	r.last_progress = now_seconds();
	r.logits = malloc((size_t)rows_kept * g->config->vocab_size * sizeof(*r.logits));
	if (!r.logits)
		e = err_set(err, ERR_NO_MEMORY, "no memory for %" PRIu32 " rows of logits",
			    rows_kept);
	for (size_t i = 0; e == 0 && i < g->prompt->n; i++)
		e = k3_ids_push(&r.tokens, g->prompt->ids[i], err);
	if (e == 0)
		e = init_trace(&r, err);
	if (e == 0)
		e = run_steps(&r, err);
	k3_engine_on_routing(g->engine, NULL, NULL);
	k3_ids_deinit(&r.tokens);
	free(r.logits);
	free(r.routing);
	free(r.moe_index);
	return e < 0 ? e : 0;
}
