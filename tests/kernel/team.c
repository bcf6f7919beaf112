/*
 * The team of threads: every item once, borders at multiples of the grain, the same bits with any
 * number of threads, no spinning while nothing is to do, threads that flush subnormals refused, and
 * how many threads are started by default.
 */
#include "compute/team.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "compute/cpu_list.h"
#include "compute/cpus.h"
#include "compute/kernel/kernel.h"
#include "tests/harness/test.h"

static const unsigned thread_counts[] = { 1, 2, 3, 8 };
enum { N_COUNTS = sizeof(thread_counts) / sizeof(thread_counts[0]) };

static struct k3_team *new_team(unsigned n)
{
	struct err err = { 0 };
	struct k3_team *t;

	CHECK_MSG(k3_team_new(&t, n, &err) == 0, "%s", err.text);
	return t;
}

struct coverage {
	size_t n, grain;
	unsigned n_threads;
	unsigned char seen[5000];
	atomic_uint bad;
};

static void cover(void *data, size_t begin, size_t end, unsigned worker)
{
	struct coverage *c = data;

	if (begin % c->grain != 0 || (end % c->grain != 0 && end != c->n) || begin >= end ||
	    end > c->n || worker >= c->n_threads)
		atomic_fetch_add(&c->bad, 1);
	for (size_t i = begin; i < end; i++)
		c->seen[i]++;
}

static void case_coverage(void)
{
	static struct coverage c;

	for (int i = 0; i < N_COUNTS; i++) {
		struct k3_team *t = new_team(thread_counts[i]);

		CHECK_EQ(k3_team_n_threads(t), thread_counts[i]);
		for (size_t n = 0; n < 400; n += 1 + n / 9) {
			for (size_t grain = 1; grain < 70; grain += 1 + grain / 3) {
				memset(c.seen, 0, sizeof(c.seen));
				c.n = n;
				c.grain = grain;
				c.n_threads = thread_counts[i];
				k3_team_run(t, n, grain, cover, &c);
				CHECK_EQ(atomic_load(&c.bad), 0);
				for (size_t j = 0; j < sizeof(c.seen); j++)
					CHECK_EQ(c.seen[j], j < n);
			}
		}
		CHECK(k3_team_free(t) == NULL);
	}
}

/* Thousands of short runs, with pauses in which the members fall asleep. */
static void case_many_runs(void)
{
	static struct coverage c;

	for (int i = 0; i < N_COUNTS; i++) {
		struct k3_team *t = new_team(thread_counts[i]);

		c = (struct coverage){ .n = 64, .grain = 1, .n_threads = thread_counts[i] };
		for (int run = 0; run < 2000; run++) {
			memset(c.seen, 0, sizeof(c.seen));
			k3_team_run(t, c.n, c.grain, cover, &c);
			for (size_t j = 0; j < c.n; j++)
				CHECK_EQ(c.seen[j], 1);
			if (run % 100 == 0)
				(void)usleep(300);
		}
		CHECK_EQ(atomic_load(&c.bad), 0);
		(void)k3_team_free(t);
	}
}

struct product {
	const struct kern_table *kern;
	const uint16_t *w;
	const float *xp;
	size_t n_rows, n_cols, n_x;
	float *y;
};

static void multiply(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct product *p = data;

	(void)worker;
	p->kern->matmul_bf16(p->w + begin * p->n_cols, end - begin, p->n_cols, p->xp, p->n_cols,
			     p->n_x, p->y + begin, p->n_rows);
}

