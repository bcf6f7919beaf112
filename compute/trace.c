#include "compute/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"

static const char *const value_names[] = {
#define VALUE(name, columns, sentence) #name,
	K3_VALUES(VALUE)
#undef VALUE
};

struct k3_trace {
	const struct config *config; /* borrowed */
	uint32_t n_layers, n_positions;
	uint32_t position;       /* of the first row of the step under way */
	int fd;                  /* owned */
	int failed;              /* -errno of the first write that failed */
	char *path;              /* owned */
	uint64_t data_off;       /* of the first tensor in the file */
	uint64_t *ids_off;       /* [n_layers], owned: of the experts; the weights follow */
	uint64_t last_off, size; /* of residual_last; of all data; from data_off */
};

static uint64_t row_size(const struct k3_trace *t)
{
	return (uint64_t)t->config->hidden_size * sizeof(float);
}

static uint64_t choice_size(const struct k3_trace *t)
{
	return (uint64_t)t->n_positions * t->config->top_k * sizeof(float);
}

static uint64_t value_off(const struct k3_trace *t, enum k3_value value, uint32_t layer)
{
	return ((uint64_t)layer * K3_VALUE_N_ + value) * t->n_positions * row_size(t);
}

static int lay_out(struct k3_trace *t)
{
	uint64_t at = value_off(t, 0, t->n_layers);

	t->ids_off = calloc(t->n_layers, sizeof(*t->ids_off));
	if (!t->ids_off)
		return -ENOMEM;
	for (uint32_t layer = 0; layer < t->n_layers; layer++) {
		t->ids_off[layer] = at;
		at += config_layer_is_moe(t->config, layer) ? 2 * choice_size(t) : 0;
	}
	t->last_off = at;
	t->size = at + t->n_layers * row_size(t);
	return 0;
}

static void put_tensor(FILE *f, const char *name, const char *dtype, uint64_t rows, uint64_t cols,
		       uint64_t off)
{
	(void)fprintf(f,
		      "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64 ",%" PRIu64
		      "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
		      ftello(f) > 8 + 1 ? "," : "", name, dtype, rows, cols, off,
		      off + rows * cols * 4);
}

static void put_header(const struct k3_trace *t, FILE *f)
{
	char name[64];

	(void)fputc('{', f);
	for (uint32_t layer = 0; layer < t->n_layers; layer++) {
		for (int v = 0; v < K3_VALUE_N_; v++) {
			(void)snprintf(name, sizeof(name), "layers.%" PRIu32 ".%s", layer,
				       value_names[v]);
			put_tensor(f, name, "F32", t->n_positions, t->config->hidden_size,
				   value_off(t, (enum k3_value)v, layer));
		}
		if (!config_layer_is_moe(t->config, layer))
			continue;
		(void)snprintf(name, sizeof(name), "layers.%" PRIu32 ".experts", layer);
		put_tensor(f, name, "I32", t->n_positions, t->config->top_k, t->ids_off[layer]);
		(void)snprintf(name, sizeof(name), "layers.%" PRIu32 ".weights", layer);
		put_tensor(f, name, "F32", t->n_positions, t->config->top_k,
			   t->ids_off[layer] + choice_size(t));
	}
	put_tensor(f, "residual_last", "F32", t->n_layers, t->config->hidden_size, t->last_off);
	(void)fputc('}', f);
	while (ftello(f) % 64 != 0)
		(void)fputc(' ', f);
}

static void put(struct k3_trace *t, const void *bytes, uint64_t size, uint64_t off)
{
	int r = fd_pwrite_all(t->fd, bytes, size, t->data_off + off);

	if (r < 0 && t->failed == 0)
		t->failed = r;
}

/* The header is written last but its length, so that its own text can be measured. */
static int write_header(struct k3_trace *t)
{
	CLEANUP(freep) char *text = NULL;
	size_t size = 0;
	uint64_t header_size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return -ENOMEM;
	(void)fwrite("\0\0\0\0\0\0\0", 1, 8, f);
	put_header(t, f);
	if (fclose(f) != 0)
		return -ENOMEM;
	header_size = size - 8;
	memcpy(text, &header_size, sizeof(header_size));
	t->data_off = size;
	if (ftruncate(t->fd, (off_t)(size + t->size)) < 0)
		return -errno;
	return fd_pwrite_all(t->fd, text, size, 0);
}

static int fail(const struct k3_trace *t, int r, struct err *err)
{
	return err_set(err, r == -ENOSPC ? ERR_SPACE : ERR_IO, "cannot write %s: %s", t->path,
		       strerror(-r));
}

int k3_trace_new(struct k3_trace **ret, const char *dir, const struct config *config,
		 uint32_t n_layers, uint32_t n_positions, struct err *err)
{
	CLEANUP(k3_trace_freep) struct k3_trace *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return err_set(err, ERR_NO_MEMORY, "no memory for the trace");
	t->fd = -1;
	if (asprintf(&t->path, "%s/trace.f32", dir) < 0) {
		t->path = NULL;
		return err_set(err, ERR_NO_MEMORY, "no memory for the trace");
	}
	t->config = config;
	t->n_layers = n_layers;
	t->n_positions = n_positions;
	if (mkdir(dir, 0777) < 0 && errno != EEXIST)
		return err_set(err, ERR_IO, "cannot make the directory %s: %s", dir,
			       strerror(errno));
	t->fd = open(t->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	r = t->fd < 0 ? -errno : lay_out(t);
	if (r == 0)
		r = write_header(t);
	if (r < 0)
		return fail(t, r, err);
	*ret = TAKE(t);
	return 0;
}

static void on_value(void *data, enum k3_value value, uint32_t layer, uint32_t position,
		     const float *x, uint32_t n_rows)
{
	struct k3_trace *t = data;

	t->position = position;
	if (n_rows == 0 || position + n_rows > t->n_positions)
		return;
	put(t, x, n_rows * row_size(t), value_off(t, value, layer) + position * row_size(t));
	if (value == K3_VALUE_residual && position + n_rows == t->n_positions)
		put(t, x + (size_t)(n_rows - 1) * t->config->hidden_size, row_size(t),
		    t->last_off + layer * row_size(t));
}

static void on_routing(void *data, uint32_t layer, uint32_t row, const uint16_t *ids,
		       const float *weights, uint32_t top_k)
{
	struct k3_trace *t = data;
	uint64_t off = t->ids_off[layer] + (uint64_t)(t->position + row) * top_k * sizeof(float);

	if (t->position + row >= t->n_positions)
		return;
	for (uint32_t k = 0; k < top_k; k++) {
		uint32_t id = ids[k];

		put(t, &id, sizeof(id), off + k * sizeof(id));
	}
	put(t, weights, top_k * sizeof(float), off + choice_size(t));
}

void k3_trace_watch(struct k3_trace *t, struct k3_engine *e)
{
	k3_engine_on_value(e, on_value, t);
	k3_engine_on_routing(e, on_routing, t);
}

int k3_trace_finish(struct k3_trace *t, struct err *err)
{
	if (t->failed == 0 && close(TAKE_FD(t->fd)) < 0)
		t->failed = -errno;
	return t->failed == 0 ? 0 : fail(t, t->failed, err);
}

struct k3_trace *k3_trace_free(struct k3_trace *t)
{
	if (!t)
		return NULL;
	(void)fd_close(t->fd);
	free(t->ids_off);
	free(t->path);
	free(t);
	return NULL;
}

void k3_trace_freep(struct k3_trace **t)
{
	*t = k3_trace_free(*t);
}
