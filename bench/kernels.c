/*
 * The kernels against this machine's own limits, measured in the same run and in turn with them:
 * plain reading of memory for products out of cache, the FMA units for products in cache. A shared
 * machine wanders, so the ratios of medians mean something and the rates little; the ratio of the
 * best ones says what there would be without neighbours.
 *
 *   bench_kernels [--threads N] [--isa NAME] [--rounds N] [--quick | --peak]
 *
 * --quick: the two products of the weights alone, few rounds. --peak: the FMA peak alone.
 *
 * FMA peak: the higher of an AVX2 and an AVX-512 loop with twelve accumulators, on all threads at
 * once, as the kernel runs; beside it the share of the peak of the kernel's own width, which is
 * what AVX2 can reach where AVX-512 units are twice as wide. One row of bf16 stands beside what one
 * would write first: AVX2, sums in double, one row of weights after the other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "compute/kernel/kernel.h"
#include "compute/team.h"
#include "shared/add_up.h"

enum {
	COLD_SIZE = 512 << 20, /* weights that no cache holds */
	PIECE = 32 << 20,      /* of them a run reads */
	GRAIN = 12,            /* rows of weights, as in the engine */
	X_MAX = 64,
	THREADS_MAX = 256,
	ROUNDS_MAX = 1000,
	PEAK_TURNS = 2500,
	PEAK_ITEMS = 8, /* for each thread, so that one that is late holds up little */
	PEAK_CHAINS = 12,
	HUGE_PAGE = 2 << 20,
};

static struct k3_team *team;
static unsigned n_threads;
static uint8_t *cold;
static size_t cold_at;
static float *xp, *y;
static volatile float sink;

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The next piece of the cold buffer. */
static const uint8_t *next_piece(size_t size)
{
	if (cold_at + size > COLD_SIZE)
		cold_at = 0;
	cold_at += size;
	return cold + cold_at - size;
}

/* ---- the machine ---- */

#if defined(__x86_64__)
/* Written out: a compiler that keeps an accumulator in memory would measure something else. */
#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

__attribute__((target("avx512f"))) static void fma_avx512(void)
{
	const __m512 c = _mm512_set1_ps(1.0001f);
	float out[16];
#define START(i) __m512 a##i = _mm512_set1_ps((float)i);
#define STEP(i)                             \
	a##i = _mm512_fmadd_ps(a##i, c, c); \
	__asm__ volatile("" : "+v"(a##i));
#define ADD(i) a0 = _mm512_add_ps(a0, a##i);
	CHAINS(START)

	for (long k = 0; k < PEAK_TURNS; k++) {
		CHAINS(STEP)
	}
	CHAINS(ADD)
	_mm512_storeu_ps(out, a0);
	sink = out[0];
#undef START
#undef STEP
#undef ADD
}

__attribute__((target("avx2,fma"))) static void fma_avx2(void)
{
	const __m256 c = _mm256_set1_ps(1.0001f);
	float out[8];
#define START(i) __m256 a##i = _mm256_set1_ps((float)i);
#define STEP(i)                             \
	a##i = _mm256_fmadd_ps(a##i, c, c); \
	__asm__ volatile("" : "+x"(a##i));
#define ADD(i) a0 = _mm256_add_ps(a0, a##i);
	CHAINS(START)

	for (long k = 0; k < PEAK_TURNS; k++) {
		CHAINS(STEP)
	}
	CHAINS(ADD)
	_mm256_storeu_ps(out, a0);
	sink = out[0];
#undef START
#undef STEP
#undef ADD
}

/* One row of bf16 as one would write it: four numbers become doubles, two sums. */
__attribute__((target("avx2,fma"))) static float dot_double(const uint16_t *w, const float *x,
							    size_t n)
{
	__m256d a = _mm256_setzero_pd(), b = a;
	double out[4];

	for (size_t i = 0; i + 8 <= n; i += 8) {
		__m128i q = _mm_loadu_si128((const __m128i *)(const void *)(w + i));
		__m128i low = _mm_slli_epi32(_mm_cvtepu16_epi32(q), 16);
		__m128i high = _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_srli_si128(q, 8)), 16);

		a = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_castsi128_ps(low)),
				    _mm256_cvtps_pd(_mm_loadu_ps(x + i)), a);
		b = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_castsi128_ps(high)),
				    _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4)), b);
	}
	_mm256_storeu_pd(out, _mm256_add_pd(a, b));
	return (float)(out[0] + out[1] + out[2] + out[3]);
}
#endif

