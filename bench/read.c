/*
 * The reader against a plain loop of aligned direct preads on as many threads as the reader has
 * chunks in flight, in turn, on one file: cold experts at random offsets with 16 requests in
 * flight, and tiles one after the other. Rates in GB/s (10^9), processor time in core-seconds per
 * GB. The disk of a shared machine wanders, so only the ratio of the medians means something.
 *
 *   bench_read [FILE [ROUNDS [small]]]   FILE: a large one to read; without it one is made and
 *                                        removed; small: into pages of 4 KiB, not huge ones
 *
 * bench/read.fio does the same reads by fio, to cross-check.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "iod/read/read.h"
#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/slab.h"

enum { DEPTH = 16, CHUNK = 512 << 10, PAGE = 4096 };
enum { N_REQUESTS = 16, ROUNDS_MAX = 64 };
enum { EXPERT_SIZE = 17547264, TILE_SIZE = 32 << 20, SLOT_SIZE = TILE_SIZE };
#define FILE_SIZE  (UINT64_C(3) << 30)
#define TURN_BYTES (UINT64_C(640) << 20)

enum way { WAY_URING, WAY_OLDER, WAY_OLDEST, WAY_THREADS, WAY_PLAIN, WAY_N_ };
static const struct {
	const char *name;
	enum iod_backend_choice backend;
	const char *faults; /* as if the kernel were older */
} ways[] = {
	{ "reader, deferred", IOD_BACKEND_URING, "" },
	{ "reader, cooperative", IOD_BACKEND_URING, "old_uring=1" },
	{ "reader, plain ring", IOD_BACKEND_URING, "old_uring=2" },
	{ "reader, threads", IOD_BACKEND_THREADS, "" },
	{ "plain preads", 0, "" },
};

struct list_of_reads {
	struct source_segment *segments;
	uint32_t n;
};

struct bench {
	struct source src;
	struct source_file file;
	uint8_t *slab;
	uint64_t random;
	struct list_of_reads reads;
	/* readers */
	sd_event *event;
	struct iod_reader *readers[WAY_PLAIN];
	struct iod_reader *reader;
	struct iod_read requests[N_REQUESTS];
	uint32_t n_started, n_done;
	/* plain preads */
	int direct_fd;
	_Atomic uint64_t cursor; /* next chunk over all reads */
	uint64_t chunks_per_read;
};

static _Noreturn void die(const char *what, int error)
{
	(void)fprintf(stderr, "bench_read: %s: %s\n", what, strerror(error));
	exit(1);
}

