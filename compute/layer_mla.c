/*
 * Gated MLA without positions (k3-architecture 3.4), always in its absorbed form (4.1): a query is
 * carried through Uk to the width of the latents, scored against all cached positions, and the
 * mean of the latents is carried through Uv. Uk and Uv are the halves of each head's run of kv_b
 * rows; a kv_b tile holds whole heads.
 *
 * Queries (a head of a row) are taken in blocks of K3_QUERIES that share each read of the latents;
 * a query's bits depend on its own row and positions alone.
 */
#include <math.h>
#include <string.h>

#include "compute/layers.h"

struct attend_job {
	struct k3_engine *e;
	uint32_t layer;
	const struct k3_group *group;
	const struct k3_weights *w; /* a tile of kv_b */
	uint32_t first_head, n_heads;
};

/* One block of queries on its way through a worker. */
struct query_block {
	const struct attend_job *job;
	struct k3_worker *worker;
	size_t n;
	uint32_t head[K3_QUERIES];        /* of the tile's */
	uint32_t row[K3_QUERIES];         /* of the group */
	uint32_t n_positions[K3_QUERIES]; /* that the query sees */
	uint32_t most_positions;
};

static const uint8_t *head_weights(const struct attend_job *job, uint32_t head, uint32_t row)
{
	const struct config *c = job->e->config;
	size_t row_size = job->w->n_cols * k3_format_size(job->w->format);

	return job->w->bytes + ((size_t)head * (c->qk_nope_dim + c->v_dim) + row) * row_size;
}

/* q~ = Uk^T q_n */
static void absorb(const struct attend_job *job, uint32_t head, const float *q, struct k3_worker *w)
{
	const struct config *c = job->e->config;
	const struct kern_table *k = job->e->kernel;
	const uint8_t *keys = head_weights(job, head, 0);
	size_t n_rows = c->qk_nope_dim, n_cols = c->kv_lora_rank;

	if (job->w->format == KERN_BF16) {
		k->colsum_bf16(keys, n_rows, n_cols, q, w->query);
		return;
	}
	/* A shard may hold F32 at any offset; this kernel wants floats where floats belong. */
	memcpy(w->keys, keys, n_rows * n_cols * sizeof(float));
	k->colsum_f32(w->keys, n_cols, n_rows, n_cols, q, w->query);
}

static void load_queries(struct query_block *b)
{
	const struct attend_job *job = b->job;
	const struct config *c = job->e->config;
	size_t head_dim = c->qk_nope_dim + c->qk_rope_dim;
	size_t query_len = kern_packed_len(KERN_F32, c->kv_lora_rank);
	size_t rope_len = kern_packed_len(KERN_F32, c->qk_rope_dim);

	for (size_t i = 0; i < b->n; i++) {
		size_t row = job->group->first_row + b->row[i];
		size_t head = job->first_head + b->head[i];
		const float *q = job->e->scratch.mla_q + (row * c->n_heads + head) * head_dim;

		absorb(job, b->head[i], q, b->worker);
		job->e->kernel->pack_f32(b->worker->query, c->kv_lora_rank,
					 b->worker->packed_query + i * query_len);
		job->e->kernel->pack_f32(q + c->qk_nope_dim, c->qk_rope_dim,
					 b->worker->packed_rope + i * rope_len);
	}
}

