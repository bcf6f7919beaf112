#include "compute/run_check.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "compute/prompt.h"
#include "shared/model_files.h"

static int check_prompt(const struct k3_options *o, bool takes_batch, struct err *err)
{
	int n = !!o->prompt + !!o->prompt_file + !!o->ids + !!o->ids_file + !!o->batch_file;

	if (n == 1)
		return 0;
	return err_set(err, ERR_USAGE,
		       "give %s of --prompt TEXT, --prompt-file F, --ids 1,2,3%s --ids-file F%s",
		       n == 0 ? "one" : "only one", takes_batch ? "," : " and",
		       takes_batch ? " and --batch-file F" : "");
}

static int check_model(const struct k3_command_line *line, struct err *err)
{
	if (line->options.socket && line->words.n > 0)
		return err_set(err, ERR_USAGE,
			       "give a MODEL directory or --socket, not both: the daemon at %s "
			       "has its own model",
			       line->options.socket);
	if (!line->options.socket && line->words.n == 0)
		return err_set(err, ERR_USAGE,
			       "give a MODEL directory, or --socket PATH of a running k3-iod");
	for (size_t i = 0; i < line->words.n; i++) {
		struct stat st;

		if (stat(line->words.items[i], &st) < 0 || !S_ISDIR(st.st_mode))
			return err_set(err, ERR_USAGE, "the model %s is not a directory",
				       line->words.items[i]);
	}
	return 0;
}

/* Options of the private daemon, which a daemon that runs already has decided. */
static int check_socket(const struct k3_command_line *line, struct err *err)
{
	static const char *const private_only[] = {
		"trunk",        "trunk-gb", "cache-gb", "preset",     "config",      "backend",
		"direct",       "chunk",    "profile",  "tile",       "queue-depth", "policy",
		"verify-reads", "sums",     "lock",     "huge-pages", "disk-rate",   "memory-rate"
	};

	for (size_t i = 0; line->options.socket && i < N_ELEMENTS(private_only); i++)
		if (option_was_given(line->program, &line->options, private_only[i]))
			return err_set(err, ERR_USAGE,
				       "--%s means nothing with --socket: it is the daemon's to "
				       "decide; give it to k3-iod",
				       private_only[i]);
	return 0;
}

/* Options of one prompt alone. */
static int check_batch(const struct k3_options *o, struct err *err)
{
	const struct {
		const char *name;
		bool is_given;
	} single[] = { { "recompute", o->recompute },
		       { "dump-logits", o->dump_logits },
		       { "dump-logits-all", o->dump_logits_all },
		       { "dump-cache-trace", o->dump_cache_trace } };

	if (!o->batch_file && o->batch_max)
		return err_set(err, ERR_USAGE, "--batch-max means nothing without --batch-file");
	for (size_t i = 0; o->batch_file && i < N_ELEMENTS(single); i++)
		if (single[i].is_given)
			return err_set(
				err, ERR_USAGE,
				"--%s means nothing with --batch-file: it is about one prompt",
				single[i].name);
	return 0;
}

