/*
 * See synth.h. What tensors there are and their shapes come from the role table, as for binding;
 * how they are filled stands in one table below: standard deviations of 1 / sqrt(inputs) times a
 * gain, norms near one, and a correction bias large enough to change the choice of experts.
 */
#include "iod/store/synth.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "iod/store/synth_fill.h"
#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/names.h"

enum { BUFFER_SIZE = 8 << 20, NAME_SIZE = 160 };
enum dtype { F32 = 0, BF16 = 1, U8 = 2 }; /* the order in a shard */

struct tensor {
	char name[NAME_SIZE];
	enum dtype dtype;
	uint32_t rank;
	uint32_t shape[3];
	uint64_t size;
	struct iod_fill fill;
};

struct synth {
	const struct iod_synth_want *want;
	struct err *err;
	struct config config;
	struct iod_filler *filler; /* owned */
	struct tensor *tensors;    /* owned; of the shard at hand */
	uint32_t n_tensors, n_allocated;
	char *buffer;   /* owned */
	FILE *index;    /* owned */
	char **written; /* owned: paths to remove when it fails */
	uint32_t n_written;
	uint64_t data_size, file_size; /* of all shards so far */
	uint64_t total;                /* data bytes that all shards will have */
	bool is_directory_ours;
};

static void synth_deinit(struct synth *y)
{
	for (uint32_t i = 0; i < y->n_written; i++)
		free(y->written[i]);
	free(y->written);
	iod_filler_freep(&y->filler);
	free(y->tensors);
	free(y->buffer);
	if (y->index)
		(void)fclose(y->index);
}

static int fail_write(struct synth *y, const char *path, int r)
{
	bool is_space = r == -ENOSPC || r == -EDQUOT || r == -EFBIG;

	return err_set(y->err, is_space ? ERR_SPACE : ERR_IO, "%s: writing failed: %s", path,
		       strerror(-r));
}

/* ---- what there is ----------------------------------------------------------------------- */

static struct tensor *add_tensor(struct synth *y, enum dtype dtype)
{
	if (y->n_tensors == y->n_allocated) {
		uint32_t n = y->n_allocated ? 2 * y->n_allocated : 1024;
		struct tensor *grown = reallocarray(y->tensors, n, sizeof(*grown));

		if (!grown)
			return NULL;
		y->tensors = grown;
		y->n_allocated = n;
	}
	y->tensors[y->n_tensors] = (struct tensor){ .dtype = dtype };
	return &y->tensors[y->n_tensors++];
}

static void set_shape(struct tensor *t, uint32_t rank, uint32_t a, uint32_t b, uint32_t c)
{
	static const uint32_t sizes[] = { [F32] = 4, [BF16] = 2, [U8] = 1 };

	t->rank = rank;
	t->shape[0] = a;
	t->shape[1] = b;
	t->shape[2] = c;
	t->size = sizes[t->dtype];
	for (uint32_t i = 0; i < rank; i++)
		t->size *= t->shape[i];
}

/* Gain of a matrix over 1 / sqrt(inputs). */
static float gain_of(enum role role)
{
	switch (role) {
	case ROLE_MLA_Q_B:
	case ROLE_MLA_KV_B:
		return 1.6f;
	case ROLE_DENSE_GATE:
	case ROLE_DENSE_UP:
	case ROLE_SHARED_GATE:
	case ROLE_SHARED_UP:
		return 1.5f;
	case ROLE_ROUTER:
		return 1.2f;
	case ROLE_LM_HEAD:
		return 2.0f;
	default:
		return 1.0f;
	}
}

