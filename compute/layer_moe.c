/*
 * The latent mixture of experts (k3-architecture 3.8). The router goes first so that the experts
 * are asked for as early as possible; while they load, the latent projection and the shared experts
 * are computed, and between their tiles every expert that has landed. An expert is multiplied
 * packed, once for all rows that chose it. Contributions are kept and summed in ascending id
 * (order contract, rule 9), so the order of arrival leaves no trace.
 */
#include <string.h>

#include "compute/layers.h"

/* Rows of an expert's matrices that stay with one worker. */
enum { GRAIN = 16 };

struct expert_job {
	struct k3_engine *e;
	const struct k3_expert *x;
	uint32_t first_pair, n; /* contributions of this expert */
	const float *packed_z;  /* [n] rows */
	size_t z_stride, act_stride;
	bool is_turned; /* both inputs are */
};

static void multiply(const struct expert_job *job, enum expert_part packed, enum expert_part scale,
		     size_t begin, size_t end, size_t n_cols, const float *x, size_t x_stride,
		     float *y, size_t y_stride)
{
	kern_matmul_mxfp4(job->e->kernel, job->is_turned,
			  job->x->part[packed] + begin * (n_cols / 2),
			  job->x->part[scale] + begin * (n_cols / 32), end - begin, n_cols, x,
			  x_stride, job->n, y, y_stride);
}

/* Rows [begin, end) of w1 and w3, and their activation. */
static void expert_inner(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct expert_job *job = data;
	const struct config *c = job->e->config;
	const struct kern_table *k = job->e->kernel;
	const struct k3_scratch *s = &job->e->scratch;
	float *gate = s->expert_gate + begin, *up = s->expert_up + begin;

	(void)worker;
	multiply(job, EXPERT_GATE_PACKED, EXPERT_GATE_SCALE, begin, end, c->latent_size,
		 job->packed_z, job->z_stride, gate, c->expert_size);
	multiply(job, EXPERT_UP_PACKED, EXPERT_UP_SCALE, begin, end, c->latent_size, job->packed_z,
		 job->z_stride, up, c->expert_size);
	for (uint32_t i = 0; i < job->n; i++)
		k->situ(gate + (size_t)i * c->expert_size, up + (size_t)i * c->expert_size,
			end - begin, c->situ_beta, c->situ_linear_beta,
			gate + (size_t)i * c->expert_size);
}

static void expert_pack(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct expert_job *job = data;
	const struct config *c = job->e->config;
	const struct k3_scratch *s = &job->e->scratch;

	(void)worker;
	for (size_t i = begin; i < end; i++)
		job->e->kernel->pack_mxfp4(s->expert_gate + i * c->expert_size, c->expert_size,
					   s->packed_act + i * job->act_stride);
	if (job->is_turned)
		job->e->kernel->turn(s->packed_act + begin * job->act_stride, job->act_stride,
				     kern_packed_len(KERN_MXFP4, c->expert_size), end - begin);
}

/* Rows [begin, end) of w2. */
static void expert_outer(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct expert_job *job = data;
	const struct config *c = job->e->config;
	const struct k3_scratch *s = &job->e->scratch;

	(void)worker;
	multiply(job, EXPERT_DOWN_PACKED, EXPERT_DOWN_SCALE, begin, end, c->expert_size,
		 s->packed_act, job->act_stride,
		 s->contributions + (size_t)job->first_pair * c->latent_size + begin,
		 c->latent_size);
}

/* The packed z of rows that chose the expert, next to each other. */
static void expert_gather(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct expert_job *job = data;
	const struct k3_scratch *s = &job->e->scratch;
	size_t stride = job->z_stride;

	(void)worker;
	for (size_t i = begin; i < end; i++)
		memcpy(s->gathered + i * stride,
		       s->packed_z + s->pair_row[job->first_pair + i] * stride,
		       stride * sizeof(float));
	if (job->is_turned)
		job->e->kernel->turn(s->gathered + begin * stride, stride,
				     kern_packed_len(KERN_MXFP4, job->e->config->latent_size),
				     end - begin);
}

static void compute_expert(struct k3_engine *e, const struct k3_expert *x)
{
	const struct config *c = e->config;
	const struct k3_scratch *s = &e->scratch;
	uint32_t first = s->expert_first[x->expert];
	struct expert_job job = {
		.e = e,
		.x = x,
		.first_pair = first,
		.n = s->expert_first[x->expert + 1] - first,
		.packed_z = s->gathered,
		.z_stride = kern_packed_stride(KERN_MXFP4, c->latent_size),
		.act_stride = kern_packed_stride(KERN_MXFP4, c->expert_size),
	};

	size_t rows_grain;

	job.is_turned = k3_is_turned(e, KERN_MXFP4, job.n);
	rows_grain = job.is_turned ? KERN_TURN : 1;
	if (job.n == 1 && !job.is_turned)
		job.packed_z = s->packed_z + s->pair_row[first] * job.z_stride;
	else
		k3_team_run(e->team, job.n, rows_grain, expert_gather, &job);
	k3_team_run(e->team, c->expert_size,
		    k3_grain(e, c->expert_size, job.n, job.is_turned, GRAIN), expert_inner, &job);
	k3_team_run(e->team, job.n, rows_grain, expert_pack, &job);
	k3_team_run(e->team, c->latent_size,
		    k3_grain(e, c->latent_size, job.n, job.is_turned, GRAIN), expert_outer, &job);
}

