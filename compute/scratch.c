#include "compute/scratch.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "compute/kernel/kernel.h"

enum { ALIGNMENT = 64 };

/* A walk over the layout: base NULL only counts. */
struct walk {
	char *base;
	size_t at;
};

static void *take(struct walk *w, size_t n, size_t element)
{
	void *p = w->base ? w->base + w->at : NULL;

	w->at += (n * element + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	return p;
}

static float *take_floats(struct walk *w, size_t n)
{
	return take(w, n, sizeof(float));
}

static size_t largest(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* One packed row of n_cols whatever the format of the weights it will meet. */
static size_t packed_len(size_t n_cols)
{
	return largest(kern_packed_stride(KERN_F32, n_cols), kern_packed_stride(KERN_BF16, n_cols));
}

static size_t widest_inner(const struct config *c)
{
	size_t n = largest(config_kda_width(c), c->q_lora_rank);

	n = largest(n, (size_t)c->n_heads * c->v_dim);
	n = largest(n, c->n_dense_layers ? c->dense_size : 0);
	n = largest(n, config_shared_size(c));
	return largest(n, c->latent_size);
}

static void lay_out_kda(struct k3_scratch *s, struct walk *w, const struct config *c, size_t rows)
{
	size_t width = config_kda_width(c);

	s->kda_q = take_floats(w, rows * width);
	s->kda_k = take_floats(w, rows * width);
	s->kda_v = take_floats(w, rows * width);
	s->kda_g = take_floats(w, rows * width);
	s->kda_z = take_floats(w, rows * width);
	s->kda_f = take_floats(w, rows * c->kda_dim);
	s->kda_beta = take_floats(w, rows * c->n_kda_heads);
	s->kda_exp_a = take_floats(w, c->n_kda_heads);
}

static void lay_out_mla(struct k3_scratch *s, struct walk *w, const struct config *c, size_t rows)
{
	size_t width = (size_t)c->n_heads * c->v_dim;

	s->mla_cq = take_floats(w, rows * c->q_lora_rank);
	s->mla_q = take_floats(w, rows * c->n_heads * (c->qk_nope_dim + c->qk_rope_dim));
	s->mla_ckv = take_floats(w, rows * (c->kv_lora_rank + c->qk_rope_dim));
	s->mla_g = take_floats(w, rows * width);
	s->mla_o = take_floats(w, rows * width);
}

static void lay_out_ffn(struct k3_scratch *s, struct walk *w, const struct config *c, size_t rows)
{
	size_t inner = largest(c->n_dense_layers ? c->dense_size : 0, config_shared_size(c));
	size_t mx_latent = kern_packed_stride(KERN_MXFP4, c->latent_size);
	size_t mx_inner = kern_packed_stride(KERN_MXFP4, c->expert_size);

	s->gate = take_floats(w, rows * inner);
	s->up = take_floats(w, rows * inner);
	s->router = take_floats(w, rows * c->n_experts);
	s->z = take_floats(w, rows * c->latent_size);
	s->packed_z = take_floats(w, rows * mx_latent);
	s->gathered = take_floats(w, kern_turned_rows(rows) * mx_latent);
	s->expert_gate = take_floats(w, rows * c->expert_size);
	s->expert_up = take_floats(w, rows * c->expert_size);
	s->packed_act = take_floats(w, kern_turned_rows(rows) * mx_inner);
	s->moe_out = take_floats(w, rows * c->hidden_size);
	s->ids = take(w, rows * c->top_k, sizeof(*s->ids));
	s->weights = take_floats(w, rows * c->top_k);
	s->expert_first = take(w, (size_t)c->n_experts + 1, sizeof(*s->expert_first));
	s->pair_row = take(w, rows * c->top_k, sizeof(*s->pair_row));
	s->pair_of = take(w, rows * c->top_k, sizeof(*s->pair_of));
	s->wanted = take(w, c->n_experts, sizeof(*s->wanted));
}

static void lay_out_worker(struct k3_worker *k, struct walk *w, const struct k3_scratch_want *want)
{
	const struct config *c = want->config;

	k->alpha = take_floats(w, c->kda_dim);
	k->read = take_floats(w, c->kda_dim);
	k->head_out = take_floats(w, c->kda_dim);
	k->query = take_floats(w, c->kv_lora_rank);
	k->packed_query = take_floats(w, K3_QUERIES * packed_len(c->kv_lora_rank));
	k->packed_rope = take_floats(w, K3_QUERIES * packed_len(c->qk_rope_dim));
	k->packed_context = take_floats(w, K3_QUERIES * packed_len(c->kv_lora_rank));
	k->rope_scores = take_floats(w, (size_t)K3_QUERIES * K3_POSITIONS);
	k->scores = take_floats(w, (size_t)K3_QUERIES * want->max_positions);
	k->keys = take_floats(w, (size_t)c->qk_nope_dim * c->kv_lora_rank);
}

static void lay_out_vectors(struct k3_scratch *s, struct walk *w, const struct config *c)
{
	for (unsigned role = 0; role < ROLE_N_; role++) {
		uint32_t rows, cols;

		if (!role_is_vector(role))
			continue;
		role_shape(role, c, &rows, &cols);
		s->vector[role] = take_floats(w, (size_t)rows * cols);
	}
	s->attn_mix = take_floats(w, c->hidden_size);
	s->mlp_mix = take_floats(w, c->hidden_size);
}

static void lay_out(struct k3_scratch *s, struct walk *w, const struct k3_scratch_want *want,
		    struct k3_scratch_size *ret)
{
	const struct config *c = want->config;
	size_t rows = want->max_rows, start, end;

	for (uint32_t i = 0; i < s->n_residual; i++) {
		float *p = take_floats(w, rows * c->hidden_size);

		if (s->residual)
			s->residual[i] = p;
	}
	s->x = take_floats(w, rows * c->hidden_size);
	s->out = take_floats(w, rows * c->hidden_size);
	s->packed_x = take_floats(w, kern_turned_rows(rows) * packed_len(c->hidden_size));
	s->packed_mid = take_floats(w, kern_turned_rows(rows) * packed_len(widest_inner(c)));
	start = w->at;
	lay_out_kda(s, w, c, rows);
	end = w->at;
	w->at = start;
	lay_out_mla(s, w, c, rows);
	end = largest(end, w->at);
	w->at = start;
	lay_out_ffn(s, w, c, rows);
	w->at = largest(end, w->at);
	for (unsigned i = 0; i < s->n_workers; i++) {
		struct k3_worker unused;

		lay_out_worker(s->workers ? &s->workers[i] : &unused, w, want);
	}
	ret->activations = w->at;
	lay_out_vectors(s, w, c);
	ret->vectors = w->at - ret->activations;
	s->contributions = take_floats(w, rows * c->top_k * c->latent_size);
	ret->contributions = w->at - ret->activations - ret->vectors;
}

static void prepare(struct k3_scratch *s, const struct k3_scratch_want *want)
{
	*s = (struct k3_scratch){ 0 };
	s->n_workers = want->n_workers;
	s->n_residual =
		config_n_snapshots(want->config, want->n_layers) + 1; /* and the running sum */
}

void k3_scratch_plan(const struct k3_scratch_want *want, struct k3_scratch_size *ret)
{
	struct k3_scratch s;
	struct walk w = { NULL, 0 };

	prepare(&s, want);
	lay_out(&s, &w, want, ret);
}

int k3_scratch_init(struct k3_scratch *s, const struct k3_scratch_want *want, struct err *err)
{
	struct k3_scratch_size size;
	struct walk w = { NULL, 0 };
	void *p;

	prepare(s, want);
	lay_out(s, &w, want, &size);
	s->residual = calloc(s->n_residual, sizeof(*s->residual));
	s->workers = calloc(s->n_workers, sizeof(*s->workers));
	/* Mapped rather than from the heap: pages that no step touches cost nothing. */
	p = mmap(NULL, w.at, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED || !s->residual || !s->workers) {
		if (p != MAP_FAILED)
			(void)munmap(p, w.at);
		return err_set(err, ERR_NO_MEMORY,
			       "no memory for the activations of %u rows (%zu bytes)",
			       want->max_rows, w.at);
	}
	s->memory = p;
	s->memory_size = w.at;
	w = (struct walk){ p, 0 };
	lay_out(s, &w, want, &size);
	return 0;
}

void k3_scratch_deinit(struct k3_scratch *s)
{
	if (s->memory)
		(void)munmap(s->memory, s->memory_size);
	s->memory = NULL;
	free(s->residual);
	s->residual = NULL;
	free(s->workers);
	s->workers = NULL;
}
