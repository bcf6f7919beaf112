/* The published operation cases through single kernels; ops_layers.c has those of several. */
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

static void case_rmsnorm(void)
{
	const struct ops_file *f = open_case("rmsnorm");
	const float *in = ops_floats(f, "in", 3 * 128);
	const float *w = ops_floats(f, "weight", 128);
	float y[3 * 128];

	for (size_t r = 0; r < 3; r++)
		kern.rmsnorm(in + r * 128, w, 128, (float)ops_number(f, "eps"), y + r * 128);
	ops_check_near("rmsnorm", y, ops_floats(f, "out", 3 * 128), 3 * 128);
}

static void case_situ_glu(void)
{
	const struct ops_file *f = open_case("situ_glu");
	const float *in = ops_floats(f, "in", 6 * 16);
	float y[6 * 8];

	for (size_t r = 0; r < 6; r++)
		kern.situ(in + r * 16, in + r * 16 + 8, 8, (float)ops_number(f, "beta"),
			  (float)ops_number(f, "linear_beta"), y + r * 8);
	ops_check_near("situ", y, ops_floats(f, "out", 6 * 8), 6 * 8);
	for (size_t i = 0; i < 48; i++)
		CHECK(fabsf(y[i]) <= (float)ops_number(f, "max_abs"));
}

static void case_shortconv(void)
{
	enum { CHANNELS = 64, TAPS = 4, STEPS = 5 };
	const struct ops_file *f = open_case("shortconv");
	const float *w = ops_floats(f, "weight", CHANNELS * TAPS);
	const float *in = ops_floats(f, "in", STEPS * CHANNELS);
	const float *state = ops_floats(f, "state_after", CHANNELS * (TAPS - 1));
	float history[TAPS - 1][CHANNELS] = { { 0 } }, y[STEPS * CHANNELS], next[CHANNELS];

	for (size_t t = 0; t < STEPS; t++)
		kern.conv(in + t * CHANNELS, w, TAPS, history[0], CHANNELS, CHANNELS,
			  y + t * CHANNELS);
	ops_check_near("conv", y, ops_floats(f, "out", STEPS * CHANNELS), STEPS * CHANNELS);
	for (size_t c = 0; c < CHANNELS; c++) {
		for (size_t j = 0; j < TAPS - 1; j++)
			CHECK(history[j][c] == state[c * (TAPS - 1) + j]);
	}
	kern.conv(ops_floats(f, "in_next", CHANNELS), w, TAPS, history[0], CHANNELS, CHANNELS,
		  next);
	ops_check_near("next", next, ops_floats(f, "out_next", CHANNELS), CHANNELS);
}

static float exp_of(float x)
{
	float y;

	kern.exp(&x, 1, &y);
	return y;
}

static void case_kda_decay(void)
{
	enum { T = 4, H = 4, D = 16 };
	const struct ops_file *f = open_case("kda_decay");
	const float *z = ops_floats(f, "z", T * H * D);
	const float *dt_bias = ops_floats(f, "dt_bias", H * D);
	const float *a_log = ops_floats(f, "A_log", H);
	const float *g = ops_floats(f, "g", T * H * D);
	float alpha[T * H * D];

	for (size_t t = 0; t < T; t++) {
		for (size_t h = 0; h < H; h++)
			kern.kda_decay(z + (t * H + h) * D, dt_bias + h * D, exp_of(a_log[h]),
				       (float)ops_number(f, "lower_bound"), D,
				       alpha + (t * H + h) * D);
	}
	ops_check_near("alpha", alpha, ops_floats(f, "alpha", T * H * D), T * H * D);
	for (size_t i = 0; i < T * H * D; i++)
		CHECK(fabs((double)alpha[i] - exp((double)g[i])) < 1e-5);
}

static void run_kda_recur(const char *name, size_t T)
{
	enum { H = 4, D = 16 };
	const struct ops_file *f = open_case(name);
	const float *q = ops_floats(f, "q", T * H * D), *k = ops_floats(f, "k", T * H * D);
	const float *v = ops_floats(f, "v", T * H * D), *alpha = ops_floats(f, "alpha", T * H * D);
	const float *beta = ops_floats(f, "beta", T * H);
	float *state = ops_new(H * D * D), *out = ops_new(T * H * D), scaled[D], scratch[D];

	for (size_t t = 0; t < T; t++) {
		for (size_t h = 0; h < H; h++) {
			size_t at = (t * H + h) * D;

			for (size_t d = 0; d < D; d++)
				scaled[d] = q[at + d] * (float)ops_number(f, "q_scale");
			kern.kda_step(state + h * D * D, D, D, scaled, k + at, v + at, alpha + at,
				      beta[t * H + h], scratch, out + at);
		}
	}
	ops_check_near("out", out, ops_floats(f, "out", T * H * D), T * H * D);
	ops_check_near("state", state, ops_floats(f, "state_out", H * D * D), H * D * D);
}

static void case_kda_recur1(void)
{
	run_kda_recur("kda_recur1", 1);
}

static void case_kda_recur8(void)
{
	run_kda_recur("kda_recur8", 8);
}

/* ---- released bytes ---- */

static void case_mxfp4(void)
{
	enum { ROWS = 64, COLS = 3584 };
	const struct ops_file *f = open_case("mxfp4");
	const uint8_t *packed = ops_bytes(f, "packed", ROWS * COLS / 2);
	const uint8_t *scale = ops_bytes(f, "scales", ROWS * COLS / 32);
	const float *want = ops_floats(f, "expected", ROWS * COLS);
	const float *swapped = ops_array(f, "expected_swapped_nibbles", "first64", 64);
	size_t n_swapped_differ = 0;
	float *x = ops_new(COLS), *xp = ops_new(COLS), y[ROWS];

	/* Against a unit vector the product is the weight itself, exactly. */
	for (size_t i = 0; i < COLS; i++) {
		memset(x, 0, COLS * sizeof(*x));
		x[i] = 1.0f;
		kern.pack_mxfp4(x, COLS, xp);
		kern.matmul_mxfp4(packed, scale, ROWS, COLS, xp, 0, 1, y, ROWS);
		for (size_t r = 0; r < ROWS; r++)
			CHECK_MSG(y[r] == want[r * COLS + i], "row %zu column %zu: %.9g, not %.9g",
				  r, i, (double)y[r], (double)want[r * COLS + i]);
		n_swapped_differ += i < 64 && y[0] != swapped[i];
	}
	CHECK(n_swapped_differ > 0); /* the other nibble order would be noticed */
}

static const struct test_case cases[] = {
	{ "rmsnorm", case_rmsnorm },       { "situ_glu", case_situ_glu },
	{ "shortconv", case_shortconv },   { "kda_decay", case_kda_decay },
	{ "kda_recur1", case_kda_recur1 }, { "kda_recur8", case_kda_recur8 },
	{ "mxfp4", case_mxfp4 },
};

TEST_MAIN(cases)