static void run_peak(void *data, size_t begin, size_t end, unsigned worker)
{
	(void)worker;
	for (size_t i = begin; i < end; i++) {
#if defined(__x86_64__)
		if (*(const enum kern_isa *)data == KERN_ISA_AVX512)
			fma_avx512();
		else
			fma_avx2();
#else
		(void)data;
#endif
	}
}

static void run_read(void *data, size_t begin, size_t end, unsigned worker)
{
	const uint8_t *p = data;

	(void)worker;
	sink = (float)add_up((const uint64_t *)(const void *)(p + begin),
			     (end - begin) / sizeof(uint64_t));
}

/* GMAC/s of all threads; 0 where the instruction set is absent. */
static double measure_peak(enum kern_isa isa)
{
	double t, width = isa == KERN_ISA_AVX512 ? 16 : 8;

	if (!kern_isa_is_available(isa))
		return 0;
	t = now();
	k3_team_run(team, (size_t)n_threads * PEAK_ITEMS, 1, run_peak, &isa);
	return PEAK_TURNS * PEAK_CHAINS * PEAK_ITEMS * width * n_threads / (now() - t) / 1e9;
}

static double measure_read(void)
{
	const uint8_t *p = next_piece(PIECE);
	double t = now();

	k3_team_run(team, PIECE, 4096, run_read, (void *)(uintptr_t)p);
	return PIECE / (now() - t) / 1e9;
}

/* ---- the products ---- */

struct product {
	const struct kern_table *kern;
	enum kern_format format;
	const uint8_t *w;
	size_t n_rows, n_cols, n_x, row_size, scale_at;
	bool is_double; /* the kernel one would write first */
};

static void run_product(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct product *p = data;
	size_t stride = kern_packed_len(p->format, p->n_cols) + 16;

	(void)worker;
#if defined(__x86_64__)
	for (size_t r = begin; r < end && p->is_double; r++)
		y[r] = dot_double((const uint16_t *)(const void *)p->w + r * p->n_cols, xp,
				  p->n_cols);
#endif
	if (p->is_double)
		return;
	if (p->format == KERN_MXFP4)
		p->kern->matmul_mxfp4(p->w + begin * p->row_size,
				      p->w + p->scale_at + begin * (p->n_cols / 32), end - begin,
				      p->n_cols, xp, stride, p->n_x, y + begin, p->n_rows);
	else
		kern_matmul(p->kern, p->format, p->w + begin * p->row_size, end - begin, p->n_cols,
			    xp, stride, p->n_x, y + begin, p->n_rows);
}

struct rate {
	double bytes, macs; /* per second, in 10^9 */
};

/* Each thread its own rows; cold: a piece nobody has touched lately, otherwise rows that fit the
 * second-level cache. */
static struct rate measure_product(const struct kern_table *kern, enum kern_format f, size_t n_x,
				   bool is_cold, bool is_double)
{
	struct product p = { .kern = kern, .format = f, .n_x = n_x, .is_double = is_double };
	size_t bytes, repeat = 1;
	double t;

	p.n_cols = f == KERN_MXFP4 ? 3584 : 7168;
	p.row_size = f == KERN_MXFP4 ? p.n_cols / 2 : f == KERN_BF16 ? p.n_cols * 2 : p.n_cols * 4;
	bytes = p.row_size + (f == KERN_MXFP4 ? p.n_cols / 32 : 0);
	p.n_rows = is_cold ? PIECE / bytes / 96 * 96
			   : (f == KERN_MXFP4 ? 192 : 48) * (size_t)n_threads;
	p.scale_at = p.n_rows * p.row_size;
	p.w = is_cold ? next_piece(PIECE) : cold;
	if (!is_cold) {
		repeat = kern->isa == KERN_ISA_REF ? 1 : n_x < 8 ? 24 / n_x : 2;
		k3_team_run(team, p.n_rows, GRAIN, run_product, &p);
	}
	t = now();
	for (size_t i = 0; i < repeat; i++)
		k3_team_run(team, p.n_rows, GRAIN, run_product, &p);
	t = now() - t;
	return (struct rate){
		.bytes = (double)(repeat * p.n_rows * bytes) / t / 1e9,
		.macs = (double)(repeat * p.n_rows * p.n_cols * n_x) / t / 1e9,
	};
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, z = *(const double *)b;

	return x < z ? -1 : x > z;
}

