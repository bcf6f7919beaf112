/*
 * The lines of --batch-file. Everything is read and checked before anything starts: a run of hours
 * does not end in its middle because of a comma.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "compute/jobs.h"
#include "compute/prompt.h"
#include "shared/attr.h"
#include "shared/fd.h"

static void job_deinit(struct k3_job *j)
{
	json_decref(j->id);
	k3_ids_deinit(&j->tokens);
	k3_ids_deinit(&j->stop_ids);
	k3_digest_deinit(&j->digest);
	free(j->text);
}

void k3_jobs_deinit(struct k3_jobs *jobs)
{
	for (size_t i = 0; i < jobs->n; i++)
		job_deinit(&jobs->items[i]);
	free(jobs->items);
	*jobs = (struct k3_jobs){ 0 };
}

/* ---- fields ---------------------------------------------------------------------------------- */

static int check_fields(const json_t *line, struct err *err)
{
	static const char *const known[] = { "prompt", "ids", "gen", "stop_ids", "id" };
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)line, key, value)
	{
		bool is_known = false;

		for (size_t i = 0; i < N_ELEMENTS(known); i++)
			is_known = is_known || strcmp(key, known[i]) == 0;
		if (!is_known)
			return err_set(err, ERR_USAGE,
				       "%s: no such field; there are prompt, ids, gen, stop_ids "
				       "and id",
				       key);
	}
	return 0;
}

static int read_ids(const json_t *value, const char *field, uint32_t n_vocab, struct k3_ids *ids,
		    struct err *err)
{
	const json_t *item;
	size_t i;