static void case_same_bits(void)
{
	enum { ROWS = 149, COLS = 2080, X = 5 };
	static uint16_t w[ROWS * COLS];
	static float xp[X * COLS] __attribute__((aligned(64))), y[N_COUNTS + 1][X * ROWS];
	struct kern_table kern;
	uint32_t rng = 1;

	CHECK(kern_table_init(&kern, KERN_ISA_N_, NULL) == 0);
	for (size_t i = 0; i < ROWS * COLS; i++)
		w[i] = (uint16_t)(0x3c00 + ((rng = rng * 1664525 + 1013904223) >> 21));
	for (size_t i = 0; i < X * COLS; i++)
		xp[i] = (float)((rng = rng * 1664525 + 1013904223) >> 8) / 8388608.0f - 1.0f;
	kern.matmul_bf16(w, ROWS, COLS, xp, COLS, X, y[N_COUNTS], ROWS);
	for (int i = 0; i < N_COUNTS; i++) {
		struct product p = { &kern, w, xp, ROWS, COLS, X, y[i] };
		struct k3_team *t = new_team(thread_counts[i]);

		k3_team_run(t, ROWS, 1, multiply, &p);
		CHECK_MSG(memcmp(y[i], y[N_COUNTS], sizeof(y[i])) == 0, "%u threads",
			  thread_counts[i]);
		(void)k3_team_free(t);
	}
}

static double cpu_seconds(void)
{
	struct timespec t;

	CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void case_idle(void)
{
	static struct coverage c = { .n = 64, .grain = 1, .n_threads = 2 };
	struct k3_team *t = new_team(2);
	double before;

	k3_team_run(t, c.n, c.grain, cover, &c);
	before = cpu_seconds();
	(void)usleep(300 * 1000);
	CHECK_MSG(cpu_seconds() - before < 0.03, "%.3f s of CPU in 0.3 s of nothing to do",
		  cpu_seconds() - before);
	(void)k3_team_free(t);
}

static void case_flush_to_zero(void)
{
#if defined(__x86_64__)
	static const unsigned wrong[] = { 1u << 15, 1u << 6, 3u << 13 };
	unsigned right = __builtin_ia32_stmxcsr();

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		for (unsigned n = 1; n <= 2; n++) { /* threads inherit the state */
			struct err err = { 0 };
			struct k3_team *t = NULL;
			int r;

			__builtin_ia32_ldmxcsr(right | wrong[i]);
			r = k3_team_new(&t, n, &err);
			__builtin_ia32_ldmxcsr(right);
			CHECK(r < 0 && t == NULL);
			CHECK_EQ(err.code, ERR_UNSUPPORTED);
			CHECK(strstr(err.text, "subnormal") != NULL);
		}
	}
#else
	test_skip("no MXCSR here");
#endif
}

static void write_file(const char *dir, const char *name, const char *text)
{
	char path[4096];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	for (char *p = path + strlen(dir) + 1; (p = strchr(p, '/')); p++) {
		*p = 0;
		(void)mkdir(path, 0700);
		*p = '/';
	}
	f = fopen(path, "we");
	CHECK(f != NULL);
	(void)fputs(text, f);
	CHECK(fclose(f) == 0);
}

static void case_quota(void)
{
	const char *dir = test_tmpdir();
	char file[4096];

	(void)snprintf(file, sizeof(file), "%s/cgroup", dir);
	/* v2: the tightest of the group and its ancestors */
	write_file(dir, "cgroup", "0::/a/b\n");
	CHECK_EQ(k3_cpus_quota(file, dir), 0);
	write_file(dir, "a/b/cpu.max", "max 100000\n");
	CHECK_EQ(k3_cpus_quota(file, dir), 0);
	write_file(dir, "a/cpu.max", "350000 100000\n");
	CHECK_EQ(k3_cpus_quota(file, dir), 4); /* half a CPU counts as one, less does not */
	write_file(dir, "a/cpu.max", "349999 100000\n");
	CHECK_EQ(k3_cpus_quota(file, dir), 3);
	write_file(dir, "a/b/cpu.max", "50000 100000\n");
	CHECK_EQ(k3_cpus_quota(file, dir), 1);
	/* v1 */
	write_file(dir, "cgroup", "3:cpuset:/x\n2:cpu,cpuacct:/x\n1:name=systemd:/y\n");
	CHECK_EQ(k3_cpus_quota(file, dir), 0);
	write_file(dir, "cpu/x/cpu.cfs_quota_us", "-1\n");
	write_file(dir, "cpu/x/cpu.cfs_period_us", "100000\n");
	CHECK_EQ(k3_cpus_quota(file, dir), 0);
	write_file(dir, "cpu/x/cpu.cfs_quota_us", "200000\n");
	CHECK_EQ(k3_cpus_quota(file, dir), 2);
	(void)snprintf(file, sizeof(file), "%s/absent", dir);
	CHECK_EQ(k3_cpus_quota(file, dir), 0);
}