/* scores[query][position] for all positions that any query of the block sees. */
static void score(struct query_block *b)
{
	const struct k3_engine *e = b->job->e;
	const struct config *c = e->config;
	const struct k3_layer_state *state = &b->job->group->sequence->layers[b->job->layer];
	size_t query_len = kern_packed_len(KERN_F32, c->kv_lora_rank);
	size_t rope_len = kern_packed_len(KERN_F32, c->qk_rope_dim);
	float scale = 1.0f / sqrtf((float)(c->qk_nope_dim + c->qk_rope_dim));

	for (size_t p = 0; p < b->most_positions; p += K3_POSITIONS) {
		size_t n = b->most_positions - p;

		n = n < K3_POSITIONS ? n : K3_POSITIONS;
		e->kernel->matmul_f32(state->latents + p * c->kv_lora_rank, n, c->kv_lora_rank,
				      b->worker->packed_query, query_len, b->n,
				      b->worker->scores + p, e->max_positions);
		e->kernel->matmul_f32(state->ropes + p * c->qk_rope_dim, n, c->qk_rope_dim,
				      b->worker->packed_rope, rope_len, b->n,
				      b->worker->rope_scores, K3_POSITIONS);
		for (size_t i = 0; i < b->n; i++) {
			float *s = b->worker->scores + i * e->max_positions + p;
			const float *rope = b->worker->rope_scores + i * K3_POSITIONS;

			for (size_t j = 0; j < n; j++)
				s[j] = (s[j] + rope[j]) * scale;
		}
	}
}

/* The mean of the latents under query i's softmax, packed for Uv. */
static void read_latents(struct query_block *b, size_t i)
{
	const struct attend_job *job = b->job;
	const struct config *c = job->e->config;
	const struct kern_table *k = job->e->kernel;
	const struct k3_layer_state *state = &job->group->sequence->layers[job->layer];
	size_t rank = c->kv_lora_rank;
	float *p = b->worker->scores + i * job->e->max_positions, *context = b->worker->query;
	float *packed = b->worker->packed_context + i * kern_packed_len(job->w->format, rank);
	float inverse = k->softmax(p, b->n_positions[i]);

	k->colsum_f32(state->latents, rank, b->n_positions[i], rank, p, context);
	for (size_t j = 0; j < rank; j++)
		context[j] *= inverse;
	(job->w->format == KERN_F32 ? k->pack_f32 : k->pack_bf16)(context, rank, packed);
}

/* o = Uv context; queries of one head go together. */
static void read_values(struct query_block *b)
{
	const struct attend_job *job = b->job;
	const struct config *c = job->e->config;
	size_t len = kern_packed_len(job->w->format, c->kv_lora_rank), n;
	size_t stride = (size_t)c->n_heads * c->v_dim;

	for (size_t i = 0; i < b->n; i += n) {
		float *o = job->e->scratch.mla_o + (job->group->first_row + b->row[i]) * stride +
			   (size_t)(job->first_head + b->head[i]) * c->v_dim;

		n = 1;
		while (i + n < b->n && b->head[i + n] == b->head[i])
			n++;
		kern_matmul(job->e->kernel, job->w->format, false,
			    head_weights(job, b->head[i], c->qk_nope_dim), c->v_dim,
			    c->kv_lora_rank, b->worker->packed_context + i * len, len, n, o,
			    stride);
	}
}

/* Queries of a group's heads in this tile, numbered head by head. */
static void attend_blocks(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct attend_job *job = data;
	size_t n_queries = (size_t)job->n_heads * job->group->n;

	for (size_t at = begin * K3_QUERIES; at < end * K3_QUERIES && at < n_queries;
	     at += K3_QUERIES) {
		struct query_block b = { .job = job, .worker = &job->e->scratch.workers[worker] };

		while (b.n < K3_QUERIES && at + b.n < n_queries) {
			b.head[b.n] = (uint32_t)((at + b.n) / job->group->n);
			b.row[b.n] = (uint32_t)((at + b.n) % job->group->n);
			b.n_positions[b.n] = job->group->position + b.row[b.n] + 1;
			if (b.n_positions[b.n] > b.most_positions)
				b.most_positions = b.n_positions[b.n];
			b.n++;
		}
		load_queries(&b);
		score(&b);
		for (size_t i = 0; i < b.n; i++)
			read_latents(&b, i);
		read_values(&b);
	}
}

