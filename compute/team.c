/*
 * A team is one parallel region that lives as long as the team. libgomp's own waiting spins for
 * long and cannot be told otherwise from inside, which costs a factor when a neighbour takes a
 * core; so the region is entered once, by a host thread, and inside it the members wait for runs
 * with a bounded spin, then asleep on a futex. The caller of k3_team_run is worker 0.
 *
 *	caller:  job written -> n_left = n_unclaimed = blocks (release) -> generation + 1
 *	member:  sees generation -> claims a chunk of blocks (acquire) -> reads the job, runs the
 *	         chunk -> n_left less by it
 *	caller:  claims chunks as well -> sees n_left = 0 (acquire)
 *
 * A run is cut into more chunks than threads, taken as they come: a thread whose core a neighbour
 * has delays the chunk it holds and no other, and one that has not even woken up delays nothing.
 * Towards the end chunks become smaller, down to one block: who finishes first waits for little.
 * Chunks are whole outputs, so who computes them does not matter to a bit. Only who has claimed a
 * chunk may look at the job: it stays until that chunk is done.
 *
 * A sleeper announces itself (n_sleeping, caller_sleeps) before the kernel compares the word, and
 * the waker changes the word before it looks for sleepers; all four are sequentially consistent, so
 * one of the two sees the other.
 */
#include "compute/team.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "compute/cpus.h"
#include "shared/attr.h"
#include "shared/must.h"
#include "shared/standard.h"

enum {
	/* Longer than the serial parts between two runs of a step, shorter than a read from disk.
	 */
	SPIN_NS = 50 * 1000,
	/* Of the caller, for chunks that others hold. One that takes longer may belong to a thread
	 * without a core: the sooner the caller sleeps, the sooner that thread has the caller's.
	 */
	CALLER_SPIN_NS = 10 * 1000,
	SPIN_ROUND = 32, /* pauses between two looks at the clock */
	CHUNKS = 8,      /* of a run, for each thread, while they are large */
	END_CHUNKS = 2,  /* of what is left, for each thread, at least */
	N_THREADS_MAX = 1024,
	CACHE_LINE = 64,
};

struct job {
	k3_team_fn *fn;
	void *data;
	size_t n;
	size_t grain;      /* of a block */
	uint32_t n_blocks; /* the last one may be smaller */
};

struct k3_team {
	pthread_t host;
	bool has_host;
	unsigned n_threads; /* the caller and the members */
	bool may_spin;  /* not when threads share CPUs: whoever spins keeps another from working */
	struct job job; /* written by the caller while no chunk is claimed */

