/*
 * Kimi Delta Attention (k3-architecture 3.3). After the projections every head of every sequence is
 * on its own: convolution, norms, decay, recurrence and gate run head by head through the rows of
 * the step, so a chunk of a prompt and a single token are the same computation. Heads are what the
 * team splits.
 */
#include <math.h>

#include "compute/layers.h"

struct kda_job {
	const struct k3_engine *e;
	uint32_t layer;
	const struct k3_group *group;
};

/* The heads' decay factor exp(A_log) and the strengths sigmoid(b x) of all rows. */
static void prepare_scalars(struct k3_engine *e)
{
	struct k3_scratch *s = &e->scratch;
	uint32_t n_heads = e->config->n_kda_heads;

	e->kernel->exp(s->vector[ROLE_KDA_A_LOG], n_heads, s->kda_exp_a);
	e->kernel->sigmoid(s->kda_beta, (size_t)e->n_rows * n_heads, s->kda_beta);
}

/* One head of one row: from the projections in scratch to the gated output, left in kda_q. */
static void head_step(const struct kda_job *job, uint32_t head, size_t row, struct k3_worker *w)
{
	const struct k3_engine *e = job->e;
	const struct kern_table *k = e->kernel;
	const struct config *c = e->config;
	const struct k3_scratch *s = &e->scratch;
	struct k3_layer_state *state = &job->group->sequence->layers[job->layer];
	size_t width = config_kda_width(c), dim = c->kda_dim, first = head * dim;
	size_t at = row * width + first, taps = c->conv_size;
	float *q = s->kda_q + at, *key = s->kda_k + at, *v = s->kda_v + at;

	k->conv(q, s->vector[ROLE_KDA_Q_CONV] + first * taps, taps,
		state->conv[K3_STREAM_Q] + first, width, dim, q);
	k->conv(key, s->vector[ROLE_KDA_K_CONV] + first * taps, taps,
		state->conv[K3_STREAM_K] + first, width, dim, key);
	k->conv(v, s->vector[ROLE_KDA_V_CONV] + first * taps, taps,
		state->conv[K3_STREAM_V] + first, width, dim, v);
	k->l2norm(q, dim, CONFIG_L2_NORM_EPS, 1.0f / sqrtf((float)dim), q);
	k->l2norm(key, dim, CONFIG_L2_NORM_EPS, 1.0f, key);
	k->kda_decay(s->kda_z + at, s->vector[ROLE_KDA_DT_BIAS] + first, s->kda_exp_a[head],
		     c->gate_lower_bound, dim, w->alpha);
	k->kda_step(state->recurrent + head * dim * dim, dim, dim, q, key, v, w->alpha,
		    s->kda_beta[row * c->n_kda_heads + head], w->read, w->head_out);
	k->rmsnorm(w->head_out, s->vector[ROLE_KDA_O_NORM], dim, c->rms_norm_eps, w->head_out);
	k->gate(w->head_out, s->kda_g + at, dim, q);
}

static void run_heads(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct kda_job *job = data;
	struct k3_worker *w = &job->e->scratch.workers[worker];

	for (size_t head = begin; head < end; head++)
		for (uint32_t i = 0; i < job->group->n; i++)
			head_step(job, (uint32_t)head, job->group->first_row + i, w);
}

int k3_layer_kda(struct k3_engine *e, uint32_t layer, struct k3_input *in, struct err *err)
{
	struct k3_scratch *s = &e->scratch;
	struct k3_input decay, heads;
	uint64_t begin;
	int r;

	k3_input_set(&decay, s->kda_f, e->n_rows, e->config->kda_dim, s->packed_mid);
	k3_input_set(&heads, s->kda_q, e->n_rows, config_kda_width(e->config), s->packed_mid);
	r = k3_multiply(e, layer, ROLE_KDA_Q, in, s->kda_q, err);
	if (r == 0)
		r = k3_multiply(e, layer, ROLE_KDA_K, in, s->kda_k, err);
	if (r == 0)
		r = k3_multiply(e, layer, ROLE_KDA_V, in, s->kda_v, err);
	if (r == 0)
		r = k3_multiply(e, layer, ROLE_KDA_F_A, in, s->kda_f, err);
	if (r == 0)
		r = k3_multiply(e, layer, ROLE_KDA_F_B, &decay, s->kda_z, err);
	if (r == 0)
		r = k3_multiply(e, layer, ROLE_KDA_B, in, s->kda_beta, err);
	if (r == 0)
		r = k3_multiply(e, layer, ROLE_KDA_G, in, s->kda_g, err);
	if (r < 0)
		return r;
	begin = timeline_now(e->timeline);
	prepare_scalars(e);
	for (uint32_t i = 0; i < e->n_groups; i++) {
		struct kda_job job = { e, layer, &e->groups[i] };

		k3_team_run(e->team, e->config->n_kda_heads, 1, run_heads, &job);
	}
	timeline_span(e->timeline, "linear attention", begin, NULL, 0);
	return k3_multiply(e, layer, ROLE_KDA_O, &heads, s->out, err);
}
