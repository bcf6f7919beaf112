/*
 * Equivalent forms (k3-architecture section 4), in this file's own fp64 code: the chunked form of
 * KDA against the recurrence and expanded MLA against absorbed; and the engine's fp32 steps of both
 * against the form that it does not use. (Whole layers meet the expanded and chunked forms of the
 * vendor's code in the oracle suite.)
 */
#include "compute/kernel/kernel.h"
#include "shared/attr.h"
#include "tests/harness/test.h"

enum { T = 70, DK = 24, DV = 20, RANK = 40, NOPE = 24, ROPE = 8, V = 18 };

static uint64_t state = 0x9e3779b97f4a7c15ULL;

static double uniform(double from, double to)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return from + (to - from) * (double)(state >> 11) / 9007199254740992.0;
}

/* Random numbers that are floats, so that both widths compute from the same values. */
static void fill(double *x, size_t n, double from, double to)
{
	for (size_t i = 0; i < n; i++)
		x[i] = (float)uniform(from, to);
}

static void narrow(const double *x, size_t n, float *ret)
{
	for (size_t i = 0; i < n; i++)
		ret[i] = (float)x[i];
}

static double distance(const double *a, const double *b, size_t n)
{
	double worst = 0;

	for (size_t i = 0; i < n; i++)
		worst = fmax(worst, fabs(a[i] - b[i]));
	return worst;
}

/* ---- KDA ---- */

struct kda {
	double q[T][DK], k[T][DK], v[T][DV], g[T][DK], beta[T];
};

static void normalise(double *x, double scale)
{
	double sum = 0;

	for (int d = 0; d < DK; d++)
		sum += x[d] * x[d];
	for (int d = 0; d < DK; d++)
		x[d] = (float)(x[d] / sqrt(sum + 1e-6) * scale);
}

static void kda_random(struct kda *a)
{
	fill(a->q[0], (size_t)T * DK, -1, 1);
	fill(a->k[0], (size_t)T * DK, -1, 1);
	fill(a->v[0], (size_t)T * DV, -2, 2);
	fill(a->g[0], (size_t)T * DK, -4.9, -0.001);
	fill(a->beta, T, 0.01, 0.99);
	for (int t = 0; t < T; t++) {
		normalise(a->q[t], 1 / sqrt(DK));
		normalise(a->k[t], 1);
	}
}

static void recurrence(const struct kda *a, double s[DK][DV], double o[T][DV])
{
	for (int t = 0; t < T; t++)
		for (int j = 0; j < DV; j++) {
			double u = 0, out = 0;

			for (int d = 0; d < DK; d++) {
				s[d][j] *= exp(a->g[t][d]);
				u += s[d][j] * a->k[t][d];
			}
			for (int d = 0; d < DK; d++) {
				s[d][j] += a->k[t][d] * a->beta[t] * (a->v[t][j] - u);
				out += s[d][j] * a->q[t][d];
			}
			o[t][j] = out;
		}
}

/* sum over d of x[d] k_j[d] exp(G_i[d] - G_j[d]), the decays from position j + 1 to i. */
static double decayed(const struct kda *a, const double *x, int i, int j)
{
	double sum = 0;

	for (int d = 0; d < DK; d++) {
		double g = 0;

		for (int r = j + 1; r <= i; r++)
			g += a->g[r][d];
		sum += x[d] * a->k[j][d] * exp(g);
	}
	return sum;
}

/* exp of the decay of channel d over positions first ... last. */
static double decay(const struct kda *a, int first, int last, int d)
{
	double g = 0;

	for (int r = first; r <= last; r++)
		g += a->g[r][d];
	return exp(g);
}

/* One chunk [first, end): section 4.2 with forward substitution. */
static void chunk(const struct kda *a, int first, int end, double s[DK][DV], double o[T][DV])
{
	double w[T][DV], out[DK][DV];

	for (int i = first; i < end; i++)
		for (int j = 0; j < DV; j++) {
			w[i][j] = a->v[i][j];
			for (int d = 0; d < DK; d++)
				w[i][j] -= a->k[i][d] * decay(a, first, i, d) * s[d][j];
			for (int l = first; l < i; l++)
				w[i][j] -= decayed(a, a->k[i], i, l) * w[l][j];
			w[i][j] *= a->beta[i];
			o[i][j] = 0;
			for (int d = 0; d < DK; d++)
				o[i][j] += a->q[i][d] * decay(a, first, i, d) * s[d][j];
			for (int l = first; l <= i; l++)
				o[i][j] += decayed(a, a->q[i], i, l) * w[l][j];
		}
	for (int d = 0; d < DK; d++)
		for (int j = 0; j < DV; j++) {
			out[d][j] = decay(a, first, end - 1, d) * s[d][j];
			for (int i = first; i < end; i++)
				out[d][j] += a->k[i][d] * decay(a, i + 1, end - 1, d) * w[i][j];
		}
	memcpy(s, out, sizeof(out));
}

static void kda_step(const struct kda *a, float s[DK][DV], double o[T][DV])
{
	struct kern_table k;
	struct err err = { 0 };
	float q[DK], key[DK], v[DV], alpha[DK], g[DK], scratch[DV], out[DV];

	CHECK_MSG(kern_table_init(&k, KERN_ISA_N_, &err) == 0, "%s", err.text);
	for (int t = 0; t < T; t++) {
		narrow(a->q[t], DK, q);
		narrow(a->k[t], DK, key);
		narrow(a->v[t], DV, v);
		narrow(a->g[t], DK, g);
		k.exp(g, DK, alpha);
		k.kda_step(s[0], DK, DV, q, key, v, alpha, (float)a->beta[t], scratch, out);
		for (int j = 0; j < DV; j++)
			o[t][j] = out[j];
	}
}