/* Sorts v: the best is the last then. */
static double median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), compare);
	return v[n / 2];
}

static void bench_product(const struct kern_table *kern, enum kern_format f, size_t n_x,
			  bool is_cold, size_t rounds)
{
	static const char *const formats[] = { "f32", "bf16", "mxfp4" };
	static double peak[ROUNDS_MAX], read[ROUNDS_MAX], bytes[ROUNDS_MAX], macs[ROUNDS_MAX];
	static double own[ROUNDS_MAX], plain[ROUNDS_MAX];
	const bool has_plain = f == KERN_BF16 && n_x == 1 && kern_isa_is_available(KERN_ISA_AVX2);
	double p, r, b, m;

	for (size_t i = 0; i < rounds; i++) {
		double narrow = measure_peak(KERN_ISA_AVX2);
		double wide = measure_peak(KERN_ISA_AVX512);
		struct rate rate;

		peak[i] = wide > narrow ? wide : narrow;
		read[i] = measure_read();
		own[i] = kern->isa == KERN_ISA_AVX512 ? wide : narrow;
		if (has_plain)
			plain[i] = measure_product(kern, f, n_x, is_cold, true).macs;
		rate = measure_product(kern, f, n_x, is_cold, false);
		bytes[i] = rate.bytes;
		macs[i] = rate.macs;
	}
	p = median(peak, rounds);
	r = median(read, rounds);
	b = median(bytes, rounds);
	m = median(macs, rounds);
	(void)printf("%-7s %-6s %2zu rows %-5s %7.2f GB/s %7.2f GMAC/s", kern_isa_name(kern->isa),
		     formats[f], n_x, is_cold ? "cold" : "cache", b, m);
	if (is_cold)
		(void)printf("  %5.2f of read %.1f GB/s, best %5.2f", b / r, r,
			     bytes[rounds - 1] / read[rounds - 1]);
	if (p > 0)
		(void)printf("  %5.2f of FMA peak %.1f GMAC/s, best %5.2f", m / p, p,
			     macs[rounds - 1] / peak[rounds - 1]);
	if (kern->isa == KERN_ISA_AVX2 && p > 0)
		(void)printf("  %5.2f of its width's", m / median(own, rounds));
	if (has_plain)
		(void)printf("  %5.2f x double lanes", m / median(plain, rounds));
	(void)printf("\n");
	(void)fflush(stdout);
}

/* ---- everything else, on one thread ---- */

enum { N_ELEMENTS_OP = 12288, DIM = 128, N_SOURCES = 9, N_LATENTS = 1024, RANK = 512 };

struct op_input {
	float *a, *b, *c, *out, *state;
	const float *sources[N_SOURCES];
};

#define OP(name, call)                                                         \
	static void op_##name(const struct kern_table *k, struct op_input *in) \
	{                                                                      \
		call;                                                          \
	}
