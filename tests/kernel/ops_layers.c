/*
 * The published cases that take several kernels: a KDA layer, MLA, router, mixture of experts, and
 * whole layers with their attention residuals. Composed here from the formulas, independent of the
 * engine. Weights are f32 in these files.
 */
#include "compute/kernel/kernel.h"
#include "tests/harness/test.h"
#include "tests/kernel/ops_file.h"

static struct kern_table kern;

static const struct ops_file *open_case(const char *name)
{
	struct err err = { 0 };

	CHECK_MSG(kern_table_init(&kern, KERN_ISA_N_, &err) == 0, "%s", err.text);
	return ops_open(name);
}

/* y = W x, one row. */
static void linear(const float *w, size_t n_out, size_t n_in, const float *x, float *y)
{
	float *xp = aligned_alloc(64, kern_packed_len(KERN_F32, n_in) * sizeof(*xp));

	CHECK(xp != NULL);
	kern.pack_f32(x, n_in, xp);
	kern.matmul_f32(w, n_out, n_in, xp, 0, 1, y, n_out);
	free(xp);
}

static const float *weight(const struct ops_file *f, const char *prefix, const char *name, size_t n)
{
	char key[128];

	(void)snprintf(key, sizeof(key), "%s%s", prefix, name);
	return ops_floats(f, key, n);
}

static float exp_of(float x)
{
	float y;

	kern.exp(&x, 1, &y);
	return y;
}

struct kda {
	size_t hidden, H, D;
	const float *proj[3], *conv[3], *f_a, *f_b, *b, *g, *o, *a_log, *dt_bias, *o_norm;
	float bound, eps;
	float *history[3], *state;
};

static void kda_state(struct kda *l)
{
	for (int s = 0; s < 3; s++)
		l->history[s] = ops_new(3 * l->H * l->D);
	l->state = ops_new(l->H * l->D * l->D);
}

/* One token: x the normed input, out the layer's output (3.3). */
static void kda_token(struct kda *l, const float *x, float *out)
{
	size_t n = l->H * l->D, D = l->D;
	float *qkv[3], *low = ops_new(D), *z = ops_new(n), *beta = ops_new(l->H), *g = ops_new(n);
	float *alpha = ops_new(D), *o = ops_new(n), *scratch = ops_new(D);
	float q_scale = 1.0f / sqrtf((float)D);

	for (int s = 0; s < 3; s++) {
		float *p = ops_new(n);

		qkv[s] = ops_new(n);
		linear(l->proj[s], n, l->hidden, x, p);
		kern.conv(p, l->conv[s], 4, l->history[s], n, n, qkv[s]);
	}
	linear(l->f_a, D, l->hidden, x, low);
	linear(l->f_b, n, D, low, z);
	linear(l->b, l->H, l->hidden, x, beta);
	kern.sigmoid(beta, l->H, beta);
	linear(l->g, n, l->hidden, x, g);
	for (size_t h = 0; h < l->H; h++) {
		float *q = qkv[0] + h * D, *k = qkv[1] + h * D;

		kern.l2norm(q, D, 1e-6f, q_scale, q);
		kern.l2norm(k, D, 1e-6f, 1.0f, k);
		kern.kda_decay(z + h * D, l->dt_bias + h * D, exp_of(l->a_log[h]), l->bound, D,
			       alpha);
		kern.kda_step(l->state + h * D * D, D, D, q, k, qkv[2] + h * D, alpha, beta[h],
			      scratch, o + h * D);
		kern.rmsnorm(o + h * D, l->o_norm, D, l->eps, o + h * D);
	}
	kern.gate(o, g, n, o);
	linear(l->o, l->hidden, n, o, out);
}

enum { KDA_HIDDEN = 128, KDA_H = 4, KDA_D = 16, KDA_N = KDA_H * KDA_D };

