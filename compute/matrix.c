/*
 * Products of rows with a matrix that comes tile by tile. A tile is leased only while it is
 * computed on; experts that land between two tiles are computed first, so that their slots are free
 * again.
 */
#include <string.h>

#include "compute/layers.h"

enum {
	/* Rows of weights that stay with one worker: a multiple of what the kernels take at once.
	 */
	GRAIN = 12,
	/* With several rows of x, where each thread gets BLOCKS of them: half a panel of the
	 * kernels, which read x again for each; a whole one of those with x turned. */
	GRAIN_PANEL = 48,
	BLOCKS = 4,
};

size_t k3_grain(const struct k3_engine *e, size_t n_rows, size_t n_x, bool is_turned, size_t least)
{
	size_t wanted = (size_t)GRAIN_PANEL * BLOCKS * k3_team_n_threads(e->team);

	if (n_x > 1 && n_rows >= wanted)
		return GRAIN_PANEL;
	return is_turned ? KERN_TURN : least;
}

const struct k3_matrix *k3_matrix_of(const struct k3_engine *e, uint32_t layer, enum role role)
{
	return &e->bind.layers[layer].matrix[role];
}

/* Experts that have landed come first; while neither an expert nor the tile is there, wait for
 * whichever comes first. */
static int take_experts_before(struct k3_engine *e, uint32_t tile, struct err *err)
{
	int r = k3_moe_take_experts(e, false, err);

	while (r >= 0 && e->n_experts_pending > 0 && !k3_iod_tile_is_ready(e->iod, tile)) {
		r = k3_iod_wait_tile_or_expert(e->iod, tile, err);
		if (r == 0)
			r = k3_moe_take_experts(e, false, err);
	}
	return r < 0 ? r : 0;
}

int k3_each_tile(struct k3_engine *e, const struct k3_matrix *m, k3_tile_fn *fn, void *data,
		 struct err *err)
{
	const struct catalog *cat = e->bind.catalog;
	int r;

	for (uint32_t i = m->first_tile; i < m->first_tile + m->n_tiles; i++) {
		const struct catalog_part *part = &cat->parts[cat->tiles[i].first_part];
		struct k3_tile tile;
		uint64_t begin;

		do {
			struct k3_weights w = {
				.format = m->format,
				.first_row = cat->tiles[i].first_row,
				.n_rows = cat->tiles[i].n_rows,
				.n_cols = m->cols,
			};

			r = take_experts_before(e, i, err);
			if (r < 0)
				return r;
			r = k3_iod_tile(e->iod, i, &tile, err);
			if (r < 0)
				return r;
			w.bytes = tile.base + part->offset;
			begin = timeline_now(e->timeline);
			fn(e, &w, data);
			timeline_span(e->timeline, "tile", begin, "tile", i);
			r = k3_iod_tile_done(e->iod, &tile, err);
			if (r < 0)
				return r;
		} while (r == K3_IOD_STALE);
	}
	return 0;
}

void k3_input_set(struct k3_input *in, const float *x, size_t n_rows, size_t n_cols, float *packed)
{
	*in = (struct k3_input){
		.x = x,
		.n_rows = n_rows,
		.n_cols = n_cols,
		.packed = packed,
	};
}

struct pack_job {
	const struct kern_table *kernel;
	const struct k3_input *in;
};

static void pack_rows(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct pack_job *job = data;
	const struct k3_input *in = job->in;

	(void)worker;
	for (size_t i = begin; i < end; i++)
		(in->format == KERN_F32 ? job->kernel->pack_f32 : job->kernel->pack_bf16)(
			in->x + i * in->n_cols, in->n_cols, in->packed + i * in->packed_stride);
	if (in->is_turned)
		job->kernel->turn(in->packed + begin * in->packed_stride, in->packed_stride,
				  kern_packed_len(in->format, in->n_cols), end - begin);
}

void k3_input_pack(struct k3_engine *e, struct k3_input *in, enum kern_format format)
{
	struct pack_job job = { e->kernel, in };

	if (in->is_packed && in->format == format)
		return;
	in->format = format;
	in->packed_stride = kern_packed_stride(format, in->n_cols);
	in->is_packed = true;
	in->is_turned = !in->by_rows && k3_is_turned(e, format, in->n_rows);
	k3_team_run(e->team, in->n_rows, in->is_turned ? KERN_TURN : 1, pack_rows, &job);
}