static int add_role(struct synth *y, enum role role, uint32_t layer)
{
	const struct config *c = &y->config;
	struct iod_fill normal = { .kind = IOD_FILL_NORMAL };
	uint32_t rows, cols, padded;
	struct tensor *t;
	bool is_f32 = role == ROLE_KDA_Q_CONV || role == ROLE_KDA_K_CONV ||
		      role == ROLE_KDA_V_CONV || role == ROLE_KDA_A_LOG ||
		      role == ROLE_KDA_DT_BIAS || role == ROLE_KDA_O_NORM ||
		      role == ROLE_ROUTER_BIAS;

	t = add_tensor(y, is_f32 ? F32 : BF16);
	if (!t)
		return err_set(y->err, ERR_NO_MEMORY, "out of memory");
	(void)names_format(role, layer, t->name, sizeof(t->name));
	role_shape(role, c, &rows, &cols);
	t->fill = normal;
	switch (role) {
	case ROLE_KDA_Q_CONV:
	case ROLE_KDA_K_CONV:
	case ROLE_KDA_V_CONV:
		set_shape(t, 3, rows, 1, cols);
		t->fill.spread = 0.6f;
		return 0;
	case ROLE_KDA_A_LOG: /* longer than the heads, as released */
		padded = c->kda_dim > c->n_kda_heads ? c->kda_dim : c->n_kda_heads + 1;
		set_shape(t, 1, padded, 0, 0);
		t->fill = (struct iod_fill){ .kind = IOD_FILL_A_LOG, .n_real = cols };
		return 0;
	case ROLE_KDA_DT_BIAS:
		set_shape(t, 1, cols, 0, 0);
		t->fill.center = -1;
		t->fill.spread = 1;
		return 0;
	case ROLE_ROUTER_BIAS:
		set_shape(t, 1, cols, 0, 0);
		t->fill.spread = 0.25f;
		return 0;
	case ROLE_ATTN_RES_PROJ:
	case ROLE_MLP_RES_PROJ:
	case ROLE_OUT_RES_PROJ:
		set_shape(t, 2, 1, cols, 0);
		t->fill.spread = 1.5f / sqrtf((float)cols);
		return 0;
	case ROLE_EMBED:
		set_shape(t, 2, rows, cols, 0);
		t->fill.spread = 1;
		return 0;
	default:
		break;
	}
	if (role_is_vector(role)) { /* a norm */
		set_shape(t, 1, cols, 0, 0);
		t->fill.center = 1;
		t->fill.spread = 0.3f;
	} else {
		set_shape(t, 2, rows, cols, 0);
		t->fill.spread = gain_of(role) / sqrtf((float)cols);
	}
	return 0;
}

static int add_experts(struct synth *y, uint32_t layer)
{
	for (uint32_t i = 0; i < y->config.n_experts * EXPERT_PARTS; i++) {
		enum expert_part part = (enum expert_part)(i % EXPERT_PARTS);
		bool is_scale = part == EXPERT_GATE_SCALE || part == EXPERT_DOWN_SCALE ||
				part == EXPERT_UP_SCALE;
		struct tensor *t = add_tensor(y, U8);
		uint32_t rows, cols;

		if (!t)
			return err_set(y->err, ERR_NO_MEMORY, "out of memory");
		(void)names_format_expert(layer, i / EXPERT_PARTS, part, t->name, sizeof(t->name));
		expert_part_shape(part, &y->config, &rows, &cols);
		set_shape(t, 2, rows, cols, 0);
		t->fill.kind = is_scale ? IOD_FILL_SCALE : IOD_FILL_PACKED;
		/* Random E2M1 codes deviate by 2.9; 32 inputs share a scale byte. */
		if (is_scale)
			t->fill.base =
				(uint8_t)lrintf(127 + log2f(1.5f / sqrtf(32 * (float)cols) / 2.9f));
	}
	return 0;
}

static int compare_tensors(const void *a, const void *b)
{
	const struct tensor *x = a, *y = b;

	return x->dtype != y->dtype ? (int)x->dtype - (int)y->dtype : strcmp(x->name, y->name);
}

/* The tensors of layer, or the globals for n_layers, in the order of the file. */
static int list_tensors(struct synth *y, uint32_t layer)
{
	const struct config *c = &y->config;
	int r = 0;

	y->n_tensors = 0;
	for (unsigned i = 0; r == 0 && i < ROLE_N_; i++) {
		enum role role = (enum role)i;
		bool is_layer =
			role_layer_kind(role) != LAYER_HEAD && role_layer_kind(role) != LAYER_EMBED;

		if (layer == c->n_layers ? !is_layer : role_in_layer(role, c, layer))
			r = add_role(y, role, layer);
	}
	if (r == 0 && layer < c->n_layers && config_layer_is_moe(c, layer))
		r = add_experts(y, layer);
	qsort(y->tensors, y->n_tensors, sizeof(*y->tensors), compare_tensors);
	return r;
}