/* The names end in suffix and the convolutions are called conv. */
static void kda_weights(struct kda *l, const struct ops_file *f, const char *prefix,
			const char *proj, const char *conv, const char *suffix)
{
	static const char streams[3] = { 'q', 'k', 'v' };
	char name[64];

	*l = (struct kda){ .hidden = KDA_HIDDEN, .H = KDA_H, .D = KDA_D };
	for (int s = 0; s < 3; s++) {
		(void)snprintf(name, sizeof(name), "%c_proj%s", streams[s], suffix);
		l->proj[s] = weight(f, prefix, name, KDA_N * KDA_HIDDEN);
		(void)snprintf(name, sizeof(name), "%c_%s%s", streams[s], conv, suffix);
		l->conv[s] = weight(f, prefix, name, KDA_N * 4);
	}
	(void)snprintf(name, sizeof(name), "f_a%s%s", proj, suffix);
	l->f_a = weight(f, prefix, name, KDA_D * KDA_HIDDEN);
	(void)snprintf(name, sizeof(name), "f_b%s%s", proj, suffix);
	l->f_b = weight(f, prefix, name, KDA_N * KDA_D);
	(void)snprintf(name, sizeof(name), "b_proj%s", suffix);
	l->b = weight(f, prefix, name, KDA_H * KDA_HIDDEN);
	(void)snprintf(name, sizeof(name), "g_proj%s", suffix);
	l->g = weight(f, prefix, name, KDA_N * KDA_HIDDEN);
	(void)snprintf(name, sizeof(name), "o_proj%s", suffix);
	l->o = weight(f, prefix, name, KDA_HIDDEN * KDA_N);
	(void)snprintf(name, sizeof(name), "o_norm%s", suffix);
	l->o_norm = weight(f, prefix, name, KDA_D);
	l->a_log = weight(f, prefix, "A_log", KDA_H);
	l->dt_bias = weight(f, prefix, "dt_bias", KDA_N);
	l->bound = -5.0f;
	l->eps = (float)ops_number(f, "rms_eps");
	kda_state(l);
}

static void run_kda_layer(const char *name, size_t T)
{
	const struct ops_file *f = open_case(name);
	const float *in = ops_floats(f, "in", T * KDA_HIDDEN);
	float *out = ops_new(T * KDA_HIDDEN);
	struct kda l;

	CHECK(ops_number(f, "lower_bound") == -5.0);
	kda_weights(&l, f, "", "", "conv", "");
	for (size_t t = 0; t < T; t++)
		kda_token(&l, in + t * KDA_HIDDEN, out + t * KDA_HIDDEN);
	ops_check_near("out", out, ops_floats(f, "out", T * KDA_HIDDEN), T * KDA_HIDDEN);
	ops_check_near("state", l.state, ops_floats(f, "state_out", KDA_N * KDA_D), KDA_N * KDA_D);
}

static void case_kda_layer1(void)
{
	run_kda_layer("kda_layer1", 1);
}

static void case_kda_layer8(void)
{
	run_kda_layer("kda_layer8", 8);
}

enum { MLA_HIDDEN = 128, MLA_H = 4, MLA_NOPE = 24, MLA_ROPE = 8, MLA_KV = 32, MLA_Q = 64 };
enum { MLA_V = 16, MLA_QK = MLA_NOPE + MLA_ROPE, MLA_T_MAX = 8 };

struct mla {
	const float *q_a, *q_a_norm, *q_b, *kv_a, *kv_a_norm, *kv_b, *g, *o;
	float eps;
	float latent[MLA_T_MAX * MLA_KV], rope[MLA_T_MAX * MLA_ROPE];
};

