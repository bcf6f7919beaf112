/* Elementwise functions, norms, mix, convolution, KDA, softmax. */
#include <string.h>

#include "tests/kernel/checker.h"

/* The widest vectors work on blocks of 64. */
enum { LENGTH_MAX = 3 * 64 + 1 };

/* Arguments of the functions: the interesting range, and beyond it everything. */
static float *new_arguments(struct check *c, size_t n)
{
	static const float special[] = { 0.0f,   -0.0f,    0.625f,  -0.625f, 88.72284f, 89.0f,
					 -87.4f, -103.98f, -104.0f, -200.0f, 1e30f,     -1e30f };
	float *x = check_floats(c, n);

	for (size_t i = 0; i < n; i++) {
		size_t kind = check_below(c, 4);

		if (kind == 0)
			x[i] = check_uniform(c, -105.0f, 95.0f);
		else if (kind == 1)
			x[i] = check_uniform(c, -4.0f, 4.0f);
		else if (kind == 2 && check_below(c, 8) == 0)
			x[i] = special[check_below(c, sizeof(special) / sizeof(special[0]))];
	}
	return x;
}

static void check_map(struct check *c, const char *op, KERN_DECL_map(*ref),
		      KERN_DECL_map(*candidate))
{
	for (int v = 0; v < VALUES_N_; v++) {
		for (size_t n = 0; n <= LENGTH_MAX; n++) {
			struct output o;
			float *x;

			if (!check_begin(c, op, (enum values)v))
				return;
			x = new_arguments(c, n);
			if (n > 3 && check_below(c, 4) == 0) {
				x[0] = __builtin_inff();
				x[1] = -__builtin_inff();
				x[2] = __builtin_nanf("");
			}
			o = check_output(c, n, NULL);
			ref(x, n, o.ref);
			candidate(x, n, o.candidate);
			check_output_done(c, &o, NULL, "n %zu", n);
			o = check_output(c, n, x);
			ref(o.ref, n, o.ref);
			candidate(o.candidate, n, o.candidate);
			check_output_done(c, &o, NULL, "n %zu, in place", n);
			check_release(c);
		}
	}
}

static void check_two_inputs(struct check *c, enum values v, size_t n)
{
	struct output o;
	const float *a, *b;

	if (check_begin(c, "gate", v)) {
		a = check_floats(c, n);
		b = new_arguments(c, n);
		o = check_output(c, n, NULL);
		c->ref->gate(a, b, n, o.ref);
		c->candidate->gate(a, b, n, o.candidate);
		check_output_done(c, &o, NULL, "n %zu", n);
		o = check_output(c, n, b);
		c->ref->gate(a, o.ref, n, o.ref);
		c->candidate->gate(a, o.candidate, n, o.candidate);
		check_output_done(c, &o, NULL, "n %zu, onto the gate", n);
		check_release(c);
	}
	if (check_begin(c, "situ", v)) {
		a = new_arguments(c, n);
		b = new_arguments(c, n);
		o = check_output(c, n, NULL);
		c->ref->situ(a, b, n, 4.0f, 25.0f, o.ref);
		c->candidate->situ(a, b, n, 4.0f, 25.0f, o.candidate);
		check_output_done(c, &o, NULL, "n %zu", n);
		o = check_output(c, n, b);
		c->ref->situ(a, o.ref, n, 3.7f, 21.3f, o.ref);
		c->candidate->situ(a, o.candidate, n, 3.7f, 21.3f, o.candidate);
		check_output_done(c, &o, NULL, "n %zu, onto u", n);
		check_release(c);
	}
	if (check_begin(c, "add", v)) {
		a = check_floats(c, n);
		o = check_output(c, n, check_floats(c, n));
		c->ref->add(a, n, o.ref);
		c->candidate->add(a, n, o.candidate);
		check_output_done(c, &o, NULL, "n %zu", n);
		check_release(c);
	}
	if (check_begin(c, "axpy", v)) {
		float factor = check_value(c);

		a = check_floats(c, n);
		o = check_output(c, n, check_floats(c, n));
		c->ref->axpy(factor, a, n, o.ref);
		c->candidate->axpy(factor, a, n, o.candidate);
		check_output_done(c, &o, NULL, "n %zu", n);
		check_release(c);
	}
	if (check_begin(c, "kda_decay", v)) {
		float exp_a = check_uniform(c, 0.2f, 16.0f);

		a = check_floats(c, n);
		b = check_floats(c, n);
		o = check_output(c, n, NULL);
		c->ref->kda_decay(a, b, exp_a, -5.0f, n, o.ref);
		c->candidate->kda_decay(a, b, exp_a, -5.0f, n, o.candidate);
		check_output_done(c, &o, NULL, "n %zu", n);
		check_release(c);
	}
}

void check_elementwise(struct check *c)
{
	check_map(c, "exp", c->ref->exp, c->candidate->exp);
	check_map(c, "sigmoid", c->ref->sigmoid, c->candidate->sigmoid);
	check_map(c, "tanh", c->ref->tanh, c->candidate->tanh);
	check_map(c, "silu", c->ref->silu, c->candidate->silu);
	for (int v = 0; v < VALUES_N_; v++) {
		for (size_t n = 0; n <= LENGTH_MAX; n++)
			check_two_inputs(c, (enum values)v, n);
		check_two_inputs(c, (enum values)v, 12288);
	}
}

