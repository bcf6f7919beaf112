#include "iod/store/routing.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "shared/attr.h"

enum { LAYERS_MAX = 1024, IDS_MAX = 65536 };

struct reading {
	struct iod_routing *r;
	const char *path;
	size_t capacity;
	uint32_t line;
	struct err *err;
};

static void file_closep(FILE **f)
{
	if (*f)
		(void)fclose(*f);
}

static void freep(void *p)
{
	free(*(void **)p);
}

static void json_freep(json_t **j)
{
	json_decref(*j);
}

/* number is the id until the reading ends. */
static int add(struct reading *in, uint32_t step, uint32_t layer, uint32_t id)
{
	struct iod_routing *r = in->r;

	if (r->n == in->capacity) {
		size_t capacity = in->capacity ? in->capacity * 2 : 1 << 16;
		void *asks = realloc(r->asks, capacity * sizeof(*r->asks));

		if (!asks)
			return err_set(in->err, ERR_NO_MEMORY, "no memory for the trace %s",
				       in->path);
		r->asks = asks;
		in->capacity = capacity;
	}
	r->asks[r->n++] = (struct iod_routing_ask){
		.step = step,
		.token = step,
		.layer = layer,
		.number = id,
	};
	if (layer >= r->n_layers)
		r->n_layers = layer + 1;
	if (id >= r->n_ids)
		r->n_ids = id + 1;
	if (step >= r->n_steps)
		r->n_steps = step + 1;
	return 0;
}

/* ---- JSON lines ------------------------------------------------------------------------------ */

static int read_layer(struct reading *in, uint32_t step, uint32_t layer, const json_t *ids)
{
	size_t first = in->r->n;
	const json_t *item;
	size_t i;

	if (!json_is_array(ids))
		return err_set(in->err, ERR_USAGE, "%s:%u: layers[%u] is no list of expert ids",
			       in->path, in->line, layer);
	json_array_foreach(ids, i, item)
	{
		json_int_t id = json_integer_value(item);
		int r;

		if (!json_is_integer(item) || id < 0 || id >= IDS_MAX)
			return err_set(in->err, ERR_USAGE,
				       "%s:%u: layers[%u][%zu] is no expert id (0 to %d)", in->path,
				       in->line, layer, i, IDS_MAX - 1);
		for (size_t k = first; k < in->r->n; k++)
			if (in->r->asks[k].number == (uint32_t)id)
				return err_set(in->err, ERR_USAGE,
					       "%s:%u: layers[%u] has expert %u twice", in->path,
					       in->line, layer, (uint32_t)id);
		r = add(in, step, layer, (uint32_t)id);
		if (r < 0)
			return r;
	}
	return 0;
}

static int read_line(struct reading *in, const char *text, size_t size, size_t *n_layers)
{
	json_error_t why;
	CLEANUP(json_freep) json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
	const json_t *layers = json_object_get(root, "layers");
	size_t n = json_array_size(layers);

	if (!root)
		return err_set(in->err, ERR_USAGE, "%s:%u: not JSON: %s", in->path, in->line,
			       why.text);
	if (n == 0 || n > LAYERS_MAX)
		return err_set(in->err, ERR_USAGE,
			       "%s:%u: no \"layers\": [[ids], ...] with 1 to %d layers", in->path,
			       in->line, LAYERS_MAX);
	if (*n_layers == 0)
		*n_layers = n;
	if (n != *n_layers)
		return err_set(in->err, ERR_USAGE, "%s:%u: %zu layers; the lines before have %zu",
			       in->path, in->line, n, *n_layers);
	for (uint32_t l = 0; l < n; l++) {
		int r = read_layer(in, in->r->n_tokens, l, json_array_get(layers, l));

		if (r < 0)
			return r;
	}
	in->r->n_tokens++;
	return 0;
}