OP(dot, sink = k->dot(in->a, in->b, N_ELEMENTS_OP))
OP(rmsnorm, k->rmsnorm(in->a, in->b, N_ELEMENTS_OP, 1e-5f, in->out))
OP(l2norm, k->l2norm(in->a, N_ELEMENTS_OP, 1e-6f, 1.0f, in->out))
OP(situ, k->situ(in->a, in->b, N_ELEMENTS_OP, 4.0f, 25.0f, in->out))
OP(exp, k->exp(in->a, N_ELEMENTS_OP, in->out))
OP(sigmoid, k->sigmoid(in->a, N_ELEMENTS_OP, in->out))
OP(gate, k->gate(in->a, in->b, N_ELEMENTS_OP, in->out))
OP(add, k->add(in->a, N_ELEMENTS_OP, in->out))
OP(axpy, k->axpy(0.5f, in->a, N_ELEMENTS_OP, in->out))
OP(mix, k->mix(in->sources, N_SOURCES, N_ELEMENTS_OP, in->c, 1e-5f, in->out))
OP(conv, k->conv(in->a, in->state, 4, in->state + 4 * N_ELEMENTS_OP, N_ELEMENTS_OP, N_ELEMENTS_OP,
		 in->out))
OP(kda_decay, k->kda_decay(in->a, in->b, 1.5f, -5.0f, N_ELEMENTS_OP, in->out))
OP(kda_step,
   k->kda_step(in->state, DIM, DIM, in->a, in->b, in->c, in->b + DIM, 0.5f, in->out, in->out + DIM))
OP(colsum_f32, k->colsum_f32(in->state, RANK, DIM, RANK, in->a, in->out))
OP(colsum_bf16, k->colsum_bf16(in->state, DIM, RANK, in->a, in->out))
OP(softmax, (memcpy(in->out, in->a, N_ELEMENTS_OP * sizeof(float)),
	     sink = k->softmax(in->out, N_ELEMENTS_OP)))
OP(pack_bf16, k->pack_bf16(in->a, N_ELEMENTS_OP, in->out))
OP(pack_mxfp4, k->pack_mxfp4(in->a, N_ELEMENTS_OP, in->out))

static const struct {
	const char *name;
	void (*run)(const struct kern_table *k, struct op_input *in);
	size_t n_elements;
} ops[] = {
	{ "dot", op_dot, N_ELEMENTS_OP },
	{ "rmsnorm", op_rmsnorm, N_ELEMENTS_OP },
	{ "l2norm", op_l2norm, N_ELEMENTS_OP },
	{ "situ", op_situ, N_ELEMENTS_OP },
	{ "exp", op_exp, N_ELEMENTS_OP },
	{ "sigmoid", op_sigmoid, N_ELEMENTS_OP },
	{ "gate", op_gate, N_ELEMENTS_OP },
	{ "add", op_add, N_ELEMENTS_OP },
	{ "axpy", op_axpy, N_ELEMENTS_OP },
	{ "mix of 9", op_mix, N_ELEMENTS_OP },
	{ "conv", op_conv, N_ELEMENTS_OP },
	{ "kda_decay", op_kda_decay, N_ELEMENTS_OP },
	{ "kda_step", op_kda_step, (size_t)DIM *DIM },
	{ "colsum_f32", op_colsum_f32, (size_t)DIM *RANK },
	{ "colsum_bf16", op_colsum_bf16, (size_t)DIM *RANK },
	{ "softmax", op_softmax, N_ELEMENTS_OP },
	{ "pack_bf16", op_pack_bf16, N_ELEMENTS_OP },
	{ "pack_mxfp4", op_pack_mxfp4, N_ELEMENTS_OP },
};

static float *new_floats(size_t n)
{
	float *p = aligned_alloc(64, (n * sizeof(*p) + 63) / 64 * 64);

	if (!p)
		abort();
	for (size_t i = 0; i < n; i++)
		p[i] = (float)(i % 97) * 0.01f - 0.5f;
	return p;
}

static void bench_ops(const struct kern_table *kern, size_t rounds)
{
	static double ns[ROUNDS_MAX];
	struct op_input in = {
		.a = new_floats(N_ELEMENTS_OP),
		.b = new_floats(N_ELEMENTS_OP),
		.c = new_floats(N_ELEMENTS_OP),
		.out = new_floats(2 * N_ELEMENTS_OP),
		.state = new_floats(8 * N_ELEMENTS_OP),
	};

	for (size_t i = 0; i < N_SOURCES; i++)
		in.sources[i] = new_floats(N_ELEMENTS_OP);
	for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]); o++) {
		for (size_t i = 0; i < rounds; i++) {
			enum { REPEAT = 20 };
			double t = now();

			for (int j = 0; j < REPEAT; j++)
				ops[o].run(kern, &in);
			ns[i] = (now() - t) / REPEAT / (double)ops[o].n_elements * 1e9;
		}
		(void)printf("%-7s %-12s %8.3f ns per element\n", kern_isa_name(kern->isa),
			     ops[o].name, median(ns, rounds));
	}
	for (size_t i = 0; i < N_SOURCES; i++)
		free((void *)(uintptr_t)in.sources[i]);
	free(in.a);
	free(in.b);
	free(in.c);
	free(in.out);
	free(in.state);
}

