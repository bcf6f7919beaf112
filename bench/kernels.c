/*
 * The kernels against this machine's own limits, measured in the same run and in turn with them:
 * plain reading of memory for products out of cache, the FMA units for products in cache. A shared
 * machine wanders, so the ratios of medians mean something and the rates little; the ratio of the
 * best ones says what there would be without neighbours.
 *
 * --help says what the lines mean.
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

#include "bench/kernel_ops.h"
#include "bench/loops.h"
#include "bench/median.h"
#include "bench/ports.h"
#include "compute/kernel/kernel.h"
#include "compute/team.h"
#include "shared/add_up.h"

enum {
	COLD_SIZE = 512 << 20, /* weights that no cache holds */
	PIECE = 32 << 20,      /* of them a run reads */
	GRAIN = 12,            /* rows of weights, as in the engine */
	GRAIN_PANEL = 48,      /* with several rows of x */
	X_MAX = 128,
	THREADS_MAX = 256,
	PEAK_ITEMS = 8, /* for each thread, so that one that is late holds up little */
	HUGE_PAGE = 2 << 20,
};

static struct k3_team *team;
static unsigned n_threads;
static uint8_t *cold;
static size_t cold_at;
static float *xp, *y;
static volatile float sink;

/* The next piece of the cold buffer. */
static const uint8_t *next_piece(size_t size)
{
	if (cold_at + size > COLD_SIZE)
		cold_at = 0;
	cold_at += size;
	return cold + cold_at - size;
}

/* ---- the machine ---- */