int k3_moe_take_experts(struct k3_engine *e, bool wait, struct err *err)
{
	while (e->n_experts_pending > 0) {
		const uint32_t *first = e->scratch.expert_first;
		struct k3_expert x;
		uint64_t begin;
		int r = k3_iod_expert_next(e->iod, wait, &x, err);

		if (r < 0 || (r == K3_IOD_NONE && !wait))
			return r;
		if (r == K3_IOD_NONE || x.layer != e->moe_layer ||
		    x.expert >= e->config->n_experts || first[x.expert + 1] == first[x.expert])
			return err_set(err, ERR_PROTOCOL,
				       "the daemon did not bring the experts of layer %u that were "
				       "asked for",
				       e->moe_layer);
		begin = timeline_now(e->timeline);
		compute_expert(e, &x);
		timeline_span(e->timeline, "expert", begin, "expert", x.expert);
		r = k3_iod_expert_done(e->iod, &x, err);
		if (r < 0)
			return r;
		if (r != K3_IOD_STALE)
			e->n_experts_pending--;
	}
	return 0;
}

static int ask_for_experts(struct k3_engine *e, uint32_t layer, uint32_t *ret_n, struct err *err)
{
	struct k3_scratch *s = &e->scratch;
	uint32_t n = 0;

	for (uint32_t i = 0; i < e->config->n_experts; i++)
		if (s->expert_first[i + 1] > s->expert_first[i])
			s->wanted[n++] = (uint16_t)i;
	e->moe_layer = layer;
	*ret_n = n;
	return k3_iod_experts(e->iod, layer, s->wanted, n, err);
}

static void pack_latents(void *data, size_t begin, size_t end, unsigned worker)
{
	struct k3_engine *e = data;
	size_t n = e->config->latent_size, stride = kern_packed_stride(KERN_MXFP4, n);

	(void)worker;
	for (size_t i = begin; i < end; i++)
		e->kernel->pack_mxfp4(e->scratch.z + i * n, n, e->scratch.packed_z + i * stride);
}

/* z = RMSNorm(sum of w_e E_e), in ascending id from +0. */
static void combine_rows(void *data, size_t begin, size_t end, unsigned worker)
{
	struct k3_engine *e = data;
	const struct config *c = e->config;
	struct k3_scratch *s = &e->scratch;
	size_t n = c->latent_size;

	(void)worker;
	for (size_t row = begin; row < end; row++) {
		float *u = s->z + row * n;

		memset(u, 0, n * sizeof(*u));
		for (uint32_t i = 0; i < c->top_k; i++)
			e->kernel->axpy(s->weights[row * c->top_k + i],
					s->contributions + s->pair_of[row * c->top_k + i] * n, n,
					u);
		e->kernel->rmsnorm(u, s->vector[ROLE_LATENT_NORM], n, c->rms_norm_eps, u);
	}
}

static void add_rows(void *data, size_t begin, size_t end, unsigned worker)
{
	struct k3_engine *e = data;
	size_t hidden = e->config->hidden_size;

	(void)worker;
	e->kernel->add(e->scratch.moe_out + begin * hidden, (end - begin) * hidden,
		       e->scratch.out + begin * hidden);
}

int k3_layer_moe(struct k3_engine *e, uint32_t layer, struct k3_input *in, struct err *err)
{
	struct k3_scratch *s = &e->scratch;
	struct k3_input latent;
	uint64_t begin = timeline_now(e->timeline);
	uint32_t n_wanted = 0;
	int r;

	r = k3_multiply(e, layer, ROLE_ROUTER, in, s->router, err);
	if (r < 0)
		return r;
	r = k3_route(e, layer, err);
	if (r == 0)
		r = ask_for_experts(e, layer, &n_wanted, err);
	timeline_span(e->timeline, "router", begin, "experts", n_wanted);
	if (r == 0)
		r = k3_multiply(e, layer, ROLE_LATENT_DOWN, in, s->z, err);
	if (r < 0)
		return r;
	k3_team_run(e->team, e->n_rows, 1, pack_latents, e);
	/* From here an expert that lands can be computed. */
	e->n_experts_pending = n_wanted;
	begin = timeline_now(e->timeline);
	r = k3_layer_shared(e, layer, in, err);
	timeline_span(e->timeline, "shared experts", begin, NULL, 0);
	begin = timeline_now(e->timeline);
	if (r == 0)
		r = k3_moe_take_experts(e, true, err);
	timeline_span(e->timeline, "routed experts", begin, NULL, 0);
	if (r < 0)
		return r;
	k3_team_run(e->team, e->n_rows, 1, combine_rows, e);
	k3_input_set(&latent, s->z, e->n_rows, e->config->latent_size, s->packed_mid);
	r = k3_multiply(e, layer, ROLE_LATENT_UP, &latent, s->moe_out, err);
	if (r < 0)
		return r;
	k3_team_run(e->team, e->n_rows, 1, add_rows, e);
	return 0;
}
