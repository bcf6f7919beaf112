/* See bench.h. One device after the other, each with a reader of its own over the files on it. */
#include "iod/store/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include <systemd/sd-event.h>

#include "iod/read/device.h"
#include "iod/read/read.h"
#include "shared/attr.h"
#include "shared/catalog.h"
#include "shared/fd.h"
#include "shared/slab.h"

const uint32_t iod_bench_chunks[] = { 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20 };
const uint32_t iod_bench_depths[] = { 4, 8, 16, 32, 64 };
const char *const iod_bench_patterns[] = { "random", "sequential" };

/* Twice the deepest point with the largest chunk: reads go round in all of it, as in a slab. Memory
 * that is read into again at once is still in the processor's cache, and looks faster. */
enum { MEMORY = 2 * 64 * (2 << 20), REQUESTS_MAX = 64, PAGE = 4096 };
enum { PASSES = 3 };
enum { N_POINTS = IOD_BENCH_PATTERN_N_ * IOD_BENCH_DEPTHS * IOD_BENCH_CHUNKS };

/* One device being measured. */
struct run {
	struct source files; /* those on it; borrowed rows */
	uint64_t size;       /* of them */
	sd_event *event;
	struct iod_reader *reader;
	uint8_t *memory;
	uint64_t random;
	uint64_t at;   /* where the sequential reads have come to, in the row of all files */
	uint64_t into; /* where the next read goes, in memory */
	/* the point at hand */
	enum iod_bench_pattern pattern;
	uint32_t request_size;
	struct iod_read requests[REQUESTS_MAX];
	struct source_segment segments[REQUESTS_MAX];
	uint32_t n_away;
	double until;
	uint64_t bytes;
	int error;
	uint32_t bad_file;
};

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The place at which one request reads: at in the row of all files, moved back from a file's end.
 */
static struct source_segment place(const struct run *b, uint64_t at)
{
	struct source_segment s = { .size = b->request_size };

	while (at >= b->files.files[s.file].size)
		at -= b->files.files[s.file++].size;
	if (at + s.size > b->files.files[s.file].size)
		at = b->files.files[s.file].size - s.size;
	s.file_off = at / PAGE * PAGE;
	return s;
}

static void submit(struct run *b, uint32_t i)
{
	if (b->pattern == IOD_BENCH_RANDOM) {
		b->random = b->random * 6364136223846793005u + 1442695040888963407u;
		b->segments[i] =
			place(b, (b->random >> 20) % b->size / b->request_size * b->request_size);
	} else {
		b->segments[i] = place(b, b->at);
		b->at = (b->at + b->request_size) % b->size;
	}
	b->requests[i].dst = b->memory + b->into;
	b->into = b->into + b->request_size < MEMORY ? b->into + b->request_size : 0;
	b->n_away++;
	iod_reader_submit(b->reader, &b->requests[i]);
}

static void on_done(struct iod_read *req, int result)
{
	struct run *b = req->data;

	b->n_away--;
	if (result < 0) {
		b->error = result;
		b->bad_file = req->bad_file;
		return;
	}
	b->bytes += req->bytes_read;
	if (b->error == 0 && now() < b->until)
		submit(b, (uint32_t)(req - b->requests));
}

static int measure(struct run *b, uint32_t depth, uint32_t chunk, double seconds, double *ret,
		   struct err *err)
{
	struct iod_reader_settings settings = { .queue_depth = depth, .chunk = chunk };
	double start;
	char ignored[512];
	int r = iod_reader_retune(b->reader, &settings, ignored, sizeof(ignored), err);

	if (r < 0)
		return r;
	b->request_size = chunk;
	b->into = 0;
	b->bytes = 0;
	start = now();
	b->until = start + seconds;
	for (uint32_t i = 0; i < depth; i++) {
		b->requests[i] = (struct iod_read){
			.class = b->pattern == IOD_BENCH_RANDOM ? IOD_READ_DEMAND : IOD_READ_TRUNK,
			.segments = &b->segments[i],
			.n_segments = 1,
			.dst_size = b->request_size,
			.done = on_done,
			.data = b,
		};
		submit(b, i);
	}
	while (b->n_away > 0) {
		if (sd_event_run(b->event, UINT64_MAX) < 0)
			return err_set(err, ERR_IO, "the event loop failed");
	}
	if (b->error < 0)
		return err_set(err, ERR_IO, "%s: %s", b->files.files[b->bad_file].path,
			       strerror(-b->error));
	*ret = (double)b->bytes / (now() - start) / 1e9;
	return 0;
}

