/*
 * Reference of everything that is not a matrix product: norms, activations, attention residual mix,
 * convolution, KDA and softmax. Plain loops over the formulas; sums go through the reference dot
 * and column sum, so there is one order only.
 */
#include <math.h>

#include "compute/kernel/exact_math.h"
#include "compute/kernel/variants.h"
#include "shared/must.h"

void kern_rmsnorm_ref(const float *x, const float *w, size_t n, float eps, float *y)
{
	float r = kern_rsqrtf(kern_dot_ref(x, x, n) / (float)n + eps);

	for (size_t i = 0; i < n; i++)
		y[i] = x[i] * r * w[i];
}

void kern_l2norm_ref(const float *x, size_t n, float eps, float scale, float *y)
{
	float r = kern_rsqrtf(kern_dot_ref(x, x, n) + eps);

	for (size_t i = 0; i < n; i++)
		y[i] = x[i] * r * scale;
}

void kern_situ_ref(const float *g, const float *u, size_t n, float beta, float linear, float *y)
{
	for (size_t i = 0; i < n; i++)
		y[i] = kern_situf(g[i], u[i], beta, linear);
}

void kern_exp_ref(const float *x, size_t n, float *y)
{
	for (size_t i = 0; i < n; i++)
		y[i] = kern_expf(x[i]);
}

void kern_sigmoid_ref(const float *x, size_t n, float *y)
{
	for (size_t i = 0; i < n; i++)
		y[i] = kern_sigmoidf(x[i]);
}

void kern_tanh_ref(const float *x, size_t n, float *y)
{
	for (size_t i = 0; i < n; i++)
		y[i] = kern_tanhf(x[i]);
}

void kern_silu_ref(const float *x, size_t n, float *y)
{
	for (size_t i = 0; i < n; i++)
		y[i] = kern_siluf(x[i]);
}

void kern_gate_ref(const float *x, const float *gate, size_t n, float *y)
{
	for (size_t i = 0; i < n; i++)
		y[i] = x[i] * kern_sigmoidf(gate[i]);
}

void kern_add_ref(const float *x, size_t n, float *y)
{
	for (size_t i = 0; i < n; i++)
		y[i] = y[i] + x[i];
}

void kern_axpy_ref(float a, const float *x, size_t n, float *y)
{
	for (size_t i = 0; i < n; i++)
		y[i] = fmaf(a, x[i], y[i]);
}

/* The sum of p is an f32 dot with ones (rule 6): p * 1 + a is p + a, rounded once either way. */
static float sum_of(const float *p, size_t n)
{
	float total[KERN_LANES] = { 0 }, a[KERN_LANES] = { 0 };
	size_t len = kern_packed_len(KERN_F32, n);

	for (size_t i = 0; i < len; i++) {
		size_t l = i % KERN_LANES;

		a[l] = i < n ? fmaf(p[i], 1.0f, a[l]) : fmaf(0.0f, 0.0f, a[l]);
		if ((i + 1) % KERN_FLUSH == 0 || i + 1 == len) {
			for (l = 0; l < KERN_LANES; l++) {
				total[l] = total[l] + a[l];
				a[l] = 0.0f;
			}
		}
	}
	return kern_tree(total);
}

float kern_softmax_ref(float *s, size_t n)
{
	float max = n ? s[0] : 0.0f;

	for (size_t i = 1; i < n; i++)
		max = s[i] > max ? s[i] : max;
	for (size_t i = 0; i < n; i++)
		s[i] = kern_expf(s[i] - max);
	return 1.0f / sum_of(s, n);
}

void kern_mix_ref(const float *const *sources, size_t n_sources, size_t n, const float *c,
		  float eps, float *out)
{
	float p[KERN_MIX_SOURCES_MAX];
	float inverse;

	must(n_sources > 0 && n_sources <= KERN_MIX_SOURCES_MAX);
	for (size_t i = 0; i < n_sources; i++) {
		const float *v = sources[i];
		float r = kern_rsqrtf(kern_dot_ref(v, v, n) / (float)n + eps);

		p[i] = kern_dot_ref(v, c, n) * r;
	}
	inverse = kern_softmax_ref(p, n_sources);
	for (size_t i = 0; i < n_sources; i++)
		p[i] = p[i] * inverse;
	for (size_t d = 0; d < n; d++) {
		float acc = 0.0f;

		for (size_t i = 0; i < n_sources; i++)
			acc = fmaf(p[i], sources[i][d], acc);
		out[d] = acc;
	}
}

void kern_conv_ref(const float *x, const float *w, size_t n_taps, float *history, size_t stride,
		   size_t n, float *y)
{
	for (size_t c = 0; c < n; c++) {
		const float *tap = w + c * n_taps;
		float acc = 0.0f;

		for (size_t j = 0; j < n_taps; j++) {
			float in = j + 1 < n_taps ? history[j * stride + c] : x[c];

			acc = j == 0 ? tap[0] * in : fmaf(tap[j], in, acc);
			if (j > 0 && j + 1 < n_taps)
				history[(j - 1) * stride + c] = in;
		}
		if (n_taps > 1)
			history[(n_taps - 2) * stride + c] = x[c];
		y[c] = kern_siluf(acc);
	}
}

void kern_kda_decay_ref(const float *z, const float *dt_bias, float exp_a, float bound, size_t n,
			float *alpha)
{
	for (size_t i = 0; i < n; i++)
		alpha[i] = kern_expf(bound * kern_sigmoidf(exp_a * (z[i] + dt_bias[i])));
}

void kern_kda_step_ref(float *state, size_t dk, size_t dv, const float *q, const float *k,
		       const float *v, const float *alpha, float beta, float *scratch, float *o)
{
	for (size_t d = 0; d < dk; d++) {
		for (size_t j = 0; j < dv; j++)
			state[d * dv + j] = alpha[d] * state[d * dv + j];
	}
	kern_colsum_f32_ref(state, dv, dk, dv, k, scratch);
	for (size_t j = 0; j < dv; j++)
		scratch[j] = beta * (v[j] - scratch[j]);
	for (size_t d = 0; d < dk; d++) {
		for (size_t j = 0; j < dv; j++)
			state[d * dv + j] = fmaf(k[d], scratch[j], state[d * dv + j]);
	}
	kern_colsum_f32_ref(state, dv, dk, dv, q, o);
}