	if (!json_is_array(value))
		return err_set(err, ERR_USAGE, "%s: an array of token ids belongs there", field);
	json_array_foreach(value, i, item)
	{
		json_int_t id = json_integer_value(item);
		int r;

		if (!json_is_integer(item) || id < 0 || id >= n_vocab)
			return err_set(err, ERR_USAGE,
				       "%s: element %zu is not a token id below the vocabulary's "
				       "%" PRIu32,
				       field, i, n_vocab);
		r = k3_ids_push(ids, (uint32_t)id, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int read_text(const json_t *value, const struct k3_jobs_want *want, struct k3_ids *ids,
		     struct err *err)
{
	struct err why = { 0 };
	int r;

	if (!json_is_string(value))
		return err_set(err, ERR_USAGE, "prompt: a string belongs there");
	if (!want->tokenizer)
		return err_set(err, ERR_VOCABULARY,
			       "prompt: the model has no tiktoken.model, so prompts can only be "
			       "given as ids; --tok DIR names another directory");
	r = k3_tokenizer_encode(want->tokenizer, json_string_value(value),
				json_string_length(value), false, ids, &why);
	return r < 0 ? err_set(err, why.code, "prompt: %s", why.text) : 0;
}

static int read_prompt(const json_t *line, const struct k3_jobs_want *want, struct k3_job *j,
		       struct err *err)
{
	const json_t *text = json_object_get(line, "prompt");
	const json_t *ids = json_object_get(line, "ids");
	int r;

	if (!text == !ids)
		return err_set(err, ERR_USAGE, "give one of the fields prompt and ids%s",
			       text ? ", not both" : "");
	r = text ? read_text(text, want, &j->tokens, err)
		 : read_ids(ids, "ids", want->n_vocab, &j->tokens, err);
	if (r < 0)
		return r;
	j->n_prompt = j->tokens.n;
	if (j->n_prompt == 0)
		return err_set(err, ERR_USAGE, "%s: it has no token to continue",
			       text ? "prompt" : "ids");
	return 0;
}

static int read_gen(const json_t *value, const struct k3_jobs_want *want, struct k3_job *j,
		    struct err *err)
{
	json_int_t n = value ? json_integer_value(value) : (json_int_t)want->n_generate;

	if ((value && !json_is_integer(value)) || n < 0 || n > UINT32_MAX)
		return err_set(err, ERR_USAGE, "gen: a number of tokens belongs there");
	j->n_generate = (uint32_t)n;
	if (j->n_prompt + (uint64_t)n > want->max_positions + (n > 0))
		return err_set(err, ERR_USAGE,
			       "gen: %zu tokens of prompt and %" PRIu32
			       " to generate are more than the %" PRIu64 " positions of this model",
			       j->n_prompt, j->n_generate, want->max_positions);
	return 0;
}

static int read_stop_ids(const json_t *value, const struct k3_jobs_want *want, struct k3_job *j,
			 struct err *err)
{
	int r = 0;

	if (value)
		return read_ids(value, "stop_ids", want->n_vocab, &j->stop_ids, err);
	for (size_t i = 0; r == 0 && i < want->stop_ids->n; i++)
		r = k3_ids_push(&j->stop_ids, want->stop_ids->ids[i], err);
	return r;
}

static int read_id(json_t *value, size_t number, struct k3_job *j, struct err *err)
{
	if (value && !json_is_string(value) && !json_is_integer(value))
		return err_set(err, ERR_USAGE, "id: a string or a whole number belongs there");
	j->id = value ? json_incref(value) : json_integer((json_int_t)number);
	return j->id ? 0 : err_set(err, ERR_NO_MEMORY, "no memory for an id");
}

/* ---- lines ----------------------------------------------------------------------------------- */

static int read_object(json_t *line, size_t number, const struct k3_jobs_want *want,
		       struct k3_job *j, struct err *err)
{
	int r = check_fields(line, err);

	if (r == 0)
		r = read_prompt(line, want, j, err);
	if (r == 0)
		r = read_gen(json_object_get(line, "gen"), want, j, err);
	if (r == 0)
		r = read_stop_ids(json_object_get(line, "stop_ids"), want, j, err);
	if (r == 0)
		r = read_id(json_object_get(line, "id"), number, j, err);
	return r == 0 ? k3_digest_init(&j->digest, err) : r;
}

static int read_line(const char *text, size_t size, size_t number, const struct k3_jobs_want *want,
		     struct k3_job *j, struct err *err)
{
	json_error_t why;
	json_t *line = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
	int r;

	if (json_is_object(line))
		r = read_object(line, number, want, j, err);
	else
		r = err_set(err, ERR_USAGE, "it is not a JSON object: %s",
			    line ? "another kind of value" : why.text);
	json_decref(line);
	return r;
}

static int add_job(struct k3_jobs *jobs, struct k3_job **ret, struct err *err)
{
	if (jobs->n == jobs->capacity) {
		size_t capacity = jobs->capacity ? 2 * jobs->capacity : 16;
		struct k3_job *grown = realloc(jobs->items, capacity * sizeof(*grown));

		if (!grown)
			return err_set(err, ERR_NO_MEMORY, "no memory for %zu prompts", capacity);
		jobs->items = grown;
		jobs->capacity = capacity;
	}
	*ret = &jobs->items[jobs->n++];
	**ret = (struct k3_job){ 0 };
	return 0;
}

static bool is_blank(const char *text, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (!memchr(" \t\r", text[i], 3))
			return false;
	return true;
}

int k3_jobs_read(struct k3_jobs *jobs, const char *path, const struct k3_jobs_want *want,
		 struct err *err)
{
	CLEANUP(freep) char *text = NULL;
	size_t size = 0, number = 1, at = 0, len;
	struct err why = { 0 };
	int r = k3_input_read(path, &text, &size, err);

	for (; r == 0 && at < size; at += len + 1, number++) {
		const char *end = memchr(text + at, '\n', size - at);
		struct k3_job *j = NULL;

		len = end ? (size_t)(end - text) - at : size - at;
		if (is_blank(text + at, len))
			continue;
		r = add_job(jobs, &j, err);
		if (r == 0 && read_line(text + at, len, number, want, j, &why) < 0)
			r = err_set(err, why.code, "%s line %zu: %s", path, number, why.text);
	}
	if (r == 0 && jobs->n == 0)
		return err_set(err, ERR_USAGE, "%s has no line with a prompt", path);
	return r;
}

uint64_t k3_jobs_positions(const struct k3_jobs *jobs)
{
	uint64_t most = 0;

	for (size_t i = 0; i < jobs->n; i++) {
		const struct k3_job *j = &jobs->items[i];
		uint64_t n = j->n_prompt + (j->n_generate > 0 ? j->n_generate - 1 : 0);

		most = n > most ? n : most;
	}
	return most;
}

uint64_t k3_jobs_prompt_tokens(const struct k3_jobs *jobs)
{
	uint64_t n = 0;

	for (size_t i = 0; i < jobs->n; i++)
		n += jobs->items[i].n_prompt;
	return n;
}