static void run_peak(void *data, size_t begin, size_t end, unsigned worker)
{
	(void)worker;
	for (size_t i = begin; i < end; i++) {
		if (*(const enum kern_isa *)data == KERN_ISA_AVX512)
			loop_fma_avx512();
		else
			loop_fma_avx2();
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
	return LOOP_TURNS * LOOP_CHAINS * PEAK_ITEMS * width * n_threads / (now() - t) / 1e9;
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
	bool is_turned; /* x is, as the engine does with as many rows */
};

static void run_product(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct product *p = data;
	size_t stride = kern_packed_stride(p->format, p->n_cols);

	(void)worker;
	for (size_t r = begin; r < end && p->is_double; r++)
		y[r] = loop_dot_double((const uint16_t *)(const void *)p->w + r * p->n_cols, xp,
				       p->n_cols);
	if (p->is_double)
		return;
	if (p->format == KERN_MXFP4)
		kern_matmul_mxfp4(p->kern, p->is_turned, p->w + begin * p->row_size,
				  p->w + p->scale_at + begin * (p->n_cols / 32), end - begin,
				  p->n_cols, xp, stride, p->n_x, y + begin, p->n_rows);
	else
		kern_matmul(p->kern, p->format, p->is_turned, p->w + begin * p->row_size,
			    end - begin, p->n_cols, xp, stride, p->n_x, y + begin, p->n_rows);
}

struct rate {
	double bytes, macs; /* per second, in 10^9 */
};

/* Each thread its own rows; cold: a piece nobody has touched lately, otherwise rows that fit the
 * second-level cache. */
static struct rate measure_product(const struct kern_table *kern, enum kern_format f, size_t n_x,
				   bool is_cold, bool is_double)
{
	struct product p = {
		.kern = kern,
		.format = f,
		.n_x = n_x,
		.is_double = is_double,
		.is_turned = n_x >= kern->turned_from[f],
	};
	size_t bytes, repeat = 1, grain = n_x > 1 ? GRAIN_PANEL : GRAIN;
	double t;

	p.n_cols = f == KERN_MXFP4 ? 3584 : 7168;
	p.row_size = f == KERN_MXFP4 ? p.n_cols / 2 : f == KERN_BF16 ? p.n_cols * 2 : p.n_cols * 4;
	bytes = p.row_size + (f == KERN_MXFP4 ? p.n_cols / 32 : 0);
	p.n_rows = is_cold ? PIECE / bytes / 96 * 96
			   : (f == KERN_MXFP4 ? 192 : 48) * (size_t)n_threads;
	p.scale_at = p.n_rows * p.row_size;
	p.w = is_cold ? next_piece(PIECE) : cold;
	if (!is_cold) {
		repeat = kern->isa == KERN_ISA_REF ? 1 : n_x < 8 ? 96 / n_x : n_x < 32 ? 8 : 2;
		k3_team_run(team, p.n_rows, grain, run_product, &p);
	}
	t = now();
	for (size_t i = 0; i < repeat; i++)
		k3_team_run(team, p.n_rows, grain, run_product, &p);
	t = now() - t;
	return (struct rate){
		.bytes = (double)(repeat * p.n_rows * bytes) / t / 1e9,
		.macs = (double)(repeat * p.n_rows * p.n_cols * n_x) / t / 1e9,
	};
}

/* What a row should reach, by docs/kernels.md; 0: nothing is asked. */
static double bar_of(enum kern_isa isa, enum kern_format f, size_t n_x, bool is_cold)
{
	const bool wide = isa == KERN_ISA_AVX512;

	if ((!wide && isa != KERN_ISA_AVX2) || f == KERN_F32 || (is_cold && n_x > 1))
		return 0;
	if (n_x == 1 && is_cold)
		return f == KERN_MXFP4 || wide ? 0.85 : 0.60;
	if (f == KERN_MXFP4)
		return n_x == 1 ? wide ? 0.45 : 0.28 : wide ? 0.65 : 0.45;
	return n_x < 4 ? 0 : wide ? 0.87 : 0.57;
}

static void print_bar(double bar)
{
	if (bar > 0)
		(void)printf(" (bar %.2f)", bar);
}

struct rounds {
	size_t n;
	double peak[BENCH_ROUNDS_MAX],
		own[BENCH_ROUNDS_MAX]; /* FMA: the highest, of the kernel's width */
	double read[BENCH_ROUNDS_MAX], plain[BENCH_ROUNDS_MAX], cached[BENCH_ROUNDS_MAX];
	double bytes[BENCH_ROUNDS_MAX], macs[BENCH_ROUNDS_MAX];
};

/* The median of the rounds' own ratios: what neighbours take is missing in both. */
static double ratio(const double *of, const double *to, size_t n)
{
	double r[BENCH_ROUNDS_MAX];

	for (size_t i = 0; i < n; i++)
		r[i] = of[i] / to[i];
	return median(r, n);
}

/* The highest of the one over the highest of the other. */
static double best(double *of, double *to, size_t n)
{
	(void)median(of, n);
	(void)median(to, n);
	return of[n - 1] / to[n - 1];
}

/* One row out of cache: bf16 beside the plain read; MXFP4 beside the lesser of that and its own
 * rate in cache. Sorts the rates. */
static void print_cold(struct rounds *v, enum kern_format f, double bar)
{
	double lesser[BENCH_ROUNDS_MAX], of_lesser, of_read = ratio(v->bytes, v->read, v->n);

	for (size_t i = 0; i < v->n; i++)
		lesser[i] = v->cached[i] < v->read[i] ? v->cached[i] : v->read[i];
	of_lesser = ratio(v->bytes, lesser, v->n);
	(void)printf("  %5.2f of read %.1f GB/s, best %5.2f", of_read, median(v->read, v->n),
		     best(v->bytes, v->read, v->n));
	if (f == KERN_MXFP4)
		(void)printf("  %5.2f of the lesser of read and in cache %.1f GB/s", of_lesser,
			     median(v->cached, v->n));
	print_bar(bar);
}

static void measure_rounds(struct rounds *v, const struct kern_table *kern, enum kern_format f,
			   size_t n_x, bool is_cold, bool has_plain)
{
	for (size_t i = 0; i < v->n; i++) {
		double narrow = measure_peak(KERN_ISA_AVX2);
		double wide = measure_peak(KERN_ISA_AVX512);
		struct rate rate;

		v->peak[i] = wide > narrow ? wide : narrow;
		v->own[i] = kern->isa == KERN_ISA_AVX512 ? wide : narrow;
		v->read[i] = measure_read();
		if (has_plain)
			v->plain[i] = measure_product(kern, f, n_x, is_cold, true).macs;
		if (is_cold)
			v->cached[i] = measure_product(kern, f, n_x, false, false).bytes;
		rate = measure_product(kern, f, n_x, is_cold, false);
		v->bytes[i] = rate.bytes;
		v->macs[i] = rate.macs;
	}
}

static void bench_product(const struct kern_table *kern, enum kern_format f, size_t n_x,
			  bool is_cold, size_t rounds)
{
	static const char *const formats[] = { "f32", "bf16", "mxfp4" };
	static struct rounds v;
	const bool has_plain = f == KERN_BF16 && n_x == 1 && kern_isa_is_available(KERN_ISA_AVX2);
	const double bar = bar_of(kern->isa, f, n_x, is_cold);
	double bytes[BENCH_ROUNDS_MAX], macs[BENCH_ROUNDS_MAX], of_peak, of_own, of_plain;

	v.n = rounds;
	measure_rounds(&v, kern, f, n_x, is_cold, has_plain);
	/* Before anything is sorted. */
	of_peak = ratio(v.macs, v.peak, rounds);
	of_own = ratio(v.macs, v.own, rounds);
	of_plain = ratio(v.macs, v.plain, rounds);
	memcpy(bytes, v.bytes, sizeof(bytes));
	memcpy(macs, v.macs, sizeof(macs));
	(void)printf("%-7s %-6s %3zu rows %-5s %7.2f GB/s %7.2f GMAC/s", kern_isa_name(kern->isa),
		     formats[f], n_x, is_cold ? "cold" : "cache", median(bytes, rounds),
		     median(macs, rounds));
	if (is_cold)
		print_cold(&v, f, bar);
	if (v.peak[0] > 0) {
		(void)printf("  %5.2f of FMA peak", of_peak);
		print_bar(is_cold || kern->isa == KERN_ISA_AVX2 ? 0 : bar);
		(void)printf(" %.1f GMAC/s, best %5.2f", median(v.peak, rounds),
			     best(v.macs, v.peak, rounds));
	}
	if (kern->isa == KERN_ISA_AVX2 && v.peak[0] > 0) {
		(void)printf("  %5.2f of its width's", of_own);
		print_bar(is_cold ? 0 : bar);
	}
	if (has_plain && is_cold) {
		(void)printf("  %5.2f x double lanes", of_plain);
		print_bar(kern->isa == KERN_ISA_AVX512 ? 2.0
			  : kern->isa == KERN_ISA_AVX2 ? 1.4
						       : 0);
	}
	(void)printf("\n");
	(void)fflush(stdout);
}

/* ---- what the ports allow ---- */

enum { PORT_TURNS = 2000 };

static void run_mix(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct port_mix *mix = data;

	(void)worker;
	for (size_t i = begin; i < end; i++)
		mix->run(PORT_TURNS);
}

/* GMAC/s of all threads. */
static double measure_mix(const struct port_mix *mix)
{
	double t = now();

	k3_team_run(team, (size_t)n_threads * PEAK_ITEMS, 1, run_mix, (void *)(uintptr_t)mix);
	return (double)PORT_TURNS * mix->n_macs * 16 * PEAK_ITEMS * n_threads / (now() - t) / 1e9;
}

static int bench_ports(size_t rounds)
{
	static double peak[BENCH_ROUNDS_MAX], macs[BENCH_ROUNDS_MAX];
	const struct port_mix *mix = port_mixes();

	if (!mix->run) {
		(void)fprintf(stderr,
			      "--ports: the mixes are those of AVX-512 with VBMI, which this "
			      "machine has not\n");
		return 1;
	}
	for (; mix->run; mix++) {
		for (size_t i = 0; i < rounds; i++) {
			peak[i] = measure_peak(KERN_ISA_AVX512);
			macs[i] = measure_mix(mix);
		}
		(void)printf(
			"avx512  %-6s %2u rows in registers  %5.2f of FMA peak %.1f GMAC/s  %s\n",
			mix->format, mix->n_x, median(macs, rounds) / median(peak, rounds),
			median(peak, rounds), mix->way);
		(void)fflush(stdout);
	}
	return 0;
}

static void bench_isa(enum kern_isa isa, size_t rounds, bool is_quick)
{
	static const size_t rows[] = { 1, 2, 4, 8, 16, 32, 64, 128 },
			    cold_rows[] = { 1, 2, 64, 128 };
	struct kern_table kern;

	if (kern_table_init(&kern, isa, NULL) < 0)
		return;
	if (isa == KERN_ISA_REF)
		rounds = 3;
	for (int f = is_quick ? KERN_BF16 : KERN_F32; f <= KERN_MXFP4; f++) {
		for (size_t i = 0; i < sizeof(cold_rows) / sizeof(cold_rows[0]); i++)
			bench_product(&kern, (enum kern_format)f, cold_rows[i], true, rounds);
		for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
			bench_product(&kern, (enum kern_format)f, rows[i], false, rounds);
	}
	if (!is_quick)
		bench_ops(&kern, rounds);
}

static void print_peak(size_t rounds)
{
	static double peak[BENCH_ROUNDS_MAX];

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
		/* As scales these bytes are no subnormals either, which no checkpoint has and which
		 * cost a hundred cycles each. */
		uint16_t v = (uint16_t)(0x3c40 + (i * 2654435761u >> 24) % 64);

		memcpy(cold + 2 * i, &v, sizeof(v));
	}
	xp = bench_new_floats((size_t)X_MAX * (7168 + 16));
	y = bench_new_floats((size_t)X_MAX * 100000);
	return 0;
}