/* ---- the grid: a point in the order of measuring --- */

struct point {
	enum iod_bench_pattern pattern;
	uint32_t depth, chunk; /* indices */
};

static struct point point_of(uint32_t i)
{
	return (struct point){ .pattern = (enum iod_bench_pattern)(i % IOD_BENCH_PATTERN_N_),
			       .chunk = i / IOD_BENCH_PATTERN_N_ % IOD_BENCH_CHUNKS,
			       .depth = i / IOD_BENCH_PATTERN_N_ / IOD_BENCH_CHUNKS };
}

/* ---- one device ---------------------------------------------------------------------------- */

static void run_deinit(struct run *b)
{
	iod_reader_free(b->reader);
	(void)sd_event_unref(b->event);
	if (b->memory)
		(void)munmap(b->memory, MEMORY);
	free(b->files.files);
}

static int make_reader(struct run *b, struct err *err)
{
	struct iod_reader_settings settings = { .queue_depth =
							iod_bench_depths[IOD_BENCH_DEPTHS - 1] };
	int r;

	b->memory = slab_pages_memory(MEMORY, false);
	if (!b->memory || sd_event_new(&b->event) < 0)
		return err_set(err, ERR_NO_MEMORY, "no memory to read into: %d MiB are needed",
			       MEMORY >> 20);
	r = iod_reader_new(&b->reader, b->event, &b->files, b->memory, MEMORY, &settings, err);
	while (r == 0 && iod_reader_register_some(b->reader, UINT64_MAX) > 0)
		;
	return r;
}

static int take_files(struct run *b, const struct source *all, struct iod_bench_device *d,
		      struct err *err)
{
	struct stat st;