/* ---- files ------------------------------------------------------------------------------- */

/* The header as the released files have it: no spaces, no padding. Caller frees. */
static int make_header(struct synth *y, char **ret, size_t *ret_size)
{
	static const char *const names[] = { [F32] = "F32", [BF16] = "BF16", [U8] = "U8" };
	FILE *f = open_memstream(ret, ret_size);
	uint64_t at = 0;

	if (!f)
		return err_set(y->err, ERR_NO_MEMORY, "out of memory");
	for (uint32_t i = 0; i < y->n_tensors; i++) {
		const struct tensor *t = &y->tensors[i];

		(void)fprintf(f, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? ',' : '{', t->name,
			      names[t->dtype]);
		for (uint32_t k = 0; k < t->rank; k++)
			(void)fprintf(f, "%s%u", k ? "," : "", t->shape[k]);
		(void)fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
			      (unsigned long long)at + t->size);
		at += t->size;
	}
	(void)fputc('}', f);
	return fclose(f) == 0 ? 0 : err_set(y->err, ERR_NO_MEMORY, "out of memory");
}

static int write_tensor(struct synth *y, int fd, const char *path, const struct tensor *t,
			uint64_t off)
{
	static const uint32_t sizes[] = { [F32] = 4, [BF16] = 2, [U8] = 1 };

	iod_filler_start(y->filler, &t->fill, sizes[t->dtype], y->want->seed, t->name);
	for (uint64_t at = 0; at < t->size;) {
		uint64_t n = t->size - at < BUFFER_SIZE ? t->size - at : BUFFER_SIZE;
		int r;

		iod_filler_next(y->filler, y->buffer, n);
		r = fd_pwrite_all(fd, y->buffer, n, off + at);
		if (r < 0)
			return fail_write(y, path, r);
		at += n;
		y->data_size += n;
		if (y->want->progress)
			y->want->progress(y->want->data, y->data_size, y->total);
	}
	return 0;
}

/* Remember a path for removal, whatever becomes of the file. Takes path. */
static int will_write(struct synth *y, char *path)
{
	char **grown = reallocarray(y->written, y->n_written + 1, sizeof(*grown));

	if (!grown) {
		free(path);
		return err_set(y->err, ERR_NO_MEMORY, "out of memory");
	}
	y->written = grown;
	y->written[y->n_written++] = path;
	return 0;
}

static int write_shard(struct synth *y, uint32_t layer)
{
	CLEANUP(freep) char *header = NULL;
	CLEANUP(fd_closep) int fd = -1;
	char *path = NULL, name[64];
	uint8_t prefix[8];
	size_t size = 0;
	uint64_t at;
	int r = list_tensors(y, layer);

	if (r == 0)
		r = make_header(y, &header, &size);
	if (r < 0)
		return r;
	(void)snprintf(name, sizeof(name), "model-%05u-of-%06u.safetensors", layer + 1,
		       y->config.n_layers + 1);
	if (asprintf(&path, "%s/%s", y->want->out, name) < 0)
		return err_set(y->err, ERR_NO_MEMORY, "out of memory");
	r = will_write(y, path);
	if (r < 0)
		return r;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return fail_write(y, path, -errno);
	for (unsigned i = 0; i < 8; i++)
		prefix[i] = (uint8_t)((uint64_t)size >> 8 * i);
	r = fd_pwrite_all(fd, prefix, sizeof(prefix), 0);
	if (r == 0)
		r = fd_pwrite_all(fd, header, size, sizeof(prefix));
	if (r < 0)
		return fail_write(y, path, r);
	at = sizeof(prefix) + size;
	for (uint32_t i = 0; i < y->n_tensors; i++) {
		(void)fprintf(y->index, "%s\n  \"%s\": \"%s\"", layer || i ? "," : "",
			      y->tensors[i].name, name);
		r = write_tensor(y, fd, path, &y->tensors[i], at);
		if (r < 0)
			return r;
		at += y->tensors[i].size;
	}
	y->file_size += at;
	return 0;
}