static void check_norms(struct check *c, enum values v, size_t n)
{
	struct output o;
	const float *x, *w;

	if (check_begin(c, "rmsnorm", v)) {
		x = check_floats(c, n);
		w = check_floats(c, n);
		o = check_output(c, n, NULL);
		c->ref->rmsnorm(x, w, n, 1e-5f, o.ref);
		c->candidate->rmsnorm(x, w, n, 1e-5f, o.candidate);
		check_output_done(c, &o, NULL, "n %zu", n);
		o = check_output(c, n, x);
		c->ref->rmsnorm(o.ref, w, n, 1e-6f, o.ref);
		c->candidate->rmsnorm(o.candidate, w, n, 1e-6f, o.candidate);
		check_output_done(c, &o, NULL, "n %zu, in place", n);
		check_release(c);
	}
	if (check_begin(c, "l2norm", v)) {
		float scale = check_below(c, 2) ? 1.0f : 0.08838834764831845f;

		x = check_floats(c, n);
		o = check_output(c, n, x);
		c->ref->l2norm(o.ref, n, 1e-6f, scale, o.ref);
		c->candidate->l2norm(o.candidate, n, 1e-6f, scale, o.candidate);
		check_output_done(c, &o, NULL, "n %zu", n);
		check_release(c);
	}
	if (check_begin(c, "softmax", v)) {
		float a, b;

		x = check_floats(c, n);
		o = check_output(c, n, x);
		a = c->ref->softmax(o.ref, n);
		b = c->candidate->softmax(o.candidate, n);
		check_output_done(c, &o, NULL, "n %zu", n);
		check_result(c, a, b, "n %zu", n);
		check_release(c);
	}
}

static void check_mix(struct check *c, enum values v, size_t n_sources, size_t n)
{
	const float *sources[16], *proj;
	struct output o;

	if (!check_begin(c, "mix", v))
		return;
	for (size_t i = 0; i < n_sources; i++)
		sources[i] = check_floats(c, n);
	proj = check_floats(c, n);
	o = check_output(c, n, NULL);
	c->ref->mix(sources, n_sources, n, proj, 1e-5f, o.ref);
	c->candidate->mix(sources, n_sources, n, proj, 1e-5f, o.candidate);
	check_output_done(c, &o, NULL, "%zu sources of %zu", n_sources, n);
	check_release(c);
}

static void check_conv(struct check *c, enum values v, size_t n_taps, size_t n)
{
	size_t stride = n + check_below(c, 5), n_history = n_taps ? (n_taps - 1) * stride : 0;
	const float *w;
	struct output o, history;

	if (!check_begin(c, "conv", v))
		return;
	w = check_floats(c, n * n_taps);
	history = check_output(c, n_history, check_floats(c, n_history));
	for (int step = 0; step < 3; step++) {
		const float *x = check_floats(c, n);

		o = check_output(c, n, NULL);
		c->ref->conv(x, w, n_taps, history.ref, stride, n, o.ref);
		c->candidate->conv(x, w, n_taps, history.candidate, stride, n, o.candidate);
		check_output_done(c, &o, NULL, "%zu taps, n %zu, step %d", n_taps, n, step);
		check_output_done(c, &history, NULL, "%zu taps, n %zu, step %d, history", n_taps, n,
				  step);
	}
	check_release(c);
}

static void check_kda_step(struct check *c, enum values v, size_t dk, size_t dv)
{
	struct output state, o;
	float *scratch, *alpha;

	if (!check_begin(c, "kda_step", v))
		return;
	state = check_output(c, dk * dv, check_floats(c, dk * dv));
	scratch = check_floats(c, dv);
	alpha = check_floats(c, dk);
	for (int step = 0; step < 2; step++) {
		const float *q = check_floats(c, dk), *k = check_floats(c, dk);
		const float *value = check_floats(c, dv);
		float beta = check_uniform(c, 0.0f, 1.0f);

		for (size_t d = 0; d < dk; d++)
			alpha[d] = check_uniform(c, 0.0067f, 1.0f);
		o = check_output(c, dv, NULL);
		c->ref->kda_step(state.ref, dk, dv, q, k, value, alpha, beta, scratch, o.ref);
		c->candidate->kda_step(state.candidate, dk, dv, q, k, value, alpha, beta, scratch,
				       o.candidate);
		check_output_done(c, &o, NULL, "dk %zu dv %zu step %d", dk, dv, step);
		check_output_done(c, &state, NULL, "dk %zu dv %zu step %d, state", dk, dv, step);
	}
	check_release(c);
}

void check_layer_ops(struct check *c)
{
	for (int i = 0; i < VALUES_N_; i++) {
		enum values v = (enum values)i;

		for (size_t n = 1; n <= LENGTH_MAX; n++) {
			check_norms(c, v, n);
			check_mix(c, v, 1 + check_below(c, 9), n);
			check_conv(c, v, 1 + check_below(c, 5), n);
			check_kda_step(c, v, 1 + check_below(c, 20), n);
		}
		check_norms(c, v, 1025);
		check_norms(c, v, 7168);
		check_mix(c, v, 9, 7168);
		check_conv(c, v, 4, 12288);
		check_kda_step(c, v, 128, 128);
		check_kda_step(c, v, 1025, 19);
	}
}