static void case_siblings(void)
{
	const char *dir = test_tmpdir();
	cpu_set_t allowed;
	char name[64];
	unsigned n;

	/* All CPUs of this machine as siblings of each other: one core. */
	CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
	CHECK_EQ(k3_cpus_physical(dir), CPU_COUNT(&allowed));
	CHECK_EQ(k3_cpus_allowed(), CPU_COUNT(&allowed));
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET((size_t)cpu, &allowed))
			continue;
		(void)snprintf(name, sizeof(name), "cpu%d/topology/thread_siblings_list", cpu);
		write_file(dir, name, "0-1023\n");
	}
	CHECK_EQ(k3_cpus_physical(dir), 1);
	n = k3_cpus_usable();
	CHECK(n >= 1 && n <= (unsigned)CPU_COUNT(&allowed));
	/* A mask of one CPU: one thread by default. */
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (CPU_ISSET((size_t)cpu, &allowed)) {
			CPU_ZERO(&allowed);
			CPU_SET((size_t)cpu, &allowed);
			break;
		}
	}
	CHECK(sched_setaffinity(0, sizeof(allowed), &allowed) == 0);
	CHECK_EQ(k3_cpus_usable(), 1);
}

/* Lists, on as many of this machine's CPUs as there are; what is refused changes nothing. */
static void case_cpu_list(void)
{
	static const char *const wrong[] = { "",    "-",  "0-",    "0,", ",0",         "1-0",
					     "0 1", "a",  "0-1-2", "+0", "4294967296", "0,1024",
					     "0x1", "-1", "0;1",   " 0" };
	char text[K3_CPU_LIST_MAX], one[32];
	struct err err = { 0 };
	cpu_set_t before, after;
	size_t first = 0, outside = CPU_SETSIZE - 1;

	CHECK(sched_getaffinity(0, sizeof(before), &before) == 0);
	CHECK(k3_cpus_use(NULL, NULL, &err) == 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		CHECK_MSG(k3_cpus_use(wrong[i], NULL, &err) < 0, "'%s' was taken", wrong[i]);
		CHECK_EQ(err.code, ERR_USAGE);
		err_clear(&err);
	}
	while (CPU_ISSET(outside, &before))
		outside--;
	(void)snprintf(one, sizeof(one), "%zu", outside);
	CHECK(k3_cpus_use(one, NULL, &err) < 0);
	CHECK_MSG(strstr(err.text, "is not among those allowed") != NULL, "%s", err.text);
	CHECK(sched_getaffinity(0, sizeof(after), &after) == 0);
	CHECK(CPU_EQUAL(&before, &after));
	while (!CPU_ISSET(first, &before))
		first++;
	(void)snprintf(one, sizeof(one), "%zu", first);
	CHECK(k3_cpus_use(one, NULL, NULL) == 0);
	CHECK_EQ(k3_cpus_allowed(), 1);
	CHECK_EQ(k3_cpus_usable(), 1);
	k3_cpus_text(text);
	CHECK(strcmp(text, one) == 0);
	/* and never widens */
	k3_cpus_text(text);
	(void)snprintf(one, sizeof(one), "%zu", outside);
	CHECK(k3_cpus_use(one, NULL, NULL) < 0);
}

/* As many threads as the mask has CPUs, where nothing else is said. */
static void case_affinity(void)
{
	struct k3_team *t;
	cpu_set_t allowed, one;
	size_t cpu = 0;

	CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
	while (!CPU_ISSET(cpu, &allowed))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
	t = new_team(0);
	CHECK_EQ(k3_team_n_threads(t), 1);
	(void)k3_team_free(t);
}

static const struct test_case cases[] = {
	{ "coverage", case_coverage },           { "many_runs", case_many_runs },
	{ "same_bits", case_same_bits },         { "idle", case_idle },
	{ "flush_to_zero", case_flush_to_zero }, { "quota", case_quota },
	{ "siblings", case_siblings },           { "cpu_list", case_cpu_list },
	{ "affinity", case_affinity },
};

TEST_MAIN(cases)