static void mla_weights(struct mla *l, const struct ops_file *f, const char *prefix)
{
	l->q_a = weight(f, prefix, "q_a_proj_weight", MLA_Q * MLA_HIDDEN);
	l->q_a_norm = weight(f, prefix, "q_a_layernorm_weight", MLA_Q);
	l->q_b = weight(f, prefix, "q_b_proj_weight", MLA_H * MLA_QK * MLA_Q);
	l->kv_a = weight(f, prefix, "kv_a_proj_with_mqa_weight", (MLA_KV + MLA_ROPE) * MLA_HIDDEN);
	l->kv_a_norm = weight(f, prefix, "kv_a_layernorm_weight", MLA_KV);
	l->kv_b = weight(f, prefix, "kv_b_proj_weight", MLA_H * (MLA_NOPE + MLA_V) * MLA_KV);
	l->g = weight(f, prefix, "g_proj_weight", MLA_H * MLA_V * MLA_HIDDEN);
	l->o = weight(f, prefix, "o_proj_weight", MLA_HIDDEN * MLA_H * MLA_V);
	l->eps = (float)ops_number(f, "rms_eps");
}

/* Token t, absorbed (4.1, rule 6). */
static void mla_token(struct mla *l, size_t t, const float *x, float *out)
{
	float cq[MLA_Q], q[MLA_H * MLA_QK], ckv[MLA_KV + MLA_ROPE], g[MLA_H * MLA_V];
	float o[MLA_H * MLA_V], scale = 1.0f / sqrtf((float)MLA_QK);

	linear(l->q_a, MLA_Q, MLA_HIDDEN, x, cq);
	kern.rmsnorm(cq, l->q_a_norm, MLA_Q, l->eps, cq);
	linear(l->q_b, MLA_H * MLA_QK, MLA_Q, cq, q);
	linear(l->kv_a, MLA_KV + MLA_ROPE, MLA_HIDDEN, x, ckv);
	kern.rmsnorm(ckv, l->kv_a_norm, MLA_KV, l->eps, l->latent + t * MLA_KV);
	memcpy(l->rope + t * MLA_ROPE, ckv + MLA_KV, MLA_ROPE * sizeof(float));
	linear(l->g, MLA_H * MLA_V, MLA_HIDDEN, x, g);
	for (size_t h = 0; h < MLA_H; h++) {
		const float *up = l->kv_b + h * (MLA_NOPE + MLA_V) * MLA_KV;
		const float *qh = q + h * MLA_QK;
		float qt[MLA_KV], score[MLA_T_MAX], context[MLA_KV], inverse;

		kern.colsum_f32(up, MLA_KV, MLA_NOPE, MLA_KV, qh, qt);
		for (size_t s = 0; s <= t; s++)
			score[s] = (kern.dot(qt, l->latent + s * MLA_KV, MLA_KV) +
				    kern.dot(qh + MLA_NOPE, l->rope + s * MLA_ROPE, MLA_ROPE)) *
				   scale;
		inverse = kern.softmax(score, t + 1);
		kern.colsum_f32(l->latent, MLA_KV, t + 1, MLA_KV, score, context);
		for (size_t i = 0; i < MLA_KV; i++)
			context[i] = context[i] * inverse;
		linear(up + MLA_NOPE * MLA_KV, MLA_V, MLA_KV, context, o + h * MLA_V);
	}
	kern.gate(o, g, MLA_H * MLA_V, o);
	linear(l->o, MLA_HIDDEN, MLA_H * MLA_V, o, out);
}

static void case_mla(void)
{
	enum { T = 6 };
	const struct ops_file *f = open_case("mla");
	const float *in = ops_floats(f, "in", T * MLA_HIDDEN);
	static struct mla l;
	float *out = ops_new(T * MLA_HIDDEN);

	mla_weights(&l, f, "");
	for (size_t t = 0; t < T; t++)
		mla_token(&l, t, in + t * MLA_HIDDEN, out + t * MLA_HIDDEN);
	ops_check_near("latent", l.latent, ops_floats(f, "kv_latent", T * MLA_KV), T * MLA_KV);
	ops_check_near("rope", l.rope, ops_floats(f, "k_rope", T * MLA_ROPE), T * MLA_ROPE);
	ops_check_near("out", out, ops_floats(f, "out", T * MLA_HIDDEN), T * MLA_HIDDEN);
}