	/* Written by the caller, watched by all members. */
	_Alignas(CACHE_LINE) _Atomic uint32_t generation;
	_Atomic uint32_t n_sleeping;
	_Atomic uint32_t is_leaving;
	/* Blocks; written by whoever takes some. */
	_Alignas(CACHE_LINE) _Atomic uint32_t n_unclaimed;
	/* Blocks of a chunk at most. Who reads the next run's claims a chunk of another size, and
	 * no harm is done. */
	_Atomic uint32_t chunk_most;
	/* Blocks not done (at the start: members not there). Written by all, watched by the caller.
	 */
	_Alignas(CACHE_LINE) _Atomic uint32_t n_left;
	_Atomic uint32_t caller_sleeps;
	_Atomic uint32_t n_flushing; /* members whose CPU state fails the check */
	_Atomic uint32_t n_cramped;  /* members whose stack is too small for a kernel */
	_Atomic uint32_t n_gone;     /* members that will not look at the team again */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
	(void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
	(void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spin until *word is not (equal: is) value; false when the time is over. */
static bool spin(const struct k3_team *t, int64_t ns, _Atomic uint32_t *word, uint32_t value,
		 bool until_equal)
{
	int64_t end = now_ns() + (t->may_spin ? ns : 0);

	do {
		for (int i = 0; i < SPIN_ROUND; i++) {
			if ((atomic_load(word) == value) == until_equal)
				return true;
			cpu_relax();
		}
	} while (now_ns() < end);
	return false;
}

/* Rule 1 of the order: subnormals kept, rounding to nearest. */
static bool keeps_subnormals(void)
{
#if defined(__x86_64__)
	const unsigned ftz = 1u << 15, rounding = 3u << 13, daz = 1u << 6;

	return (__builtin_ia32_stmxcsr() & (ftz | rounding | daz)) == 0;
#elif defined(__aarch64__)
	uint64_t fpcr;

	__asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
	return (fpcr & (1u << 24 | 3u << 22)) == 0;
#else
	volatile float least = FLT_MIN;

	return least / 2 != 0;
#endif
}

/* OMP_STACKSIZE, or what it takes from the limit of the stack. */
static bool has_stack(void)
{
	pthread_attr_t attr;
	size_t size = 0;

	if (pthread_getattr_np(pthread_self(), &attr) != 0)
		return false;
	(void)pthread_attr_getstacksize(&attr, &size);
	(void)pthread_attr_destroy(&attr);
	return size >= STANDARD_STACK_LEAST;
}

/* n blocks from block i on. */
static void run_chunk(const struct job *job, uint32_t i, uint32_t n, unsigned w)
{
	size_t begin = i * job->grain, end = begin + n * job->grain;

	job->fn(job->data, begin, end < job->n ? end : job->n, w);
}

/* Blocks of the next chunk when left are unclaimed. */
static uint32_t chunk_size(struct k3_team *t, uint32_t left)
{
	uint32_t most = atomic_load(&t->chunk_most), n = left / (t->n_threads * END_CHUNKS);

	n = n < most ? n : most;
	return n > 0 ? n : 1;
}

/* n blocks are done, or n members are there. */
static void finish(struct k3_team *t, uint32_t n)
{
	if (atomic_fetch_sub(&t->n_left, n) == n && atomic_load(&t->caller_sleeps))
		futex_wake(&t->n_left, 1); /* pairs with wait_for_members() */
}

/* Worker w takes chunks until none is left. */
static void run_chunks(struct k3_team *t, unsigned w)
{
	uint32_t left = atomic_load(&t->n_unclaimed);

	while (left) {
		uint32_t n = chunk_size(t, left);

		if (!atomic_compare_exchange_weak(&t->n_unclaimed, &left, left - n))
			continue;
		run_chunk(&t->job, t->job.n_blocks - left, n, w);
		finish(t, n);
		left = atomic_load(&t->n_unclaimed);
	}
}

static void wait_for_generation(struct k3_team *t, uint32_t seen)
{
	if (spin(t, SPIN_NS, &t->generation, seen, false))
		return;
	(void)atomic_fetch_add(&t->n_sleeping, 1);
	while (atomic_load(&t->generation) == seen)
		futex_wait(&t->generation, seen); /* pairs with wake_members() */
	(void)atomic_fetch_sub(&t->n_sleeping, 1);
}

static void wait_for_members(struct k3_team *t)
{
	uint32_t left;

	if (spin(t, CALLER_SPIN_NS, &t->n_left, 0, true))
		return;
	atomic_store(&t->caller_sleeps, 1);
	while ((left = atomic_load(&t->n_left)) != 0)
		futex_wait(&t->n_left, left);
	atomic_store(&t->caller_sleeps, 0);
}

static void wake_members(struct k3_team *t)
{
	(void)atomic_fetch_add(&t->generation, 1);
	if (atomic_load(&t->n_sleeping))
		futex_wake(&t->generation, INT_MAX);
}

/* A member of the region, worker w. */
static void member(struct k3_team *t, unsigned w)
{
	uint32_t generation = 0;

	if (!keeps_subnormals())
		(void)atomic_fetch_add(&t->n_flushing, 1);
	if (!has_stack())
		(void)atomic_fetch_add(&t->n_cramped, 1);
	finish(t, 1);
	for (;;) {
		wait_for_generation(t, generation);
		/* Read before the chunks: a run that comes later is then seen as another one. */
		generation = atomic_load(&t->generation);
		if (atomic_load(&t->is_leaving))
			break;
		run_chunks(t, w);
	}
	(void)atomic_fetch_add(&t->n_gone, 1); /* pairs with k3_team_free() */
}

/*
 * The host enters the region and is its member 0, the team's worker 1. libgomp is not instrumented,
 * so the sanitizer cannot see that it hands t over in order.
 */
__attribute__((no_sanitize("thread"))) static void *host(void *arg)
{
	struct k3_team *t = arg;

#pragma omp parallel num_threads((int)t->n_threads - 1) shared(t) default(none)
	{
		/* The runtime may grant fewer (OMP_THREAD_LIMIT). */
		if (omp_get_thread_num() == 0) {
			uint32_t missing = t->n_threads - 1 - (uint32_t)omp_get_num_threads();

			t->n_threads -= missing;
			(void)atomic_fetch_sub(&t->n_left, missing);
		}
		member(t, (unsigned)omp_get_thread_num() + 1);
	}
	return NULL;
}

static int start_host(struct k3_team *t)
{
	sigset_t all, before;
	int r;

	/* Signals are for the caller's threads. */
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&t->host, NULL, host, t);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	t->has_host = r == 0;
	return -r;
}

static void freep(struct k3_team **t)
{
	(void)k3_team_free(*t);
}

int k3_team_new(struct k3_team **ret, unsigned n_threads, struct err *err)
{
	CLEANUP(freep) struct k3_team *t = NULL;
	int r;

	if (n_threads == 0)
		n_threads = k3_cpus_usable();
	if (n_threads > N_THREADS_MAX)
		return err_set(err, ERR_USAGE, "%u threads are too many; the most is %d", n_threads,
			       N_THREADS_MAX);
	t = aligned_alloc(CACHE_LINE, (sizeof(*t) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
	if (!t)
		return err_set(err, ERR_NO_MEMORY, "no memory for a team of threads");
	memset(t, 0, sizeof(*t));
	t->n_threads = n_threads;
	t->may_spin = n_threads <= k3_cpus_allowed();
	atomic_store(&t->n_left, n_threads - 1);
	if (n_threads > 1) {
		r = start_host(t);
		if (r < 0)
			return err_set(err, ERR_NO_MEMORY, "cannot start %u threads: %s", n_threads,
				       strerror(-r));
		wait_for_members(t);
	}
	if (!keeps_subnormals() || atomic_load(&t->n_flushing))
		return err_set(err, ERR_UNSUPPORTED,
			       "a thread flushes subnormal numbers to zero or does not round to "
			       "nearest, so results would differ; a library in this process was "
			       "built with -ffast-math");
	if (atomic_load(&t->n_cramped))
		return err_set(err, ERR_UNSUPPORTED,
			       "the stack of a thread is smaller than %d KiB, the least: unset "
			       "OMP_STACKSIZE, or give it that much",
			       STANDARD_STACK_LEAST >> 10);
	*ret = TAKE(t);
	return 0;
}

struct k3_team *k3_team_free(struct k3_team *t)
{
	if (!t)
		return NULL;
	if (t->has_host) {
		atomic_store(&t->is_leaving, 1);
		wake_members(t);
		(void)pthread_join(t->host, NULL);
		/* The region has ended, and every member with it; what libgomp knows of that a
		 * sanitizer does not see. */
		must(atomic_load(&t->n_gone) == t->n_threads - 1);
	}
	free(t);
	return NULL;
}

unsigned k3_team_n_threads(const struct k3_team *t)
{
	return t->n_threads;
}

void k3_team_run(struct k3_team *t, size_t n, size_t grain, k3_team_fn *fn, void *data)
{
	size_t n_blocks, most;

	must(grain > 0 && fn);
	if (n == 0)
		return;
	n_blocks = (n + grain - 1) / grain;
	if (n_blocks == 1 || t->n_threads == 1) {
		fn(data, 0, n, 0);
		return;
	}
	must(n_blocks <= UINT32_MAX);
	most = n_blocks / t->n_threads / CHUNKS;
	t->job = (struct job){
		.fn = fn,
		.data = data,
		.n = n,
		.grain = grain,
		.n_blocks = (uint32_t)n_blocks,
	};
	atomic_store(&t->chunk_most, (uint32_t)most);
	atomic_store(&t->n_left, t->job.n_blocks);
	atomic_store(&t->n_unclaimed, t->job.n_blocks);
	wake_members(t);
	run_chunks(t, 0);
	wait_for_members(t);
}