static void attend_tile(struct k3_engine *e, const struct k3_weights *w, void *data)
{
	const struct config *c = e->config;
	uint32_t head_rows = c->qk_nope_dim + c->v_dim;

	for (uint32_t i = 0; i < e->n_groups; i++) {
		struct attend_job job = {
			.e = e,
			.layer = *(const uint32_t *)data,
			.group = &e->groups[i],
			.w = w,
			.first_head = w->first_row / head_rows,
			.n_heads = w->n_rows / head_rows,
		};
		size_t n_queries = (size_t)job.n_heads * job.group->n;

		k3_team_run(e->team, (n_queries + K3_QUERIES - 1) / K3_QUERIES, 1, attend_blocks,
			    &job);
	}
}

/* The latents of the step's rows, normed, and their shared key parts, unnormed, join the cache. */
static void append_latents(struct k3_engine *e, uint32_t layer)
{
	const struct config *c = e->config;
	const struct k3_scratch *s = &e->scratch;
	size_t rank = c->kv_lora_rank, rope = c->qk_rope_dim;

	for (uint32_t i = 0; i < e->n_groups; i++) {
		const struct k3_group *g = &e->groups[i];
		struct k3_layer_state *state = &g->sequence->layers[layer];

		for (uint32_t j = 0; j < g->n; j++) {
			const float *row = s->mla_ckv + (size_t)(g->first_row + j) * (rank + rope);
			size_t position = g->position + j;

			e->kernel->rmsnorm(row, s->vector[ROLE_MLA_KV_NORM], rank,
					   CONFIG_LATENT_NORM_EPS,
					   state->latents + position * rank);
			memcpy(state->ropes + position * rope, row + rank, rope * sizeof(float));
		}
	}
}

static void norm_queries(void *data, size_t begin, size_t end, unsigned worker)
{
	struct k3_engine *e = data;
	size_t rank = e->config->q_lora_rank;

	(void)worker;
	for (size_t i = begin; i < end; i++)
		e->kernel->rmsnorm(e->scratch.mla_cq + i * rank, e->scratch.vector[ROLE_MLA_Q_NORM],
				   rank, CONFIG_LATENT_NORM_EPS, e->scratch.mla_cq + i * rank);
}

static void gate_rows(void *data, size_t begin, size_t end, unsigned worker)
{
	struct k3_engine *e = data;
	size_t width = (size_t)e->config->n_heads * e->config->v_dim;
	float *o = e->scratch.mla_o + begin * width;

	(void)worker;
	e->kernel->gate(o, e->scratch.mla_g + begin * width, (end - begin) * width, o);
}

int k3_layer_mla(struct k3_engine *e, uint32_t layer, struct k3_input *in, struct err *err)
{
	const struct config *c = e->config;
	struct k3_scratch *s = &e->scratch;
	struct k3_input query, heads;
	int r;

	k3_input_set(&query, s->mla_cq, e->n_rows, c->q_lora_rank, s->packed_mid);
	k3_input_set(&heads, s->mla_o, e->n_rows, (size_t)c->n_heads * c->v_dim, s->packed_mid);
	r = k3_multiply(e, layer, ROLE_MLA_Q_A, in, s->mla_cq, err);
	if (r < 0)
		return r;
	k3_team_run(e->team, e->n_rows, 1, norm_queries, e);
	r = k3_multiply(e, layer, ROLE_MLA_Q_B, &query, s->mla_q, err);
	if (r == 0)
		r = k3_multiply(e, layer, ROLE_MLA_KV_A, in, s->mla_ckv, err);
	if (r < 0)
		return r;
	append_latents(e, layer);
	r = k3_each_tile(e, k3_matrix_of(e, layer, ROLE_MLA_KV_B), attend_tile, &layer, err);
	if (r == 0)
		r = k3_multiply(e, layer, ROLE_MLA_G, in, s->mla_g, err);
	if (r < 0)
		return r;
	k3_team_run(e->team, e->n_rows, 1, gate_rows, e);
	return k3_multiply(e, layer, ROLE_MLA_O, &heads, s->out, err);
}