static void bench_isa(enum kern_isa isa, size_t rounds, bool is_quick)
{
	static const size_t rows[] = { 1, 2, 4, 8, 16, 64 };
	struct kern_table kern;

	if (kern_table_init(&kern, isa, NULL) < 0)
		return;
	if (isa == KERN_ISA_REF)
		rounds = 3;
	for (int f = is_quick ? KERN_BF16 : KERN_F32; f <= KERN_MXFP4; f++) {
		bench_product(&kern, (enum kern_format)f, 1, true, rounds);
		for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
			bench_product(&kern, (enum kern_format)f, rows[i], false, rounds);
	}
	if (!is_quick)
		bench_ops(&kern, rounds);
}

static void print_peak(size_t rounds)
{
	static double peak[ROUNDS_MAX];

	for (size_t i = 0; i < rounds; i++) {
		double narrow = measure_peak(KERN_ISA_AVX2), wide = measure_peak(KERN_ISA_AVX512);

		peak[i] = wide > narrow ? wide : narrow;
	}
	(void)printf("FMA peak %.1f GMAC/s\n", median(peak, rounds));
}

static int init(unsigned threads)
{
	struct err err = { 0 };
	uint8_t *map;

	if (k3_team_new(&team, threads, &err) < 0) {
		(void)fprintf(stderr, "%s\n", err.text);
		return -1;
	}
	n_threads = k3_team_n_threads(team);
	map = mmap(NULL, COLD_SIZE + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		   -1, 0);
	if (map == MAP_FAILED)
		return -1;
	cold = map + (HUGE_PAGE - (uintptr_t)map % HUGE_PAGE) % HUGE_PAGE;
	(void)madvise(cold, COLD_SIZE, MADV_HUGEPAGE);
	for (size_t i = 0; i < COLD_SIZE / 2; i++) {
		uint16_t v = (uint16_t)(0x3c00 + (uint8_t)(i * 2654435761u >> 24));

		memcpy(cold + 2 * i, &v, sizeof(v));
	}
	xp = new_floats((size_t)X_MAX * (7168 + 16));
	y = new_floats((size_t)X_MAX * 100000);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned threads = 0;
	size_t rounds = 25;
	bool is_quick = false, is_peak = false;
	int only = -1;

	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";

		if (strcmp(argv[i], "--quick") == 0) {
			is_quick = true;
			rounds = 9;
			continue;
		}
		if (strcmp(argv[i], "--peak") == 0) {
			is_peak = true;
			continue;
		}
		if (strcmp(argv[i], "--threads") == 0)
			threads = (unsigned)strtoul(value, NULL, 10);
		else if (strcmp(argv[i], "--rounds") == 0)
			rounds = strtoul(value, NULL, 10);
		else if (strcmp(argv[i], "--isa") == 0)
			only = kern_isa_parse(value);
		else
			return 2;
		i++;
	}
	if (rounds < 1 || rounds > ROUNDS_MAX || init(threads) < 0)
		return 2;
	(void)printf("%u threads\n", n_threads);
	if (is_peak)
		print_peak(rounds);
	for (int isa = 0; isa < KERN_ISA_N_ && !is_peak; isa++) {
		if ((only < 0 ? !is_quick || isa != KERN_ISA_REF : only == isa) &&
		    kern_isa_is_available((enum kern_isa)isa))
			bench_isa((enum kern_isa)isa, rounds, is_quick);
	}
	free(xp);
	free(y);
	(void)k3_team_free(team);
	return 0;
}