/* The same file, or the same name for one that is not there yet. Devices may be named twice. */
static bool is_same_file(const char *a, const char *b)
{
	struct stat x, y;
	bool has_x = stat(a, &x) == 0, has_y = stat(b, &y) == 0;

	if (!has_x || !has_y)
		return !has_x && !has_y && strcmp(a, b) == 0;
	return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* What one file of a run holds another must not overwrite. */
static int check_files(const struct k3_options *o, struct err *err)
{
	const struct {
		const char *name, *path;
		bool is_read;
	} files[] = { { "prompt-file", o->prompt_file, true },
		      { "ids-file", o->ids_file, true },
		      { "batch-file", o->batch_file, true },
		      { "config", o->config, true },
		      { "profile", o->profile, true },
		      { "sums", o->sums, true },
		      { "out", o->out, false },
		      { "timeline", o->timeline, false },
		      { "dump-logits", o->dump_logits, false },
		      { "dump-logits-all", o->dump_logits_all, false } };

	for (size_t i = 0; i < N_ELEMENTS(files); i++)
		if (files[i].path && !files[i].path[0])
			return err_set(err, ERR_USAGE, "--%s needs the name of a file, not \"\"",
				       files[i].name);
	for (size_t i = 0; i < N_ELEMENTS(files); i++)
		for (size_t k = 0; k < i; k++)
			if (files[i].path && files[k].path && !files[i].is_read &&
			    is_same_file(files[i].path, files[k].path))
				return err_set(err, ERR_USAGE,
					       "--%s and --%s name the same file %s: give one of "
					       "them another name",
					       files[k].name, files[i].name, files[i].path);
	return 0;
}

/* A slip must not cost a file of the model. */
static int check_written(const struct k3_command_line *line, struct err *err)
{
	const struct k3_options *o = &line->options;
	const struct {
		const char *name, *path;
	} written[] = { { "out", o->out },
			{ "timeline", o->timeline },
			{ "dump-logits", o->dump_logits },
			{ "dump-logits-all", o->dump_logits_all } };

	for (size_t i = 0; i < N_ELEMENTS(written); i++) {
		const char *path = written[i].path;

		if (path && model_files_has(&line->words, &o->trunk, path))
			return err_set(err, ERR_USAGE,
				       "--%s %s is a file of the model and would be lost; give "
				       "another name",
				       written[i].name, path);
	}
	return 0;
}

int k3_run_check(const struct k3_command_line *line, bool takes_batch, struct err *err)
{
	const struct k3_options *o = &line->options;
	int r = check_model(line, err);

	if (r == 0)
		r = check_prompt(o, takes_batch, err);
	if (r == 0)
		r = check_socket(line, err);
	if (r == 0)
		r = check_batch(o, err);
	if (r == 0)
		r = check_files(o, err);
	if (r == 0)
		r = check_written(line, err);
	if (r < 0)
		return r;
	if (o->incremental && o->recompute)
		return err_set(err, ERR_USAGE, "--incremental and --recompute exclude each other");
	if (o->tile && o->trunk.n > 0)
		return err_set(err, ERR_USAGE,
			       "--tile means nothing with --trunk: the file has its own cut");
	if (o->sums && !o->verify_reads)
		return err_set(err, ERR_USAGE, "--sums is used with --verify-reads");
	if (o->stop_id.n > 0 && o->gen == 0 && !o->batch_file)
		return err_set(err, ERR_USAGE, "--stop-id means nothing with --gen 0");
	return 0;
}

/* config.json names one; the vocabulary's [EOS] ends a text as well. */
static int push_eos(const struct config *c, struct k3_tokenizer *t, struct k3_ids *ret,
		    struct err *err)
{
	uint32_t end = t ? k3_tokenizer_special(t, "[EOS]") : UINT32_MAX;
	int r = 0;

	if (c->eos_id == UINT32_MAX && end == UINT32_MAX)
		return err_set(err, ERR_USAGE,
			       "--stop-id eos: neither config.json nor the vocabulary names an id "
			       "that ends a text; give the number");
	if (c->eos_id != UINT32_MAX)
		r = k3_ids_push(ret, c->eos_id, err);
	if (r == 0 && end != UINT32_MAX)
		r = k3_ids_push(ret, end, err);
	return r;
}

int k3_run_stop_ids(const struct k3_options *o, const struct config *c, struct k3_tokenizer *t,
		    struct k3_ids *ret, struct err *err)
{
	for (size_t i = 0; i < o->stop_id.n; i++) {
		const char *text = o->stop_id.items[i];
		size_t n = ret->n;
		bool is_known = true;
		int r;

		if (strcmp(text, "eos") == 0)
			r = push_eos(c, t, ret, err);
		else
			r = k3_ids_parse(text, strlen(text), "--stop-id", ret, err);
		if (r < 0)
			return r;
		for (size_t j = n; j < ret->n; j++)
			is_known = is_known && ret->ids[j] < c->vocab_size;
		if (ret->n == n || !is_known)
			return err_set(err, ERR_USAGE,
				       "--stop-id %s: an id below %" PRIu32 " or eos", text,
				       c->vocab_size);
	}
	return 0;
}
