#include "compute/prompt.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compute/options.h"
#include "shared/fd.h"

enum { INPUT_SIZE_MAX = 1 << 30, FILE_SIZE_MAX = 256 << 20 };

int k3_ids_push(struct k3_ids *ids, uint32_t id, struct err *err)
{
	if (ids->n == ids->capacity) {
		size_t capacity = ids->capacity ? 2 * ids->capacity : 64;
		uint32_t *grown = realloc(ids->ids, capacity * sizeof(*grown));

		if (!grown)
			return err_set(err, ERR_NO_MEMORY, "no memory for %zu token ids", capacity);
		ids->ids = grown;
		ids->capacity = capacity;
	}
	ids->ids[ids->n++] = id;
	return 0;
}

bool k3_ids_contain(const uint32_t *ids, size_t n, uint32_t id)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] == id)
			return true;
	return false;
}

/* A byte of a file may be anything: only what can be printed is. */
static int unexpected_byte(const char *name, unsigned char byte, size_t at, struct err *err)
{
	char shown[8];

	(void)snprintf(shown, sizeof(shown), isprint(byte) ? "'%c'" : "0x%02x", byte);
	return err_set(err, ERR_USAGE,
		       "%s: %s at byte %zu is not part of a list of token ids such as 1,2,3", name,
		       shown, at);
}

int k3_ids_parse(const char *text, size_t size, const char *name, struct k3_ids *ids,
		 struct err *err)
{
	size_t at = 0;

	while (at < size) {
		uint64_t id = 0;
		size_t start;
		int r;

		if (text[at] && strchr(", \t\r\n[]", text[at])) {
			at++;
			continue;
		}
		for (start = at; at < size && text[at] >= '0' && text[at] <= '9'; at++)
			if (id <= UINT32_MAX)
				id = id * 10 + (uint64_t)(text[at] - '0');
		if (at == start)
			return unexpected_byte(name, (unsigned char)text[at], at, err);
		if (id >= UINT32_MAX)
			return err_set(err, ERR_USAGE, "%s: the id at byte %zu is too large", name,
				       start);
		r = k3_ids_push(ids, (uint32_t)id, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static char *join(const char *dir, const char *name)
{
	char *path;

	return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

static int open_in(struct k3_tokenizer **ret, const char *dir, uint32_t n_vocab, struct err *err)
{
	CLEANUP(freep) char *vocabulary_path = join(dir, "tiktoken.model");
	CLEANUP(freep) char *config_path = join(dir, "tokenizer_config.json");
	CLEANUP(freep) char *vocabulary = NULL;
	CLEANUP(freep) char *config = NULL;
	size_t vocabulary_size = 0, config_size = 0;
	int r;

	if (!vocabulary_path || !config_path)
		return err_set(err, ERR_NO_MEMORY, "no memory for a path");
	r = fd_read_file(AT_FDCWD, vocabulary_path, FILE_SIZE_MAX, &vocabulary, &vocabulary_size);
	if (r == -ENOENT || r == -ENOTDIR)
		return K3_TOKENIZER_NONE;
	if (r < 0)
		return err_set(err, ERR_VOCABULARY, "cannot read %s: %s", vocabulary_path,
			       fd_why(r));
	r = fd_read_file(AT_FDCWD, config_path, FILE_SIZE_MAX, &config, &config_size);
	if (r < 0 && r != -ENOENT)
		return err_set(err, ERR_VOCABULARY, "cannot read %s: %s", config_path, fd_why(r));
	return k3_tokenizer_new(ret, vocabulary, vocabulary_size, config, config_size, n_vocab,
				err);
}

int k3_tokenizer_open(struct k3_tokenizer **ret, const struct option_list *dirs, uint32_t n_vocab,
		      struct err *err)
{
	int r = K3_TOKENIZER_NONE;

	for (size_t i = 0; i < dirs->n && r == K3_TOKENIZER_NONE; i++)
		r = open_in(ret, dirs->items[i], n_vocab, err);
	return r;
}

static int read_text(struct k3_tokenizer *t, const char *text, size_t size, struct k3_ids *ids,
		     struct err *err)
{
	if (!t)
		return err_set(err, ERR_VOCABULARY,
			       "the model has no tiktoken.model, so a prompt can only be given by "
			       "--ids or --ids-file; --tok DIR names another directory");
	return k3_tokenizer_encode(t, text, size, false, ids, err);
}

/* "-" is the descriptor itself: /dev/stdin cannot be opened when it is a socket, or another user's
 * file. */
static FILE *open_input(const char *path)
{
	CLEANUP(fd_closep) int fd = -1;
	FILE *f;

	if (strcmp(path, "-") != 0)
		return fopen(path, "re");
	fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
	f = fd < 0 ? NULL : fdopen(fd, "r");
	if (f)
		fd = -1;
	return f;
}

int k3_input_read(const char *path, char **ret, size_t *ret_size, struct err *err)
{
	CLEANUP(freep) char *text = NULL;
	FILE *f = open_input(path);
	size_t capacity = 0, size = 0;
	int e = f ? 0 : errno;

	while (e == 0 && !feof(f)) {
		if (size == capacity) {
			char *grown = realloc(text, capacity ? 2 * capacity : 65536);

			if (!grown || capacity >= INPUT_SIZE_MAX) {
				e = grown ? EFBIG : ENOMEM;
				text = grown ? grown : text;
				break;
			}
			text = grown;
			capacity = capacity ? 2 * capacity : 65536;
		}
		size += fread(text + size, 1, capacity - size, f);
		e = ferror(f) ? errno : 0;
	}
	if (f)
		(void)fclose(f);
	if (e != 0)
		return err_set(err, ERR_USAGE, "cannot read %s: %s", path, strerror(e));
	*ret = TAKE(text);
	*ret_size = size;
	return 0;
}

static int read_file(const struct k3_options *o, struct k3_tokenizer *t, struct k3_ids *ids,
		     struct err *err)
{
	const char *path = o->prompt_file ? o->prompt_file : o->ids_file;
	CLEANUP(freep) char *text = NULL;
	size_t size = 0;
	int r = k3_input_read(path, &text, &size, err);

	if (r < 0)
		return r;
	if (o->ids_file)
		return k3_ids_parse(text, size, path, ids, err);
	return read_text(t, text, size, ids, err);
}

int k3_prompt_read(const struct k3_options *o, struct k3_tokenizer *t, uint32_t n_vocab,
		   struct k3_ids *ids, struct err *err)
{
	int r;

	if (o->prompt)
		r = read_text(t, o->prompt, strlen(o->prompt), ids, err);
	else if (o->ids)
		r = k3_ids_parse(o->ids, strlen(o->ids), "--ids", ids, err);
	else
		r = read_file(o, t, ids, err);
	if (r < 0)
		return r;
	if (ids->n == 0)
		return err_set(err, ERR_USAGE, "the prompt is empty: it has no token to continue");
	for (size_t i = 0; i < ids->n; i++)
		if (ids->ids[i] >= n_vocab)
			return err_set(err, ERR_USAGE,
				       "token id %" PRIu32 " of the prompt is not below the "
				       "vocabulary's %" PRIu32,
				       ids->ids[i], n_vocab);
	return 0;
}