/* The top_k experts by score + bias, ties to the lower id, and their weights (3.7). */
static void route(const float *logits, const float *bias, size_t n, size_t top_k, size_t *ids,
		  float *w)
{
	float *s = ops_new(n), sum = 0.0f;
	bool taken[64] = { false };

	CHECK(n <= 64);
	kern.sigmoid(logits, n, s);
	for (size_t i = 0; i < top_k; i++) {
		size_t best = n;

		for (size_t e = 0; e < n; e++) {
			if (!taken[e] && (best == n || s[e] + bias[e] > s[best] + bias[best]))
				best = e;
		}
		taken[best] = true;
	}
	for (size_t e = 0, i = 0; e < n; e++) {
		if (taken[e]) {
			ids[i++] = e;
			sum = sum + s[e];
		}
	}
	for (size_t i = 0; i < top_k; i++)
		w[i] = s[ids[i]] / (sum + 1e-20f);
}

static void case_router(void)
{
	enum { T = 6, N = 8, K = 2, HIDDEN = 128 };
	const struct ops_file *f = open_case("router");
	const float *gate = ops_floats(f, "gate_weight", N * HIDDEN);
	const float *bias = ops_floats(f, "bias", N), *in = ops_floats(f, "in", T * HIDDEN);
	const float *want = ops_floats(f, "topk_idx", T * K);
	const float *want_w = ops_floats(f, "topk_weight", T * K);
	size_t n_moved = 0;

	for (size_t t = 0; t < T; t++) {
		float logits[N], w[K], unbiased_w[K], none[N] = { 0 };
		size_t ids[K], unbiased[K];

		linear(gate, N, HIDDEN, in + t * HIDDEN, logits);
		route(logits, bias, N, K, ids, w);
		/* The file lists the same set in the order of its own sort. */
		for (size_t i = 0; i < K; i++) {
			size_t j = (size_t)want[t * K] == ids[i] ? 0 : 1;

			CHECK_EQ(ids[i], (size_t)want[t * K + j]);
			ops_check_near("weight", &w[i], &want_w[t * K + j], 1);
		}
		route(logits, none, N, K, unbiased, unbiased_w);
		n_moved += memcmp(ids, unbiased, sizeof(ids)) != 0;
	}
	CHECK_EQ(n_moved, ops_number(f, "rows_where_bias_changed_selection"));
}

/* Sources: the blocks in order, then the prefix sum. */
static void mix(const float *blocks, size_t n_blocks, const float *p, size_t n, const float *norm,
		const float *proj, float eps, float *out)
{
	const float *sources[16];
	float *c = ops_new(n);

	for (size_t i = 0; i < n_blocks; i++)
		sources[i] = blocks + i * n;
	sources[n_blocks] = p;
	for (size_t i = 0; i < n; i++)
		c[i] = norm[i] * proj[i];
	kern.mix(sources, n_blocks + 1, n, c, eps, out);
}

static void case_attnres(void)
{
	enum { T = 4, BLOCKS = 8, N = 128 };
	const struct ops_file *f = open_case("attnres");
	const float *p = ops_floats(f, "prefix_sum", T * N);
	const float *blocks = ops_floats(f, "block_residual", T * BLOCKS * N);
	const float *norm = ops_floats(f, "norm_weight", N),
		    *proj = ops_floats(f, "proj_weight", N);
	float *out = ops_new(T * N);

	for (size_t t = 0; t < T; t++)
		mix(blocks + t * BLOCKS * N, BLOCKS, p + t * N, N, norm, proj,
		    (float)ops_number(f, "eps"), out + t * N);
	ops_check_near("out", out, ops_floats(f, "out", T * N), T * N);
}

enum { MOE_HIDDEN = 128, MOE_LATENT = 64, MOE_INTER = 48, MOE_N = 8, MOE_K = 2, MOE_SHARED = 96 };

