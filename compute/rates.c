#include "compute/rates.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "compute/team.h"
#include "shared/add_up.h"
#include "shared/fd.h"
#include "shared/memlimit.h"
#include "shared/slab.h"

enum { PASSES = 4, READERS = SLAB_READ_DEPTH };
/* Of processors with hundreds of MiB of cache, too, the memory is meant. */
enum { MEMORY_MOST = 512 << 20, MEMORY_LEAST = 16 << 20 };
#define DISK_MOST (4ull << 30)

static double now_seconds(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct memory_run {
	const uint64_t *at;
	_Atomic uint64_t sum; /* so that the reads are not left out */
};

/* Items are turns of ADD_UP_WORDS. */
static void read_memory(void *data, size_t begin, size_t end, unsigned worker)
{
	struct memory_run *run = data;

	(void)worker;
	(void)atomic_fetch_xor(
		&run->sum, add_up(run->at + begin * ADD_UP_WORDS, (end - begin) * ADD_UP_WORDS));
}

static double best_pass(const void *memory, size_t size, struct k3_team *team)
{
	struct memory_run run = { .at = memory };
	double best = 0;

	for (int i = 0; i < PASSES; i++) {
		double start = now_seconds(), seconds;

		k3_team_run(team, size / sizeof(uint64_t) / ADD_UP_WORDS, 1, read_memory, &run);
		seconds = now_seconds() - start;
		if (seconds > 0 && (double)size / seconds > best)
			best = (double)size / seconds;
	}
	return best;
}

double k3_rate_memory(unsigned n_threads)
{
	struct k3_team *team;
	struct memlimit limit;
	double rate = 0;
	size_t size;
	void *memory;

	memlimit_get("", &limit);
	if (limit.bytes < 2 * MEMORY_LEAST) /* somebody has planned with what is left */
		return 0;
	size = limit.bytes / 8 < MEMORY_MOST ? limit.bytes / 8 : MEMORY_MOST;
	size = (size > MEMORY_LEAST ? size : MEMORY_LEAST) / SLAB_HUGE_PAGE * SLAB_HUGE_PAGE;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 0;
	(void)madvise(memory, size, MADV_HUGEPAGE);
	memset(memory, 1, size);
	if (k3_team_new(&team, n_threads, NULL) == 0) {
		rate = best_pass(memory, size, team);
		(void)k3_team_free(team);
	}
	(void)munmap(memory, size);
	return rate;
}

/* ---- disks ----------------------------------------------------------------------------------- */

struct disk_file {
	int fd;
	uint64_t n_chunks;
};

struct disk_run {
	struct disk_file *files;
	size_t n_files;
	double end;
	uint64_t seed;
	_Atomic uint64_t n_bytes;
};

/* splitmix64: places that repeat from run to run would meet the drive's own cache. */
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* One of the readers. */
static void read_chunks(void *data, size_t begin, size_t end, unsigned worker)
{
	struct disk_run *run = data;
	uint64_t state = run->seed + worker * 0x517cc1b727220a95u + begin + end;
	void *buffer = aligned_alloc(SLAB_PAGE, SLAB_READ_CHUNK);

	while (buffer && now_seconds() < run->end && atomic_load(&run->n_bytes) < DISK_MOST) {
		const struct disk_file *f = &run->files[next_random(&state) % run->n_files];
		uint64_t at = next_random(&state) % f->n_chunks;
		ssize_t n = pread(f->fd, buffer, SLAB_READ_CHUNK, (off_t)(at * SLAB_READ_CHUNK));

		if (n <= 0)
			break;
		(void)atomic_fetch_add(&run->n_bytes, (uint64_t)n);
	}
	free(buffer);
}

/* Open for direct reads where one really works. */
static int open_file(const char *path, struct disk_file *ret, int *ret_is_buffered)
{
	int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	void *page = aligned_alloc(SLAB_PAGE, SLAB_PAGE);
	struct stat st;

	if (fd >= 0 && (!page || pread(fd, page, SLAB_PAGE, 0) < 0))
		fd = fd_close(fd);
	free(page);
	if (fd < 0) {
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
		*ret_is_buffered = fd >= 0 ? 1 : *ret_is_buffered;
	}
	if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < SLAB_READ_CHUNK))
		fd = fd_close(fd);
	if (fd < 0)
		return -1;
	*ret = (struct disk_file){ .fd = fd, .n_chunks = (uint64_t)st.st_size / SLAB_READ_CHUNK };
	return 0;
}

static int run_readers(struct disk_run *run, double seconds, double *ret_rate, struct err *err)
{
	struct k3_team *team;
	double start;
	int r = k3_team_new(&team, READERS, err);

	if (r < 0)
		return r;
	start = now_seconds();
	run->end = start + seconds;
	run->seed = (uint64_t)(start * 1e9);
	k3_team_run(team, READERS, 1, read_chunks, run);
	*ret_rate = (double)run->n_bytes / (now_seconds() - start);
	(void)k3_team_free(team);
	return 0;
}

int k3_rate_disk(const char *const *files, size_t n_files, double seconds, double *ret_rate,
		 int *ret_is_buffered, struct err *err)
{
	CLEANUP(freep) struct disk_file *opened = calloc(n_files ? n_files : 1, sizeof(*opened));
	struct disk_run run = { .files = opened };
	int r = 0;

	if (!opened)
		return err_set(err, ERR_NO_MEMORY, "no memory to measure the disk");
	*ret_is_buffered = 0;
	*ret_rate = 0;
	for (size_t i = 0; i < n_files; i++)
		if (open_file(files[i], &opened[run.n_files], ret_is_buffered) == 0)
			run.n_files++;
	if (run.n_files > 0)
		r = run_readers(&run, seconds, ret_rate, err);
	for (size_t i = 0; i < run.n_files; i++)
		(void)fd_close(opened[i].fd);
	return r;
}