static double seconds_of(clockid_t clock)
{
	struct timespec ts;

	(void)clock_gettime(clock, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* ---- what to read -------------------------------------------------------------------------- */

static void make_reads(struct bench *b, bool is_sequential)
{
	uint64_t size = is_sequential ? TILE_SIZE : EXPERT_SIZE;
	uint64_t room = b->file.size / size, at = 0;

	b->reads.n = (uint32_t)(TURN_BYTES / size);
	b->chunks_per_read = (size + PAGE + CHUNK - 1) / CHUNK;
	b->random = b->random * 6364136223846793005u + 1442695040888963407u;
	at = (b->random >> 33) % room;
	for (uint32_t i = 0; i < b->reads.n; i++) {
		/* A stride prime to the count visits every place once before any twice. */
		b->reads.segments[i] = (struct source_segment){ .file_off = at * size + 1111,
								.size = size - 2222 };
		at = (at + (is_sequential ? 1 : 97)) % room;
	}
}

/* ---- the reader ---------------------------------------------------------------------------- */

static void start_request(struct bench *b, struct iod_read *req)
{
	req->segments = &b->reads.segments[b->n_started++];
	iod_reader_submit(b->reader, req);
}

static void request_done(struct iod_read *req, int result)
{
	struct bench *b = req->data;

	if (result < 0)
		die("read", -result);
	b->n_done++;
	if (b->n_started < b->reads.n)
		start_request(b, req);
}

static void read_by_reader(struct bench *b)
{
	b->n_started = 0;
	b->n_done = 0;
	for (uint32_t i = 0; i < N_REQUESTS; i++) {
		b->requests[i] = (struct iod_read){ .class = IOD_READ_DEMAND,
						    .n_segments = 1,
						    .dst = b->slab + (uint64_t)i * SLOT_SIZE,
						    .dst_size = SLOT_SIZE,
						    .done = request_done,
						    .data = b };
		start_request(b, &b->requests[i]);
	}
	while (b->n_done < b->reads.n) {
		if (sd_event_run(b->event, UINT64_MAX) < 0)
			die("event loop", EIO);
	}
}

/* ---- plain preads -------------------------------------------------------------------------- */

static void *plain_thread(void *data)
{
	struct bench *b = data;
	uint64_t n_chunks = b->reads.n * b->chunks_per_read;
	uint64_t i;

	while ((i = atomic_fetch_add(&b->cursor, 1)) < n_chunks) {
		const struct source_segment *s = &b->reads.segments[i / b->chunks_per_read];
		uint64_t first = s->file_off / PAGE * PAGE;
		uint64_t end = (s->file_off + s->size + PAGE - 1) / PAGE * PAGE;
		uint64_t from = first + i % b->chunks_per_read * CHUNK;
		uint64_t to = from + CHUNK < end ? from + CHUNK : end;
		uint8_t *dst = b->slab + i / b->chunks_per_read % N_REQUESTS * SLOT_SIZE;

		if (from < to && fd_pread_all(b->direct_fd, dst + (from - first), to - from, from))
			die("pread", EIO);
	}
	return NULL;
}

static void read_plainly(struct bench *b)
{
	pthread_t threads[DEPTH];

	atomic_store(&b->cursor, 0);
	for (int i = 0; i < DEPTH; i++) {
		if (pthread_create(&threads[i], NULL, plain_thread, b) != 0)
			die("threads", EAGAIN);
	}
	for (int i = 0; i < DEPTH; i++)
		(void)pthread_join(threads[i], NULL);
}

/* ---- measuring ----------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
	qsort(values, n, sizeof(*values), compare);
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void measure(struct bench *b, bool is_sequential, uint32_t n_rounds)
{
	static double rate[WAY_N_][ROUNDS_MAX], cpu[WAY_N_][ROUNDS_MAX];
	double plain;

	for (uint32_t round = 0; round < n_rounds; round++) {
		for (uint32_t turn = 0; turn < WAY_N_; turn++) {
			uint32_t way = (turn + round) % WAY_N_;
			double wall = seconds_of(CLOCK_MONOTONIC);
			double used = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
			double gb;

			make_reads(b, is_sequential);
			b->reader = way < WAY_PLAIN ? b->readers[way] : NULL;
			if (b->reader)
				read_by_reader(b);
			else
				read_plainly(b);
			gb = (double)b->reads.n * (double)b->reads.segments[0].size / 1e9;
			rate[way][round] = gb / (seconds_of(CLOCK_MONOTONIC) - wall);
			cpu[way][round] = (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - used) / gb;
		}
	}
	(void)printf("%s\n", is_sequential ? "tiles of 32 MiB, one after the other"
					   : "experts of 17.5 MB at random, 16 in flight");
	plain = median(rate[WAY_PLAIN], n_rounds);
	for (uint32_t way = 0; way < WAY_N_; way++) {
		double mid = median(rate[way], n_rounds);

		(void)printf("  %-19s %5.2f GB/s (%.2f to %.2f), %.3f core-seconds/GB, ratio to "
			     "plain %.2f\n",
			     ways[way].name, mid, rate[way][0], rate[way][n_rounds - 1],
			     median(cpu[way], n_rounds), mid / plain);
	}
}

/* ---- setting up ---------------------------------------------------------------------------- */

static int make_file(char *path)
{
	uint64_t *block = NULL, x = 88172645463325252u;
	int fd = mkstemp(path);

	if (fd < 0)
		die(path, errno);
	if (posix_memalign((void **)&block, PAGE, TILE_SIZE) != 0)
		die("memory", ENOMEM);
	for (uint64_t done = 0; done < FILE_SIZE; done += TILE_SIZE) {
		for (size_t i = 0; i < TILE_SIZE / sizeof(*block); i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			block[i] = x;
		}
		if (fd_pwrite_all(fd, block, TILE_SIZE, done) < 0)
			die("write", EIO);
		/* Out of the page cache as we go. */
		(void)sync_file_range(fd, (off_t)done, TILE_SIZE, SYNC_FILE_RANGE_WRITE);
	}
	if (fsync(fd) < 0)
		die("fsync", errno);
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	free(block);
	return fd;
}

static void set_up(struct bench *b, bool are_small)
{
	struct iod_reader_settings settings = { .queue_depth = DEPTH, .chunk = CHUNK };
	uint64_t slab_size = (uint64_t)N_REQUESTS * SLOT_SIZE;
	struct err err = { 0 };

	b->src.files = &b->file;
	b->src.n_files = 1;
	slab_size = (slab_size + SLAB_HUGE_PAGE - 1) / SLAB_HUGE_PAGE * SLAB_HUGE_PAGE;
	b->slab = slab_pages_memory(slab_size, are_small);
	b->reads.segments = calloc(TURN_BYTES / EXPERT_SIZE + 1, sizeof(*b->reads.segments));
	if (!b->slab || !b->reads.segments || sd_event_new(&b->event) < 0)
		die("memory", ENOMEM);
	for (int way = 0; way < WAY_PLAIN; way++) {
		settings.backend = ways[way].backend;
		if (setenv("K3_IOD_FAULT", ways[way].faults, 1) < 0)
			die("setenv", errno);
		if (iod_reader_new(&b->readers[way], b->event, &b->src, b->slab, slab_size,
				   &settings, &err) < 0) {
			(void)fprintf(stderr, "bench_read: %s\n", err.text);
			exit(1);
		}
		while (iod_reader_register_some(b->readers[way], UINT64_MAX) > 0)
			;
		(void)printf("%s\n", iod_reader_describe(b->readers[way]));
	}
}

int main(int argc, char **argv)
{
	char path[] = "/var/tmp/k3-bench-read-XXXXXX", name[64];
	struct bench b = { 0 };
	uint32_t n_rounds = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 7;
	struct stat st;

	if (n_rounds < 1 || n_rounds > ROUNDS_MAX)
		die("ROUNDS is 1 to 64", EINVAL);
	if (argc > 1) {
		b.file.path = argv[1];
		b.file.fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	} else {
		b.file.path = path;
		b.file.fd = make_file(path);
		(void)unlink(path);
	}
	if (b.file.fd < 0 || fstat(b.file.fd, &st) < 0)
		die(b.file.path, errno);
	b.file.size = (uint64_t)st.st_size;
	if (b.file.size < 2 * TURN_BYTES)
		die("the file is too small to be read cold", EINVAL);
	(void)snprintf(name, sizeof(name), "/proc/self/fd/%d", b.file.fd);
	b.direct_fd = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (b.direct_fd < 0)
		die("O_DIRECT", errno);
	set_up(&b, argc > 3);
	measure(&b, false, n_rounds);
	measure(&b, true, n_rounds);
	for (int way = 0; way < WAY_PLAIN; way++)
		iod_reader_free(b.readers[way]);
	(void)sd_event_unref(b.event);
	return 0;
}