/* down(SiTU-GLU(gate x, up x)) */
static void mlp(const float *gate, const float *up, const float *down, size_t n_in, size_t inter,
		const float *x, float *y)
{
	float *g = ops_new(inter), *u = ops_new(inter);

	linear(gate, inter, n_in, x, g);
	linear(up, inter, n_in, x, u);
	kern.situ(g, u, inter, 4.0f, 25.0f, g);
	linear(down, n_in, inter, g, y);
}

struct moe {
	const float *gate, *bias, *down, *up, *norm, *shared[3], *experts[MOE_N][3];
	float eps;
};

static void moe_weights(struct moe *l, const struct ops_file *f, const char *prefix)
{
	char name[64];

	l->gate = weight(f, prefix, "gate_weight", MOE_N * MOE_HIDDEN);
	l->bias = weight(f, prefix, "e_score_correction_bias", MOE_N);
	l->down = weight(f, prefix, "down_weight", MOE_LATENT * MOE_HIDDEN);
	l->up = weight(f, prefix, "up_weight", MOE_HIDDEN * MOE_LATENT);
	l->norm = weight(f, prefix, "norm_weight", MOE_LATENT);
	l->eps = (float)ops_number(f, "rms_eps");
	for (int w = 0; w < 3; w++) {
		(void)snprintf(name, sizeof(name), "shared_w%d_weight", w + 1);
		l->shared[w] = weight(f, prefix, name, MOE_SHARED * MOE_HIDDEN);
		for (int e = 0; e < MOE_N; e++) {
			(void)snprintf(name, sizeof(name), "experts_%d_w%d_weight", e, w + 1);
			l->experts[e][w] = weight(f, prefix, name, MOE_INTER * MOE_LATENT);
		}
	}
}

static void moe_token(const struct moe *l, const float *x, float *out)
{
	float logits[MOE_N], w[MOE_K], z[MOE_LATENT], sum[MOE_LATENT] = { 0 }, y[MOE_LATENT];
	float shared[MOE_HIDDEN];
	size_t ids[MOE_K];

	linear(l->gate, MOE_N, MOE_HIDDEN, x, logits);
	route(logits, l->bias, MOE_N, MOE_K, ids, w);
	linear(l->down, MOE_LATENT, MOE_HIDDEN, x, z);
	for (size_t i = 0; i < MOE_K; i++) {
		const float *const *e = l->experts[ids[i]];

		mlp(e[0], e[2], e[1], MOE_LATENT, MOE_INTER, z, y);
		kern.axpy(w[i], y, MOE_LATENT, sum);
	}
	kern.rmsnorm(sum, l->norm, MOE_LATENT, l->eps, sum);
	linear(l->up, MOE_HIDDEN, MOE_LATENT, sum, out);
	mlp(l->shared[0], l->shared[2], l->shared[1], MOE_HIDDEN, MOE_SHARED, x, shared);
	kern.add(shared, MOE_HIDDEN, out);
}

static void case_moe(void)
{
	enum { T = 3 };
	const struct ops_file *f = open_case("moe");
	const float *in = ops_floats(f, "in", T * MOE_HIDDEN);
	struct moe l;
	float *out = ops_new(T * MOE_HIDDEN);

	moe_weights(&l, f, "");
	for (size_t t = 0; t < T; t++)
		moe_token(&l, in + t * MOE_HIDDEN, out + t * MOE_HIDDEN);
	ops_check_near("out", out, ops_floats(f, "out", T * MOE_HIDDEN), T * MOE_HIDDEN);
}

/* ---- whole layers (3.2) ---- */

enum { LAYER_T = 4, LAYER_N = 128, LAYER_BLOCKS = 2 };

struct layer {
	bool is_mla;
	struct kda kda;
	struct mla mla;
	struct moe moe;
	const float *norm[2], *res_norm[2], *res_proj[2]; /* attention, mlp */
	float eps;
};