static int read_lines(struct reading *in, FILE *f)
{
	CLEANUP(freep) char *text = NULL;
	size_t room = 0, n_layers = 0;
	ssize_t size;

	while ((size = getline(&text, &room, f)) >= 0) {
		int r;

		in->line++;
		if (strspn(text, " \t\r\n") == (size_t)size)
			continue;
		r = read_line(in, text, (size_t)size, &n_layers);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static int read_pairs(struct reading *in, FILE *f)
{
	unsigned char pair[8];
	uint32_t last = 0, step = 0;
	size_t size;

	while ((size = fread(pair, 1, sizeof(pair), f)) == sizeof(pair)) {
		uint32_t v[2];
		int r;

		for (int i = 0; i < 2; i++)
			v[i] = (uint32_t)pair[4 * i] | (uint32_t)pair[4 * i + 1] << 8 |
			       (uint32_t)pair[4 * i + 2] << 16 | (uint32_t)pair[4 * i + 3] << 24;
		if (v[0] >= LAYERS_MAX || v[1] >= IDS_MAX)
			return err_set(in->err, ERR_USAGE,
				       "%s: at byte %zu stand layer %" PRId32 " and expert %" PRId32
				       ": this is neither a trace of int32 pairs nor one of JSON "
				       "lines",
				       in->path, in->r->n * sizeof(pair), (int32_t)v[0],
				       (int32_t)v[1]);
		if (v[0] < last)
			step++;
		last = v[0];
		r = add(in, step, v[0], v[1]);
		if (r < 0)
			return r;
	}
	if (size > 0)
		return err_set(in->err, ERR_USAGE,
			       "%s: ends within a pair at byte %zu: pairs of int32 are 8 bytes "
			       "each",
			       in->path, in->r->n * sizeof(pair));
	return 0;
}

/* ---- both ------------------------------------------------------------------------------------ */

static void count_layers(struct iod_routing *r)
{
	bool has[LAYERS_MAX] = { 0 };

	for (size_t i = 0; i < r->n; i++) {
		r->n_distinct_layers += !has[r->asks[i].layer];
		has[r->asks[i].layer] = true;
	}
}

static void number_pairs(struct iod_routing *r, uint32_t top_k)
{
	size_t per_token = (size_t)r->n_distinct_layers * top_k;

	for (size_t i = 0; i < r->n; i++)
		r->asks[i].token = (uint32_t)(i / per_token);
	r->n_tokens = r->n ? r->asks[r->n - 1].token + 1 : 0;
}

static int read_file(struct reading *in, uint32_t top_k)
{
	struct iod_routing *r = in->r;
	CLEANUP(file_closep) FILE *f = fopen(in->path, "re");
	unsigned char head[2] = { 0 };
	struct stat st;
	bool is_text;
	int e;

	/* a device has no end, and a pipe cannot be read again from its start */
	if (f && fstat(fileno(f), &st) == 0 && !S_ISREG(st.st_mode))
		return err_set(in->err, ERR_USAGE,
			       "%s: it is no regular file; give a trace, or the directory of one",
			       in->path);
	if (!f || (fread(head, 1, sizeof(head), f) == 0 && ferror(f)))
		return err_set(in->err, ERR_IO, "cannot read %s: %s", in->path, strerror(errno));
	rewind(f);
	/* layer 123 would begin with the same byte, and go on with a zero */
	is_text = head[0] == '{' && head[1] != 0;
	e = is_text ? read_lines(in, f) : read_pairs(in, f);
	if (e < 0)
		return e;
	if (ferror(f))
		return err_set(in->err, ERR_IO, "cannot read %s: %s", in->path, strerror(errno));
	if (r->n == 0)
		return err_set(in->err, ERR_USAGE, "%s: no experts in it", in->path);
	count_layers(r);
	if (!is_text)
		number_pairs(r, top_k);
	for (size_t i = 0; i < r->n; i++)
		r->asks[i].number += r->asks[i].layer * r->n_ids;
	return 0;
}

int iod_routing_read(struct iod_routing *ret, const char *path, uint32_t top_k, struct err *err)
{
	CLEANUP(freep) char *inside = NULL;
	struct reading in = { .r = ret, .path = path, .err = err };
	struct stat st;

	*ret = (struct iod_routing){ 0 };
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
		if (asprintf(&inside, "%s/trace.jsonl", path) < 0)
			return err_set(err, ERR_NO_MEMORY, "no memory for a path");
		in.path = inside;
	}
	return read_file(&in, top_k);
}

void iod_routing_deinit(struct iod_routing *r)
{
	free(r->asks);
	r->asks = NULL;
}

size_t iod_routing_group(const struct iod_routing *r, size_t at)
{
	const struct iod_routing_ask *a = r->asks + at;
	size_t n = 1;

	while (at + n < r->n && a[n].client == a->client && a[n].step == a->step &&
	       a[n].layer == a->layer)
		n++;
	return n;
}

/* ---- clients side by side -------------------------------------------------------------------- */

enum { CLIENTS_MAX = 64 };

int iod_routing_split(struct iod_routing *r, uint32_t n_clients, struct err *err)
{
	size_t at[CLIENTS_MAX] = { 0 }, end[CLIENTS_MAX] = { 0 }, n = 0;
	struct iod_routing_ask *asks;
	uint32_t n_tokens = 0;

	if (n_clients > CLIENTS_MAX || n_clients > r->n_steps)
		return err_set(err, ERR_USAGE,
			       "--clients %u: the trace has %u steps, and at most %d clients are "
			       "simulated",
			       n_clients, r->n_steps, CLIENTS_MAX);
	asks = calloc(r->n, sizeof(*asks));
	if (!asks)
		return err_set(err, ERR_NO_MEMORY, "no memory for the trace");
	for (size_t i = 0, c = 0; i < r->n; i++) {
		while (c + 1 < n_clients &&
		       r->asks[i].step >= (uint64_t)r->n_steps * (c + 1) / n_clients)
			at[++c] = i;
		r->asks[i].client = (uint32_t)c;
		end[c] = i + 1;
	}
	for (size_t i = r->n; i-- > 0;) {
		r->asks[i].token -= r->asks[at[r->asks[i].client]].token;
		if (r->asks[i].token >= n_tokens)
			n_tokens = r->asks[i].token + 1;
	}
	while (n < r->n) {
		for (uint32_t c = 0; c < n_clients; c++) {
			size_t size = at[c] < end[c] ? iod_routing_group(r, at[c]) : 0;

			memcpy(asks + n, r->asks + at[c], size * sizeof(*asks));
			at[c] += size;
			n += size;
		}
	}
	free(r->asks);
	r->asks = asks;
	r->n_tokens = n_tokens;
	return 0;
}