static const char usage[] =
	"bench_kernels [--threads N] [--isa NAME] [--rounds N] [--quick | --peak | --ports]\n"
	"\n"
	"The kernels beside what this machine can do, measured in turn with them; each rate and "
	"each\n"
	"ratio is the median of --rounds rounds (25; 9 with --quick).\n"
	"\n"
	"  --threads N  as many threads, each with rows of its own (default: the physical cores)\n"
	"  --isa NAME   ref, neon, avx2 or avx512 alone (default: all this CPU has)\n"
	"  --rounds N   1 to 1000\n"
	"  --quick      the products with bf16 and MXFP4 alone, without the reference\n"
	"  --peak       the FMA peak alone\n"
	"  --ports      which share of the peak a block can reach in registers that decodes "
	"weights "
	"for\n"
	"               its own rows of x alone, in several ways: what the kernels cannot pass "
	"where x\n"
	"               is not turned\n"
	"\n"
	"A line of a product:\n"
	"  GB/s, GMAC/s   bytes of weights, multiplications by them, a second\n"
	"  cold     weights that no cache holds; \"of read\" is the share of a plain read of "
	"them,\n"
	"           \"of the lesser\" of the lower one of that read and the same product in cache\n"
	"  cache    weights in the second-level cache; \"of FMA peak\" is the share of the higher "
	"of an\n"
	"           AVX2 and an AVX-512 loop of FMAs in registers, on the same threads; \"of its\n"
	"           width's\" that of AVX2's loop\n"
	"  N rows   rows of x (of a batch, of a chunk of prompt) that meet each weight; turned "
	"where the\n"
	"           engine turns as many\n"
	"  (bar B)  what docs/kernels.md asks of the ratio before it\n"
	"  best     the best round's rate over the best read's or peak's, which need not be of "
	"the same\n"
	"           round\n"
	"  x double lanes   over a plain AVX2 kernel with sums in double\n"
	"The other operations: time for an element on one thread.\n";