/* One token: p becomes the layer's output; blocks holds n_blocks snapshots and room for one. */
static void layer_token(struct layer *l, size_t index, size_t t, float *blocks, size_t *n_blocks,
			float *p)
{
	float x[LAYER_N], a[LAYER_N], m[LAYER_N];

	mix(blocks, *n_blocks, p, LAYER_N, l->res_norm[0], l->res_proj[0], l->eps, x);
	if (index % 3 == 0) { /* the snapshot is of the old p; a new block begins */
		memcpy(blocks + (*n_blocks)++ * LAYER_N, p, sizeof(x));
		memset(p, 0, sizeof(x));
	}
	kern.rmsnorm(x, l->norm[0], LAYER_N, l->eps, x);
	if (l->is_mla)
		mla_token(&l->mla, t, x, a);
	else
		kda_token(&l->kda, x, a);
	kern.add(a, LAYER_N, p);
	mix(blocks, *n_blocks, p, LAYER_N, l->res_norm[1], l->res_proj[1], l->eps, x);
	kern.rmsnorm(x, l->norm[1], LAYER_N, l->eps, x);
	moe_token(&l->moe, x, m);
	kern.add(m, LAYER_N, p);
}

static void run_layer(const char *name, bool is_mla, size_t n_after)
{
	static struct layer l;
	const struct ops_file *f = open_case(name);
	const float *in = ops_floats(f, "in", LAYER_T * LAYER_N);
	const float *before = ops_floats(f, "block_residual_in", LAYER_T * LAYER_BLOCKS * LAYER_N);
	const float *after = ops_floats(f, "block_residual_out", LAYER_T * n_after * LAYER_N);
	const float *want = ops_floats(f, "out", LAYER_T * LAYER_N);

	l.is_mla = is_mla;
	if (is_mla)
		mla_weights(&l.mla, f, "self_attn_");
	else
		kda_weights(&l.kda, f, "self_attn_", "_proj", "conv1d", "_weight");
	moe_weights(&l.moe, f, "mlp_");
	l.norm[0] = ops_floats(f, "input_layernorm_weight", LAYER_N);
	l.norm[1] = ops_floats(f, "post_attention_layernorm_weight", LAYER_N);
	l.res_norm[0] = ops_floats(f, "self_attention_res_norm_weight", LAYER_N);
	l.res_norm[1] = ops_floats(f, "mlp_res_norm_weight", LAYER_N);
	l.res_proj[0] = ops_floats(f, "self_attention_res_proj_weight", LAYER_N);
	l.res_proj[1] = ops_floats(f, "mlp_res_proj_weight", LAYER_N);
	l.eps = (float)ops_number(f, "rms_eps");
	CHECK_EQ(ops_number(f, "attn_res_block_size"), 3);
	for (size_t t = 0; t < LAYER_T; t++) {
		float blocks[(LAYER_BLOCKS + 1) * LAYER_N], p[LAYER_N];
		size_t n_blocks = LAYER_BLOCKS;

		memcpy(blocks, before + t * LAYER_BLOCKS * LAYER_N,
		       LAYER_BLOCKS * LAYER_N * sizeof(float));
		memcpy(p, in + t * LAYER_N, sizeof(p));
		layer_token(&l, (size_t)ops_number(f, "layer_idx"), t, blocks, &n_blocks, p);
		CHECK_EQ(n_blocks, n_after);
		ops_check_near("blocks", blocks, after + t * n_after * LAYER_N, n_after * LAYER_N);
		ops_check_near("out", p, want + t * LAYER_N, LAYER_N);
	}
}

static void case_layer_kda(void)
{
	run_layer("layer_kda", false, 2);
}

static void case_layer_mla(void)
{
	run_layer("layer_mla", true, 3);
}

static const struct test_case cases[] = {
	{ "kda_layer1", case_kda_layer1 },
	{ "kda_layer8", case_kda_layer8 },
	{ "router", case_router },
	{ "attnres", case_attnres },
	{ "mla", case_mla },
	{ "moe", case_moe },
	{ "layer_kda", case_layer_kda },
	{ "layer_mla", case_layer_mla },
};

TEST_MAIN(cases)
