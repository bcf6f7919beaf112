/*
 * Carrying many jobs through the model at once. A step takes a row of every job that has a place,
 * and fills what room is left with the prompts, in the order of the file: so nobody waits for
 * somebody else's long prompt, and every sweep over the weights serves all. A job that has ended
 * leaves, and the next one takes its place and its sequence.
 */
#include "compute/jobs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "compute/generate.h"
#include "compute/prompt.h"
#include "compute/report.h"
#include "shared/attr.h"
#include "shared/fd.h"

struct place {
	struct k3_job *job;           /* NULL: free */
	struct k3_sequence *sequence; /* made when first needed, then used again */
	float *logits;                /* [vocab_size], part of carry.logits */
};

struct carry {
	struct k3_jobs_run *r;
	struct place *places; /* [n_places] */
	float *logits;        /* [n_places][vocab_size] */
	size_t next;          /* job that waits for a place */
	/* the step under way */
	struct k3_rows *rows;     /* [n_places] */
	struct place **row_place; /* [n_places]: whose they are */
	uint32_t n_rows;
};

/* ---- places ---------------------------------------------------------------------------------- */

static int take_place(struct carry *c, struct place *p, struct err *err)
{
	int r = 0;

	if (p->sequence)
		k3_sequence_reset(p->sequence);
	else
		r = k3_sequence_new(&p->sequence, c->r->engine, err);
	if (r == 0 && c->r->takes_memory)
		r = k3_sequence_take(p->sequence, err);
	if (r == 0)
		p->job = &c->r->jobs->items[c->next++];
	return r;
}

static int fill_places(struct carry *c, struct err *err)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < c->r->n_places; i++)
		if (!c->places[i].job && c->next < c->r->jobs->n)
			r = take_place(c, &c->places[i], err);
	return r;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void add_rows(struct carry *c, struct place *p, uint32_t *spare)
{
	uint32_t position = k3_sequence_position(p->sequence);
	uint32_t left = (uint32_t)p->job->tokens.n - position;
	uint32_t more = left - 1 < *spare ? left - 1 : *spare;

	*spare -= more;
	c->row_place[c->n_rows] = p;
	c->rows[c->n_rows++] = (struct k3_rows){
		.sequence = p->sequence,
		.ids = p->job->tokens.ids + position,
		.n = 1 + more,
		.n_logits = 1 + more == left,
		.logits = p->logits,
	};
}

/* Does every row of this step end its job, if no stop id does sooner? */
static bool is_last_step(const struct carry *c)
{
	if (c->next < c->r->jobs->n)
		return false;
	for (uint32_t i = 0; i < c->n_rows; i++) {
		const struct k3_job *j = c->row_place[i]->job;

		if (c->rows[i].n_logits == 0 || j->tokens.n - j->n_prompt + 1 < j->n_generate)
			return false;
	}
	return true;
}

static int step(struct carry *c, struct err *err)
{
	struct k3_batch batch = { .rows = c->rows };
	uint32_t n_active = 0, spare;

	for (uint32_t i = 0; i < c->r->n_places; i++)
		n_active += c->places[i].job != NULL;
	spare = c->r->max_rows - n_active;
	c->n_rows = 0;
	for (uint32_t i = 0; i < c->r->n_places; i++)
		if (c->places[i].job)
			add_rows(c, &c->places[i], &spare);
	batch.n_rows = c->n_rows;
	batch.again = !is_last_step(c);
	c->r->n_steps++;
	return k3_engine_step(c->r->engine, &batch, err);
}

/* ---- results --------------------------------------------------------------------------------- */

static json_t *json_result(const struct carry *c, const struct k3_job *j)
{
	size_t n_generated = j->tokens.n - j->n_prompt;
	char hex[K3_DIGEST_HEX];
	json_t *o = json_object();

	k3_digest_hex(&j->digest, hex);
	(void)json_object_set(o, "id", j->id);
	(void)json_object_set_new(o, "prompt_ids", k3_json_ids(j->tokens.ids, j->n_prompt));
	(void)json_object_set_new(o, "generated_ids",
				  k3_json_ids(j->tokens.ids + j->n_prompt, n_generated));
	(void)json_object_set_new(
		o, "text",
		c->r->tokenizer ? json_stringn(j->text ? j->text : "", j->text_len) : json_null());
	(void)json_object_set_new(o, "logits_digest", json_string(hex));
	return o;
}

