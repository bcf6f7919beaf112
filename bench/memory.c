/*
 * How fast this machine reads memory: threads that add up words of their own part of a large
 * buffer, all at once, as weights are read. Prints bytes per second on huge pages and on 4 KiB
 * pages, the medians of some passes.
 *
 *   bench_memory [THREADS [MIB]]
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "shared/add_up.h"

enum { THREADS_MAX = 256, PASSES = 9 };

struct part {
	const uint64_t *at;
	size_t n; /* words, multiple of ADD_UP_WORDS */
	uint64_t sum;
	double end;
	pthread_barrier_t *barrier;
};

static double now(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void *read_part(void *data)
{
	struct part *p = data;

	(void)pthread_barrier_wait(p->barrier);
	p->sum = add_up(p->at, p->n);
	p->end = now();
	return NULL;
}

static double read_all(const uint64_t *memory, size_t size, unsigned n_threads)
{
	static struct part parts[THREADS_MAX];
	pthread_t threads[THREADS_MAX];
	pthread_barrier_t barrier;
	size_t n = size / sizeof(*memory) / n_threads / ADD_UP_WORDS * ADD_UP_WORDS;
	double start, end = 0;

	(void)pthread_barrier_init(&barrier, NULL, n_threads + 1);
	for (unsigned i = 0; i < n_threads; i++) {
		parts[i] = (struct part){ .at = memory + i * n, .n = n, .barrier = &barrier };
		if (pthread_create(&threads[i], NULL, read_part, &parts[i]) != 0)
			exit(1);
	}
	(void)pthread_barrier_wait(&barrier);
	start = now();
	for (unsigned i = 0; i < n_threads; i++) {
		(void)pthread_join(threads[i], NULL);
		if (parts[i].end > end)
			end = parts[i].end;
	}
	(void)pthread_barrier_destroy(&barrier);
	return (double)(n * n_threads * sizeof(*memory)) / (end - start);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double measure(size_t size, unsigned n_threads, int advice)
{
	double rates[PASSES];
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		exit(1);
	(void)madvise(memory, size, advice);
	memset(memory, 1, size);
	for (int i = 0; i < PASSES; i++)
		rates[i] = read_all(memory, size, n_threads);
	qsort(rates, PASSES, sizeof(*rates), compare);
	(void)munmap(memory, size);
	return rates[PASSES / 2];
}

int main(int argc, char **argv)
{
	unsigned n_threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 2;
	size_t size = (argc > 2 ? strtoul(argv[2], NULL, 10) : 1024) << 20;

	if (n_threads < 1 || n_threads > THREADS_MAX || size < (64 << 20))
		return 2;
	(void)printf("huge %.0f\n", measure(size, n_threads, MADV_HUGEPAGE));
	(void)printf("small %.0f\n", measure(size, n_threads, MADV_NOHUGEPAGE));
	return 0;
}