/* The directory must be new or empty. */
static int make_directory(struct synth *y)
{
	const struct dirent *e;
	unsigned n = 0;
	DIR *d;

	y->is_directory_ours = mkdir(y->want->out, 0777) == 0;
	if (!y->is_directory_ours && errno != EEXIST)
		return fail_write(y, y->want->out, -errno);
	d = opendir(y->want->out);
	if (!d)
		return err_set(y->err, ERR_USAGE, "%s: %s", y->want->out, strerror(errno));
	while ((e = readdir(d)))
		n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	(void)closedir(d);
	return n ? err_set(y->err, ERR_USAGE, "%s is not empty", y->want->out) : 0;
}

static int write_config(struct synth *y)
{
	CLEANUP(fd_closep) int fd = -1;
	char *path = NULL;
	int r;

	if (asprintf(&path, "%s/config.json", y->want->out) < 0)
		return err_set(y->err, ERR_NO_MEMORY, "out of memory");
	r = will_write(y, path);
	if (r < 0)
		return r;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return fail_write(y, path, -errno);
	r = fd_pwrite_all(fd, y->want->config_json, y->want->config_size, 0);
	return r < 0 ? fail_write(y, path, r) : 0;
}

/* Open the index with what comes before the first tensor. */
static int begin_index(struct synth *y)
{
	char *path = NULL;
	int r;

	if (asprintf(&path, "%s/model.safetensors.index.json", y->want->out) < 0)
		return err_set(y->err, ERR_NO_MEMORY, "out of memory");
	r = will_write(y, path);
	if (r < 0)
		return r;
	y->index = fopen(path, "wxe");
	if (!y->index)
		return fail_write(y, path, -errno);
	(void)fprintf(y->index,
		      "{\n \"metadata\": {\n  \"total_size\": %llu\n },\n"
		      " \"weight_map\": {",
		      (unsigned long long)y->total);
	return 0;
}

static int end_index(struct synth *y)
{
	FILE *f = TAKE(y->index);
	bool is_bad = fprintf(f, "\n }\n}\n") < 0 || ferror(f);

	errno = 0;
	if (fclose(f) != 0 || is_bad)
		return fail_write(y, "model.safetensors.index.json", errno ? -errno : -EIO);
	return 0;
}

static void remove_written(struct synth *y)
{
	for (uint32_t i = 0; i < y->n_written; i++)
		(void)unlink(y->written[i]);
	if (y->is_directory_ours)
		(void)rmdir(y->want->out);
}

int iod_synth(const struct iod_synth_want *want, uint64_t *ret_size, struct err *err)
{
	CLEANUP(synth_deinit) struct synth y = { .want = want, .err = err };
	int r = config_parse(want->config_json, want->config_size, "config.json", &y.config, err);

	if (r < 0)
		return r;
	y.filler = iod_filler_new();
	y.buffer = malloc(BUFFER_SIZE);
	if (!y.filler || !y.buffer)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	r = make_directory(&y);
	if (r < 0)
		return r;
	for (uint32_t layer = 0; r == 0 && layer <= y.config.n_layers; layer++) {
		r = list_tensors(&y, layer);
		for (uint32_t i = 0; i < y.n_tensors; i++)
			y.total += y.tensors[i].size;
	}
	if (r == 0)
		r = write_config(&y);
	if (r == 0)
		r = begin_index(&y);
	for (uint32_t layer = 0; r == 0 && layer <= y.config.n_layers; layer++)
		r = write_shard(&y, layer);
	if (r == 0)
		r = end_index(&y);
	if (r < 0) {
		remove_written(&y);
		return r;
	}
	*ret_size = y.file_size;
	return 0;
}