static void kda_forms(void)
{
	static const int sizes[] = { 1, 5, 16, 64, 70 };
	static struct kda a;
	static double want[T][DV], got[T][DV];
	double s_want[DK][DV] = { { 0 } };
	float s[DK][DV] = { { 0 } };

	kda_random(&a);
	recurrence(&a, s_want, want);
	for (size_t i = 0; i < N_ELEMENTS(sizes); i++) {
		double s_got[DK][DV] = { { 0 } };

		for (int at = 0; at < T; at += sizes[i])
			chunk(&a, at, at + sizes[i] < T ? at + sizes[i] : T, s_got, got);
		CHECK(distance(want[0], got[0], (size_t)T * DV) < 1e-12);
		CHECK(distance(s_want[0], s_got[0], (size_t)DK * DV) < 1e-12);
	}
	/* got is now the chunk form; the engine's recurrence in fp32 must be near it. */
	kda_step(&a, s, want);
	CHECK(distance(want[0], got[0], (size_t)T * DV) < 2e-6);
}

/* ---- MLA, one head, the last position's query ---- */

struct mla {
	double q[NOPE + ROPE], c[T][RANK], r[T][ROPE], uk[NOPE][RANK], uv[V][RANK];
};

static void softmax(double *s, int n)
{
	double top = s[0], sum = 0;

	for (int i = 0; i < n; i++)
		top = fmax(top, s[i]);
	for (int i = 0; i < n; i++)
		sum += s[i] = exp(s[i] - top);
	for (int i = 0; i < n; i++)
		s[i] /= sum;
}

static void expanded(const struct mla *a, double o[V])
{
	double s[T];

	for (int t = 0; t < T; t++) {
		s[t] = 0;
		for (int i = 0; i < NOPE; i++) {
			double key = 0;

			for (int j = 0; j < RANK; j++)
				key += a->uk[i][j] * a->c[t][j];
			s[t] += a->q[i] * key;
		}
		for (int i = 0; i < ROPE; i++)
			s[t] += a->q[NOPE + i] * a->r[t][i];
		s[t] /= sqrt(NOPE + ROPE);
	}
	softmax(s, T);
	memset(o, 0, V * sizeof(*o));
	for (int t = 0; t < T; t++)
		for (int i = 0; i < V; i++) {
			double value = 0;

			for (int j = 0; j < RANK; j++)
				value += a->uv[i][j] * a->c[t][j];
			o[i] += s[t] * value;
		}
}

static void absorbed(const struct mla *a, double o[V])
{
	double q[RANK] = { 0 }, s[T], context[RANK] = { 0 };

	for (int j = 0; j < RANK; j++)
		for (int i = 0; i < NOPE; i++)
			q[j] += a->uk[i][j] * a->q[i];
	for (int t = 0; t < T; t++) {
		s[t] = 0;
		for (int j = 0; j < RANK; j++)
			s[t] += q[j] * a->c[t][j];
		for (int i = 0; i < ROPE; i++)
			s[t] += a->q[NOPE + i] * a->r[t][i];
		s[t] /= sqrt(NOPE + ROPE);
	}
	softmax(s, T);
	for (int t = 0; t < T; t++)
		for (int j = 0; j < RANK; j++)
			context[j] += s[t] * a->c[t][j];
	memset(o, 0, V * sizeof(*o));
	for (int i = 0; i < V; i++)
		for (int j = 0; j < RANK; j++)
			o[i] += a->uv[i][j] * context[j];
}

/* The engine's kernels in the engine's order. */
static void absorbed_fp32(const struct mla *a, double o[V])
{
	static float q[NOPE + ROPE], c[T][RANK], r[T][ROPE], uk[NOPE][RANK], uv[V][RANK];
	float absorbed_q[RANK], s[T], context[RANK], inverse;
	struct kern_table k;
	struct err err = { 0 };

	CHECK_MSG(kern_table_init(&k, KERN_ISA_N_, &err) == 0, "%s", err.text);
	narrow(a->q, NOPE + ROPE, q);
	narrow(a->c[0], (size_t)T * RANK, c[0]);
	narrow(a->r[0], (size_t)T * ROPE, r[0]);
	narrow(a->uk[0], (size_t)NOPE * RANK, uk[0]);
	narrow(a->uv[0], (size_t)V * RANK, uv[0]);
	k.colsum_f32(uk[0], RANK, NOPE, RANK, q, absorbed_q);
	for (int t = 0; t < T; t++)
		s[t] = (k.dot(absorbed_q, c[t], RANK) + k.dot(q + NOPE, r[t], ROPE)) *
		       (1.0f / sqrtf(NOPE + ROPE));
	inverse = k.softmax(s, T);
	k.colsum_f32(c[0], RANK, T, RANK, s, context);
	for (int i = 0; i < V; i++)
		o[i] = k.dot(uv[i], context, RANK) * inverse;
}

static void mla_forms(void)
{
	static struct mla a;
	double want[V], got[V];

	fill(a.q, NOPE + ROPE, -2, 2);
	fill(a.c[0], (size_t)T * RANK, -2, 2);
	fill(a.r[0], (size_t)T * ROPE, -2, 2);
	fill(a.uk[0], (size_t)NOPE * RANK, -0.3, 0.3);
	fill(a.uv[0], (size_t)V * RANK, -0.3, 0.3);
	expanded(&a, want);
	absorbed(&a, got);
	CHECK(distance(want, got, V) < 1e-12);
	absorbed_fp32(&a, got);
	CHECK(distance(want, got, V) < 5e-6);
}

static const struct test_case cases[] = {
	{ "kda forms", kda_forms },
	{ "mla forms", mla_forms },
};
TEST_MAIN(cases)
