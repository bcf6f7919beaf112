/*
 * k3 tokenize: text to ids and back, without a model. Ids are printed as --ids takes them. With
 * --jsonl every line is a JSON string and becomes a line with a JSON array.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/options.h"
#include "compute/prompt.h"
#include "shared/fd.h"
#include "shared/log.h"

static void print_ids(const struct k3_ids *ids, const char *open, const char *close)
{
	(void)fputs(open, stdout);
	for (size_t i = 0; i < ids->n; i++)
		(void)printf("%s%" PRIu32, i ? "," : "", ids->ids[i]);
	(void)puts(close);
}

static int tokenize_text(struct k3_tokenizer *t, const char *text, size_t size, bool control,
			 const char *open, const char *close, struct err *err)
{
	struct k3_ids ids = { 0 };
	int r = k3_tokenizer_encode(t, text, size, control, &ids, err);

	if (r == 0)
		print_ids(&ids, open, close);
	k3_ids_deinit(&ids);
	return r;
}

static int tokenize_file(struct k3_tokenizer *t, const char *path, bool control, struct err *err)
{
	CLEANUP(freep) char *text = NULL;
	size_t size;
	int r = k3_input_read(path, &text, &size, err);

	return r < 0 ? r : tokenize_text(t, text, size, control, "", "", err);
}

static int tokenize_line(struct k3_tokenizer *t, const char *line, size_t size, bool control,
			 struct err *err)
{
	json_error_t why;
	json_t *value = json_loadb(line, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
	int r;

	if (json_is_string(value))
		r = tokenize_text(t, json_string_value(value), json_string_length(value), control,
				  "[", "]", err);
	else
		r = err_set(err, ERR_USAGE, "the line is not a JSON string: %s",
			    value ? "another kind of value" : why.text);
	json_decref(value);
	return r;
}

static int tokenize_jsonl(struct k3_tokenizer *t, const char *path, bool control, struct err *err)
{
	FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
	CLEANUP(freep) char *line = NULL;
	size_t capacity = 0, number = 0;
	ssize_t len;
	int r = 0;

	if (!f)
		return err_set(err, ERR_USAGE, "cannot read %s: %s", path, strerror(errno));
	while (r == 0 && (len = getline(&line, &capacity, f)) >= 0) {
		struct err why = { 0 };

		number++;
		r = tokenize_line(t, line, (size_t)len, control, &why);
		if (r < 0)
			r = err_set(err, why.code, "%s line %zu: %s", path, number, why.text);
	}
	if (r == 0 && ferror(f))
		r = err_set(err, ERR_IO, "cannot read %s: %s", path, strerror(errno));
	if (f != stdin)
		(void)fclose(f);
	return r;
}

static int decode(struct k3_tokenizer *t, const char *text, struct err *err)
{
	struct k3_ids ids = { 0 };
	int r = k3_ids_parse(text, strlen(text), "--decode", &ids, err);

	for (size_t i = 0; r == 0 && i < ids.n; i++) {
		size_t size;
		const char *bytes = k3_tokenizer_bytes(t, ids.ids[i], &size);

		if (bytes)
			(void)fwrite(bytes, 1, size, stdout);
		else
			r = err_set(err, ERR_USAGE, "--decode: there is no token %" PRIu32,
				    ids.ids[i]);
	}
	k3_ids_deinit(&ids);
	return r;
}

static int check(const struct k3_command_line *line, struct err *err)
{
	const struct k3_options *o = &line->options;

	if (!o->tok)
		return err_set(err, ERR_USAGE,
			       "--tok DIR is needed: the directory of tiktoken.model");
	if ((line->words.n == 1) + !!o->file + !!o->jsonl + !!o->decode != 1 || line->words.n > 1)
		return err_set(err, ERR_USAGE,
			       "give exactly one of TEXT, --file F, --jsonl F and --decode IDS");
	if (o->decode && o->control)
		return err_set(err, ERR_USAGE, "--control means nothing with --decode");
	return 0;
}

static int tokenize(const struct k3_command_line *line, struct err *err)
{
	const struct k3_options *o = &line->options;
	struct option_list dirs = { .items = { o->tok }, .n = 1 };
	CLEANUP(k3_tokenizer_freep) struct k3_tokenizer *t = NULL;
	int r = check(line, err);

	if (r < 0)
		return r;
	r = k3_tokenizer_open(&t, &dirs, 0, err);
	if (r == K3_TOKENIZER_NONE)
		return err_set(err, ERR_VOCABULARY, "there is no tiktoken.model in %s", o->tok);
	if (r < 0)
		return r;
	if (o->file)
		return tokenize_file(t, o->file, o->control, err);
	if (o->jsonl)
		return tokenize_jsonl(t, o->jsonl, o->control, err);
	if (o->decode)
		return decode(t, o->decode, err);
	return tokenize_text(t, line->words.items[0], strlen(line->words.items[0]), o->control, "",
			     "", err);
}

int k3_cmd_tokenize(const struct k3_command_line *line)
{
	struct err err = { 0 };
	int r = tokenize(line, &err);

	if (r == 0)
		return 0;
	log_error("%s", err.text);
	return err_exit_code(err.code);
}