	b->files.files = calloc(all->n_files, sizeof(*b->files.files));
	if (!b->files.files)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	for (uint32_t i = 0; i < all->n_files; i++) {
		dev_t dev;

		if (fstat(all->files[i].fd, &st) < 0)
			continue;
		dev = iod_device_number(&st);
		if (major(dev) == d->major && minor(dev) == d->minor)
			b->files.files[b->files.n_files++] = all->files[i];
	}
	for (uint32_t i = 0; i < b->files.n_files; i++)
		b->size += b->files.files[i].size;
	d->n_files = b->files.n_files;
	d->size = b->size;
	d->path = strdup(b->files.files[0].path);
	return d->path ? 0 : err_set(err, ERR_NO_MEMORY, "out of memory");
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void set_rates(struct iod_bench_device *d, double (*rates)[PASSES], uint32_t n_passes)
{
	for (uint32_t i = 0; i < N_POINTS; i++) {
		struct point p = point_of(i);

		qsort(rates[i], n_passes, sizeof(rates[i][0]), compare);
		d->rate[p.pattern][p.depth][p.chunk] = rates[i][n_passes / 2];
	}
}

/* The grid several times over rather than each point for long: what else happens on a machine comes
 * in spells. A disk that is slow for the time given gets fewer passes, one at least. */
static int measure_grid(struct run *b, const struct iod_bench_want *want,
			struct iod_bench_device *d, double seconds, uint32_t *n_done,
			uint32_t n_all, struct err *err)
{
	double(*rates)[PASSES] = calloc(N_POINTS, sizeof(*rates)), end = now() + seconds;
	CLEANUP(freep) void *owned = rates;
	uint32_t pass = 0;

	if (!rates)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	for (; pass < PASSES && (pass == 0 || now() < end); pass++) {
		for (uint32_t i = 0; i < N_POINTS; i++) {
			double left = (end - now()) / ((PASSES - pass) * N_POINTS - i);
			struct point p = point_of(i);
			int r;

			b->pattern = p.pattern;
			if (want->progress)
				want->progress(want->data, d, (*n_done)++, n_all);
			r = measure(b, iod_bench_depths[p.depth], iod_bench_chunks[p.chunk], left,
				    &rates[i][pass], err);
			if (r < 0)
				return r;
		}
	}
	set_rates(d, rates, pass);
	return 0;
}

static int measure_device(const struct iod_bench_want *want, struct iod_bench_device *d,
			  double seconds, uint32_t *n_done, uint32_t n_all, struct err *err)
{
	CLEANUP(run_deinit) struct run b = { .random = 88172645463325252u };
	int r = take_files(&b, want->files, d, err);

	if (r == 0)
		r = make_reader(&b, err);
	if (r < 0)
		return r;
	d->reading = strdup(iod_reader_describe_short(b.reader));
	if (!d->reading)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	r = measure_grid(&b, want, d, seconds, n_done, n_all, err);
	if (r == 0)
		iod_bench_choose(d);
	return r;
}

void iod_bench_choose(struct iod_bench_device *d)
{
	double best[IOD_BENCH_PATTERN_N_] = { 0 }, top = 0;
	double score[IOD_BENCH_DEPTHS][IOD_BENCH_CHUNKS];
	uint64_t least = UINT64_MAX;

	for (int p = 0; p < IOD_BENCH_PATTERN_N_; p++)
		for (int i = 0; i < IOD_BENCH_DEPTHS; i++)
			for (int k = 0; k < IOD_BENCH_CHUNKS; k++)
				if (d->rate[p][i][k] > best[p])
					best[p] = d->rate[p][i][k];
	/* The worse of the two patterns, as a part of its own best. */
	for (int i = 0; i < IOD_BENCH_DEPTHS; i++) {
		for (int k = 0; k < IOD_BENCH_CHUNKS; k++) {
			score[i][k] = 1;
			for (int p = 0; p < IOD_BENCH_PATTERN_N_; p++)
				if (best[p] > 0 && d->rate[p][i][k] / best[p] < score[i][k])
					score[i][k] = d->rate[p][i][k] / best[p];
			if (score[i][k] > top)
				top = score[i][k];
		}
	}
	for (uint32_t i = 0; i < IOD_BENCH_DEPTHS; i++) {
		for (uint32_t k = 0; k < IOD_BENCH_CHUNKS; k++) {
			uint64_t bytes = (uint64_t)iod_bench_depths[i] * iod_bench_chunks[k];

			if (score[i][k] < 0.97 * top || bytes >= least)
				continue;
			least = bytes;
			d->best_depth = i;
			d->best_chunk = k;
		}
	}
}

/* ---- all of them --------------------------------------------------------------------------- */

static uint32_t find_devices(const struct source *files, struct iod_bench_device *devices)
{
	uint32_t n = 0;
	struct stat st;

	for (uint32_t i = 0; i < files->n_files; i++) {
		uint32_t k = 0;
		dev_t dev;

		if (fstat(files->files[i].fd, &st) < 0)
			continue;
		dev = iod_device_number(&st);
		while (k < n && (devices[k].major != major(dev) || devices[k].minor != minor(dev)))
			k++;
		if (k == n)
			devices[n++] = (struct iod_bench_device){ .major = major(dev),
								  .minor = minor(dev) };
	}
	return n;
}

void iod_bench_free(struct iod_bench_device *devices, uint32_t n)
{
	for (uint32_t i = 0; devices && i < n; i++) {
		free(devices[i].path);
		free(devices[i].reading);
	}
	free(devices);
}

int iod_bench(const struct iod_bench_want *want, struct iod_bench_device **ret, uint32_t *ret_n,
	      struct err *err)
{
	struct iod_bench_device *devices = calloc(want->files->n_files + 1, sizeof(*devices));
	uint32_t n, n_done = 0;

	if (!devices)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	n = find_devices(want->files, devices);
	for (uint32_t i = 0; i < n; i++) {
		int r = measure_device(want, &devices[i], want->seconds / n, &n_done,
				       n * PASSES * N_POINTS, err);

		if (r < 0) {
			iod_bench_free(devices, n);
			return r;
		}
	}
	*ret = devices;
	*ret_n = n;
	return 0;
}