struct arguments {
	unsigned threads;
	size_t rounds; /* SIZE_MAX: not given */
	bool is_quick, is_peak, is_ports;
	int isa; /* -1: all */
};

/* 0; 1 when help was asked for; -1 when something was not understood. */
static int parse(int argc, char **argv, struct arguments *a)
{
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";

		if (strcmp(argv[i], "--help") == 0)
			return 1;
		if (strcmp(argv[i], "--quick") == 0) {
			a->is_quick = true;
			continue;
		}
		if (strcmp(argv[i], "--peak") == 0 || strcmp(argv[i], "--ports") == 0) {
			*(argv[i][3] == 'e' ? &a->is_peak : &a->is_ports) = true;
			continue;
		}
		if (strcmp(argv[i], "--threads") == 0)
			a->threads = (unsigned)strtoul(value, NULL, 10);
		else if (strcmp(argv[i], "--rounds") == 0)
			a->rounds = strtoul(value, NULL, 10);
		else if (strcmp(argv[i], "--isa") == 0 && kern_isa_parse(value) >= 0)
			a->isa = kern_isa_parse(value);
		else
			return -1;
		i++;
	}
	if (a->rounds == SIZE_MAX)
		a->rounds = a->is_quick ? 9 : 25;
	return a->rounds < 1 || a->rounds > BENCH_ROUNDS_MAX ? -1 : 0;
}

static void bench_all(const struct arguments *a)
{
	for (int isa = 0; isa < KERN_ISA_N_; isa++) {
		if ((a->isa < 0 ? !a->is_quick || isa != KERN_ISA_REF : a->isa == isa) &&
		    kern_isa_is_available((enum kern_isa)isa))
			bench_isa((enum kern_isa)isa, a->rounds, a->is_quick);
	}
}

int main(int argc, char **argv)
{
	struct arguments a = { .rounds = SIZE_MAX, .isa = -1 };
	int r = parse(argc, argv, &a);

	if (r != 0) {
		(void)fputs(usage, r > 0 ? stdout : stderr);
		return r > 0 ? 0 : 2;
	}
	if (init(a.threads) < 0)
		return 2;
	(void)printf("%u threads\n", n_threads);
	if (a.is_peak)
		print_peak(a.rounds);
	else if (a.is_ports)
		r = bench_ports(a.rounds);
	else
		bench_all(&a);
	free(xp);
	free(y);
	(void)k3_team_free(team);
	return r;
}
