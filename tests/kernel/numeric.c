/*
 * The worked numbers of the architecture notes (3.2 to 3.7), and the accuracy of the kernels
 * against fp64: exp, tanh and sigmoid in ulp, dot and column sums in units of sum |w x|, the
 * recurrence over thousands of steps. All kernels give the reference's bits (test-kernel-checker),
 * so the best ones this CPU has stand for all.
 */
#include "compute/kernel/kernel.h"
#include "tests/harness/test.h"

static struct kern_table kern;
static uint64_t rng = 88172645463325252u;

static void init(void)
{
	struct err err = { 0 };

	CHECK_MSG(kern_table_init(&kern, KERN_ISA_N_, &err) == 0, "%s", err.text);
}

static uint32_t random_bits(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)(rng >> 16);
}

static double uniform(void)
{
	return ((double)random_bits() + 0.5) / 4294967296.0;
}

static double gauss(void)
{
	return sqrt(-2.0 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static float float_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* The notes give nine digits. */
static void near(const char *what, double got, double want)
{
	CHECK_MSG(fabs(got - want) <= 2e-7 + 1e-6 * fabs(want), "%s: got %.9g, expected %.9g", what,
		  got, want);
}

/* ---- worked numbers ---- */

static void case_mix(void)
{
	const float b0[] = { 1, -2, 0.5f, 0 }, b1[] = { 0.25f, 0.5f, -1, 2 };
	const float p[] = { -1, 0.5f, 3, -0.5f }, norm[] = { 1, 0.5f, 2, 1.5f };
	const float proj[] = { 0.3f, -0.2f, 0.1f, 0.4f };
	const double want[] = { 0.260646961, -0.328961478, 0.259109630, 0.860747853 };
	const double scores[] = { 0.523720941, 0.889411529, -0.030860611 };
	const double shares[] = { 0.331584591, 0.477982223, 0.190433186 };
	const float *sources[] = { b0, b1, p };
	float c[4], out[4], s[3], inverse;

	init();
	for (int i = 0; i < 4; i++)
		c[i] = norm[i] * proj[i];
	kern.mix(sources, 3, 4, c, 1e-5f, out);
	for (int i = 0; i < 4; i++)
		near("mix", (double)out[i], want[i]);
	/* the parts, so that an error is placed */
	for (int i = 0; i < 3; i++) {
		const float *v = sources[i];

		s[i] = kern.dot(v, c, 4) * (1.0f / sqrtf(kern.dot(v, v, 4) / 4.0f + 1e-5f));
		near("score", (double)s[i], scores[i]);
	}
	inverse = kern.softmax(s, 3);
	for (int i = 0; i < 3; i++)
		near("share", (double)(s[i] * inverse), shares[i]);
}

static void case_conv(void)
{
	const float x[] = { 1, -2, 0.5f, 3, -1 }, w[] = { 0.1f, -0.2f, 0.3f, 0.4f };
	const double want[] = { 0.239475064, -0.188770334, -0.212606216, 1.598635141, 0.109966799 };
	float history[3] = { 0 }, y;

	init();
	for (int t = 0; t < 5; t++) {
		kern.conv(&x[t], w, 4, history, 1, 1, &y);
		near("conv", (double)y, want[t]);
	}
}

static float one(KERN_DECL_map(*f), float x)
{
	float y;

	f(&x, 1, &y);
	return y;
}

static void case_kda(void)
{
	const float z[2][2] = { { 0.4f, -0.2f }, { -1, 0.6f } }, dt_bias[2] = { 0.1f, -0.3f };
	const float q[2][2] = { { 1, 2 }, { -0.5f, 1.5f } }, k[2][2] = { { 0.5f, -1 }, { 2, 1 } };
	const float v[2][2] = { { 1, -1 }, { 0.5f, 2 } }, logit[2] = { 0, 1 };
	const float o_norm[2] = { 1.5f, 0.5f }, gate[2] = { 0.3f, -0.7f };
	const double g[2][2] = { { -3.475805986, -1.524194014 }, { -0.924233664, -3.105966646 } };
	const double states[2][4] = {
		{ 0.223606708, -0.223606708, -0.447213417, 0.447213417 },
		{ 0.369634244, 1.265062270, 0.120422834, 0.696925423 },
	};
	const double outs[2][2] = { { -0.212131928, 0.212131928 }, { -0.001870636, 0.184635226 } };
	const double betas[2] = { 0.5, 0.731058579 };
	const double gated[2] = { -0.012341787, 0.234545851 };
	float state[4] = { 0 }, o[2], scratch[2];

	init();
	for (int t = 0; t < 2; t++) {
		float alpha[2], qn[2], kn[2], beta = one(kern.sigmoid, logit[t]);

		kern.l2norm(q[t], 2, 1e-6f, (float)sqrt(0.5), qn);
		kern.l2norm(k[t], 2, 1e-6f, 1.0f, kn);
		kern.kda_decay(z[t], dt_bias, one(kern.exp, 0.5f), -5.0f, 2, alpha);
		kern.kda_step(state, 2, 2, qn, kn, v[t], alpha, beta, scratch, o);
		near("beta", (double)beta, betas[t]);
		for (int i = 0; i < 2; i++) {
			near("g", log((double)alpha[i]), g[t][i]);
			near("o", (double)o[i], outs[t][i]);
		}
		for (int i = 0; i < 4; i++)
			near("state", (double)state[i], states[t][i]);
	}
	kern.rmsnorm(o, o_norm, 2, 1e-5f, o);
	kern.gate(o, gate, 2, o);
	for (int i = 0; i < 2; i++)
		near("gated norm", (double)o[i], gated[i]);
}

static void case_situ(void)
{
	const float g[] = { 1, -1, 4, 10, -20, 0.5f, 0 }, u[] = { 1, 2, -3, 50, 5, -0.25f, 7 };
	const double want[] = { 0.715817828,
				-0.525828896,
				-8.93191945,
				95.1080215,
				-4.06783918e-08,
				-0.0774021063,
				0 };
	float y[7];

	init();
	kern.situ(g, u, 7, 4.0f, 25.0f, y);
	for (int i = 0; i < 7; i++)
		CHECK_MSG(fabs((double)y[i] - want[i]) <= 1e-6 * fabs(want[i]), "%d: %.9g", i,
			  (double)y[i]);
}

static void case_router(void)
{
	const float logits[] = { 0.2f, -1, 1.5f, 0.7f };
	const double want[] = { 0.549833997, 0.268941421, 0.817574476, 0.668187772 };
	float s[4];

	init();
	kern.sigmoid(logits, 4, s);
	for (int i = 0; i < 4; i++)
		near("score", (double)s[i], want[i]);
	near("weight 1", (double)(s[1] / (s[1] + s[3] + 1e-20f)), 0.286984359);
	near("weight 3", (double)(s[3] / (s[1] + s[3] + 1e-20f)), 0.713015641);
}

/* All 16 codes under the scales 2^-127, 1 and 2^127, each alone in its row. */
static void case_mxfp4_codes(void)
{
	const double magnitude[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
	const uint8_t scales[] = { 0, 1, 127, 254 };
	float x[32] = { 0 }, xp[128] __attribute__((aligned(64)));

	init();
	for (size_t at = 0; at < 32; at++) {
		memset(x, 0, sizeof(x));
		x[at] = 1.0f;
		kern.pack_mxfp4(x, 32, xp);
		for (size_t i = 0; i < 4 * 16; i++) {
			uint8_t packed[16] = { 0 }, code = (uint8_t)(i % 16);
			double want = ldexp(magnitude[code & 7], scales[i / 16] - 127);
			float y;

			packed[at / 2] = (uint8_t)(at % 2 ? code << 4 : code);
			kern.matmul_mxfp4(packed, &scales[i / 16], 1, 32, xp, 0, 1, &y, 1);
			if (code & 8)
				want = -want;
			CHECK_MSG(y == (float)want, "code %u scale %u: %g", code, scales[i / 16],
				  (double)y);
		}
	}
}

/* ---- accuracy ---- */

/* |got - want| in units in the last place of want. */
static double ulp(float got, double want)
{
	int e;

	if (want == 0)
		return got == 0 ? 0 : 1e9;
	if (isinf((float)want))
		return isinf(got) ? 0 : 1e9;
	(void)frexp(want, &e);
	if (e < -125)
		e = -125;
	return fabs((double)got - want) / ldexp(1.0, e - 24);
}

static double want_sigmoid(double x)
{
	return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

/* K3_DENSE=1 in the environment: every float (nightly); otherwise every 1009th. */
static void check_function(const char *name, KERN_DECL_map(*f), double (*want)(double),
			   double bound)
{
	enum { N = 4096 };
	static float x[N], y[N];
	uint64_t step = getenv("K3_DENSE") ? 1 : 1009, bits = 0;
	double worst = 0, at = 0;

	while (bits < 1ull << 32) {
		size_t n = 0;

		for (; n < N && bits < 1ull << 32; bits += step) {
			float v = float_of((uint32_t)bits);

			if (isfinite(v))
				x[n++] = v;
		}
		f(x, n, y);
		for (size_t i = 0; i < n; i++) {
			double e = ulp(y[i], want((double)x[i]));

			if (e > worst) {
				worst = e;
				at = (double)x[i];
			}
		}
	}
	(void)printf("%s: %.3f ulp at %a\n", name, worst, at);
	CHECK_MSG(worst <= bound, "%s: %.3f ulp at %a", name, worst, at);
}

static void case_exp(void)
{
	init();
	check_function("exp", kern.exp, exp, 2.0);
	CHECK(one(kern.exp, 0.0f) == 1.0f && one(kern.exp, -0.0f) == 1.0f);
	CHECK(one(kern.exp, INFINITY) == INFINITY && one(kern.exp, -INFINITY) == 0.0f);
	CHECK(isnan(one(kern.exp, NAN)));
	CHECK(one(kern.exp, 88.72283f) < INFINITY && one(kern.exp, 88.7229f) == INFINITY);
}

static void case_tanh(void)
{
	init();
	check_function("tanh", kern.tanh, tanh, 2.0);
	CHECK(one(kern.tanh, INFINITY) == 1.0f && one(kern.tanh, -INFINITY) == -1.0f);
	CHECK(one(kern.tanh, -0.0f) == 0.0f);
	CHECK(isnan(one(kern.tanh, NAN)));
}

static void case_sigmoid(void)
{
	init();
	check_function("sigmoid", kern.sigmoid, want_sigmoid, 3.0);
	CHECK(one(kern.sigmoid, INFINITY) == 1.0f && one(kern.sigmoid, -INFINITY) == 0.0f);
	CHECK(one(kern.sigmoid, 0.0f) == 0.5f);
	CHECK(isnan(one(kern.sigmoid, NAN)));
}

static float *new_floats(size_t n)
{
	float *p = aligned_alloc(64, (n * sizeof(*p) + 63) / 64 * 64);

	CHECK(p != NULL);
	memset(p, 0, (n * sizeof(*p) + 63) / 64 * 64);
	return p;
}

/* |dot - fp64| <= 1e-7 * sum |w x| at the widths of the model. */
static void case_dot(void)
{
	static const size_t widths[] = { 128, 512, 1536, 3584, 7168, 12288, 33792 };
	double worst = 0;

	init();
	for (size_t i = 0; i < 200 * sizeof(widths) / sizeof(widths[0]); i++) {
		size_t n = widths[i / 200];
		float *x = new_floats(n), *w = new_floats(n), *xp = new_floats(n + 32), y[3];
		uint16_t *bf = malloc(n * sizeof(*bf));
		double want[2] = { 0 }, size[2] = { 0 };

		CHECK(bf != NULL);
		for (size_t j = 0; j < n; j++) {
			uint32_t bits;
			float f;

			x[j] = (float)gauss();
			w[j] = (float)(gauss() * (i % 2 ? 1 : exp(gauss())));
			memcpy(&bits, &w[j], sizeof(bits));
			bf[j] = (uint16_t)(bits >> 16);
			f = float_of((uint32_t)bf[j] << 16);
			want[0] += (double)w[j] * (double)x[j];
			size[0] += fabs((double)w[j] * (double)x[j]);
			want[1] += (double)f * (double)x[j];
			size[1] += fabs((double)f * (double)x[j]);
		}
		y[0] = kern.dot(w, x, n);
		kern.pack_bf16(x, n, xp);
		kern.matmul_bf16(bf, 1, n, xp, 0, 1, &y[1], 1);
		for (int j = 0; j < 2; j++)
			worst = fmax(worst, fabs((double)y[j] - want[j]) / size[j]);
		free(x);
		free(w);
		free(xp);
		free(bf);
	}
	(void)printf("dot: %.2e of sum |w x|\n", worst);
	CHECK(worst <= 1e-7);
}

static void case_dot_mxfp4(void)
{
	const double magnitude[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
	enum { N = 3584 };
	double worst = 0;
	float *x = new_floats(N), *xp = new_floats(N);
	uint8_t packed[N / 2], scale[N / 32];

	init();
	for (int i = 0; i < 400; i++) {
		double want = 0, size = 0;
		float y;

		for (size_t j = 0; j < N / 32; j++)
			scale[j] = (uint8_t)(118 + random_bits() % 8);
		for (size_t j = 0; j < N / 2; j++)
			packed[j] = (uint8_t)random_bits();
		for (size_t j = 0; j < N; j++) {
			uint8_t code = packed[j / 2] >> (j % 2 * 4) & 15;
			double w = ldexp(magnitude[code & 7], scale[j / 32] - 127);

			x[j] = (float)gauss();
			want += (code & 8 ? -w : w) * (double)x[j];
			size += fabs(w * (double)x[j]);
		}
		kern.pack_mxfp4(x, N, xp);
		kern.matmul_mxfp4(packed, scale, 1, N, xp, 0, 1, &y, 1);
		worst = fmax(worst, fabs((double)y - want) / size);
	}
	(void)printf("dot of MXFP4: %.2e of sum |w x|\n", worst);
	CHECK(worst <= 1e-7);
	free(x);
	free(xp);
}

/* The recurrence of one head against fp64, with inputs rounded to f32 for both. */
static void case_kda_drift(void)
{
	enum { D = 128, T = 8192 };
	static float state[D * D];
	static double exact[D * D];
	double worst_o = 0, worst_s = 0, max_s = 0;

	init();
	for (int t = 0; t < T; t++) {
		float q[D], k[D], v[D], alpha[D], o[D], scratch[D], beta = (float)uniform();
		double u[D] = { 0 }, out[D] = { 0 }, size[D] = { 0 };
		double e = 0;

		for (size_t d = 0; d < D; d++) {
			q[d] = (float)gauss();
			k[d] = (float)gauss();
			v[d] = (float)gauss();
			/* from quick to nearly none */
			alpha[d] =
				(float)exp(-5 * want_sigmoid(-12 + 10 * (double)d / D + gauss()));
		}
		kern.l2norm(q, D, 1e-6f, 0.08838834764831845f, q);
		kern.l2norm(k, D, 1e-6f, 1.0f, k);
		kern.kda_step(state, D, D, q, k, v, alpha, beta, scratch, o);
		for (size_t i = 0; i < D * D; i++) {
			exact[i] *= (double)alpha[i / D];
			u[i % D] += (double)k[i / D] * exact[i];
		}
		for (size_t i = 0; i < D * D; i++) {
			exact[i] += (double)k[i / D] * (double)beta * ((double)v[i % D] - u[i % D]);
			out[i % D] += (double)q[i / D] * exact[i];
			size[i % D] += fabs((double)q[i / D] * exact[i]);
		}
		for (size_t j = 0; j < D; j++)
			e = fmax(e, fabs((double)o[j] - out[j]) / (size[j] + 1e-30));
		worst_o = fmax(worst_o, e);
	}
	for (size_t i = 0; i < D * D; i++) {
		max_s = fmax(max_s, fabs(exact[i]));
		worst_s = fmax(worst_s, fabs((double)state[i] - exact[i]));
	}
	(void)printf("kda after %d steps: state %.2e of max |S|, output %.2e of sum |q||S|\n", T,
		     worst_s / max_s, worst_o);
	CHECK(worst_s <= 1e-5 * max_s);
	CHECK(worst_o <= 1e-6);
}

static const struct test_case cases[] = {
	{ "mix", case_mix },   { "conv", case_conv },           { "kda", case_kda },
	{ "situ", case_situ }, { "router", case_router },       { "mxfp4_codes", case_mxfp4_codes },
	{ "exp", case_exp },   { "tanh", case_tanh },           { "sigmoid", case_sigmoid },
	{ "dot", case_dot },   { "dot_mxfp4", case_dot_mxfp4 }, { "kda_drift", case_kda_drift },
};

TEST_MAIN(cases)