static int write_result(struct carry *c, const struct k3_job *j, struct err *err)
{
	json_t *o = json_result(c, j);
	CLEANUP(freep) char *line = json_dumps(o, JSON_COMPACT);

	json_decref(o);
	if (!line)
		return err_set(err, ERR_NO_MEMORY, "no memory for a result");
	if (fprintf(c->r->out, "%s\n", line) < 0 || fflush(c->r->out) != 0)
		return err_set(err, errno == ENOSPC ? ERR_SPACE : ERR_IO,
			       "cannot write a result: %s", strerror(errno));
	return 0;
}

static int put_text(struct carry *c, struct k3_job *j, uint32_t id, bool final, struct err *err)
{
	if (c->r->tokenizer &&
	    k3_decoder_push(&j->decoder, c->r->tokenizer, id, final, &j->text, &j->text_len) < 0)
		return err_set(err, ERR_NO_MEMORY, "no memory for the text");
	return 0;
}

static int end_job(struct carry *c, struct place *p, struct err *err)
{
	int r = put_text(c, p->job, UINT32_MAX, true, err);

	if (r == 0)
		r = write_result(c, p->job, err);
	p->job = NULL;
	c->r->n_done++;
	return r;
}

/* The job's row of logits is there: choose a token. */
static int take_logits(struct carry *c, struct place *p, struct err *err)
{
	struct k3_job *j = p->job;
	uint32_t n_vocab = c->r->config->vocab_size;
	uint32_t id;
	bool is_stop;
	int r;

	k3_digest_add(&j->digest, p->logits, n_vocab);
	if (j->n_generate == 0)
		return end_job(c, p, err);
	id = k3_logits_highest(p->logits, n_vocab);
	is_stop = k3_ids_contain(j->stop_ids.ids, j->stop_ids.n, id);
	r = k3_ids_push(&j->tokens, id, err);
	if (r == 0 && !is_stop)
		r = put_text(c, j, id, false, err);
	if (r < 0)
		return r;
	c->r->n_generated++;
	if (is_stop || j->tokens.n - j->n_prompt == j->n_generate)
		return end_job(c, p, err);
	return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int carry_all(struct carry *c, struct err *err)
{
	const struct k3_jobs_run *r = c->r;

	while (r->n_done < r->jobs->n) {
		int e = fill_places(c, err);

		if (e == 0)
			e = step(c, err);
		for (uint32_t i = 0; e == 0 && i < c->n_rows; i++)
			if (c->rows[i].n_logits > 0)
				e = take_logits(c, c->row_place[i], err);
		if (e < 0)
			return e;
		if (k3_generate_was_interrupted() && r->n_done < r->jobs->n)
			return err_set(err, ERR_GONE,
				       "interrupted after %zu of %zu prompts had ended", r->n_done,
				       r->jobs->n);
	}
	return 0;
}

int k3_jobs_carry(struct k3_jobs_run *r, struct err *err)
{
	size_t n_vocab = r->config->vocab_size;
	struct carry c = { .r = r };
	int e;

	c.places = calloc(r->n_places, sizeof(*c.places));
	c.rows = calloc(r->n_places, sizeof(*c.rows));
	c.row_place = calloc(r->n_places, sizeof(*c.row_place));
	c.logits = calloc(r->n_places * n_vocab, sizeof(*c.logits));
	if (c.places && c.rows && c.row_place && c.logits) {
		for (uint32_t i = 0; i < r->n_places; i++)
			c.places[i].logits = c.logits + i * n_vocab;
		e = carry_all(&c, err);
	} else {
		e = err_set(err, ERR_NO_MEMORY, "no memory for %u sequences", r->n_places);
	}
	for (uint32_t i = 0; c.places && i < r->n_places; i++)
		(void)k3_sequence_free(c.places[i].sequence);
	free(c.logits);
	free(c.row_place);
	free(c.rows);
	free(c.places);
	return e;
}