struct multiply_job {
	const struct kern_table *kernel;
	const struct k3_weights *w;
	struct k3_input *in;
	float *y; /* [n_rows][y_stride] */
	size_t y_stride;
};

static void multiply_rows(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct multiply_job *job = data;
	const struct k3_weights *w = job->w;
	const struct k3_input *in = job->in;

	(void)worker;
	kern_matmul(job->kernel, w->format, in->is_turned,
		    w->bytes + begin * w->n_cols * k3_format_size(w->format), end - begin,
		    w->n_cols, in->packed, in->packed_stride, in->n_rows,
		    job->y + w->first_row + begin, job->y_stride);
}

static void multiply_tile(struct k3_engine *e, const struct k3_weights *w, void *data)
{
	struct multiply_job *job = data;

	job->w = w;
	k3_team_run(e->team, w->n_rows,
		    k3_grain(e, w->n_rows, job->in->n_rows, job->in->is_turned, GRAIN),
		    multiply_rows, job);
}

int k3_multiply(struct k3_engine *e, uint32_t layer, enum role role, struct k3_input *in, float *y,
		struct err *err)
{
	const struct k3_matrix *m = k3_matrix_of(e, layer, role);
	struct multiply_job job = { e->kernel, NULL, in, y, m->rows };

	k3_input_pack(e, in, m->format);
	return k3_each_tile(e, m, multiply_tile, &job, err);
}

/* fp32 from count elements of a part. */
static void widen(const uint8_t *bytes, uint16_t dtype, size_t count, float *ret)
{
	if (dtype == CATALOG_F32) {
		memcpy(ret, bytes, count * sizeof(*ret));
		return;
	}
	for (size_t i = 0; i < count; i++) {
		uint16_t half;
		uint32_t bits;

		memcpy(&half, bytes + 2 * i, sizeof(half));
		bits = (uint32_t)half << 16;
		memcpy(&ret[i], &bits, sizeof(bits));
	}
}

static void copy_vectors(struct k3_engine *e, const struct catalog_tile *t, const uint8_t *base)
{
	for (uint32_t i = 0; i < t->n_parts; i++) {
		const struct catalog_part *p = &e->bind.catalog->parts[t->first_part + i];
		uint32_t rows, cols;
		size_t wanted, there = (size_t)p->rows * p->cols;

		if (p->role >= ROLE_N_ || !role_is_vector(p->role))
			continue;
		role_shape(p->role, e->config, &rows, &cols);
		/* A_log is longer on disk than there are heads. */
		wanted = (size_t)rows * cols;
		widen(base + p->offset, p->dtype, wanted < there ? wanted : there,
		      e->scratch.vector[p->role]);
	}
}

static void product(const float *a, const float *b, size_t n, float *ret)
{
	for (size_t i = 0; i < n; i++)
		ret[i] = a[i] * b[i];
}

int k3_load_vectors(struct k3_engine *e, uint32_t layer, struct err *err)
{
	struct k3_scratch *s = &e->scratch;
	uint32_t tile = e->bind.layers[layer].bundle;
	size_t hidden = e->config->hidden_size;
	struct k3_tile t;
	int r;

	do {
		r = k3_iod_tile(e->iod, tile, &t, err);
		if (r < 0)
			return r;
		copy_vectors(e, &e->bind.catalog->tiles[tile], t.base);
		r = k3_iod_tile_done(e->iod, &t, err);
		if (r < 0)
			return r;
	} while (r == K3_IOD_STALE);
	if (layer == e->bind.n_layers) {
		product(s->vector[ROLE_OUT_RES_NORM], s->vector[ROLE_OUT_RES_PROJ], hidden,
			s->mlp_mix);
		return 0;
	}
	product(s->vector[ROLE_ATTN_RES_NORM], s->vector[ROLE_ATTN_RES_PROJ], hidden, s->attn_mix);
	product(s->vector[ROLE_MLP_RES_NORM], s->vector[ROLE_MLP_RES_PROJ], hidden, s->mlp_mix);
	return 0;
}
