#include "tests/read/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"

static uint32_t n_done;

uint64_t rig_random(struct rig *rig, uint64_t below)
{
	rig->random = rig->random * 6364136223846793005u + 1442695040888963407u;
	return (rig->random >> 24) % below;
}

void rig_add_file(struct rig *rig, const char *dir, uint64_t size)
{
	struct source_file *f = &rig->files[rig->src.n_files];
	uint64_t *words = malloc(size + 8);
	uint64_t x = 88172645463325252u + rig->src.n_files;
	char path[256];

	CHECK(words);
	for (uint64_t i = 0; i < size / 8 + 1; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		words[i] = x;
	}
	(void)snprintf(path, sizeof(path), "%s/file-%u-%d", dir, rig->src.n_files, getpid());
	f->path = strdup(path);
	f->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(f->fd >= 0);
	CHECK_EQ(fd_pwrite_all(f->fd, words, size, 0), 0);
	CHECK_EQ(fsync(f->fd), 0);
	(void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
	f->size = size;
	free(words);
	rig->src.files = rig->files;
	rig->src.n_files++;
}

int rig_start(struct rig *rig, const char *faults)
{
	int r;

	if (faults)
		CHECK_EQ(setenv("K3_IOD_FAULT", faults, 1), 0);
	else
		CHECK_EQ(unsetenv("K3_IOD_FAULT"), 0);
	n_done = 0;
	if (rig->slab_size == 0)
		rig->slab_size = 16 << 20;
	rig->slab = mmap(NULL, rig->slab_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			 -1, 0);
	CHECK(rig->slab != MAP_FAILED);
	memset(rig->slab, RIG_POISON, rig->slab_size);
	CHECK(sd_event_new(&rig->event) >= 0);
	err_clear(&rig->err);
	r = iod_reader_new(&rig->reader, rig->event, &rig->src, rig->slab, rig->slab_size,
			   &rig->settings, &rig->err);
	if (r >= 0)
		(void)fprintf(stderr, "  %s | %s\n", iod_reader_describe(rig->reader),
			      iod_reader_describe_short(rig->reader));
	return r;
}

void rig_register_all(struct rig *rig)
{
	while (iod_reader_register_some(rig->reader, UINT64_MAX) > 0)
		;
}

void rig_stop(struct rig *rig)
{
	rig->reader = iod_reader_free(rig->reader);
	rig->event = sd_event_unref(rig->event);
	CHECK_EQ(munmap(rig->slab, rig->slab_size), 0);
	rig->slab = NULL;
}

void rig_free(struct rig *rig)
{
	if (rig->slab)
		rig_stop(rig);
	for (uint32_t i = 0; i < rig->src.n_files; i++) {
		fd_close(rig->files[i].fd);
		(void)unlink(rig->files[i].path);
		free(rig->files[i].path);
	}
}

void rig_add_segment(struct rig_read *r, uint32_t file, uint64_t offset, uint64_t size)
{
	uint64_t first = offset / SLAB_PAGE;
	uint64_t last = (offset + size + SLAB_PAGE - 1) / SLAB_PAGE;
	struct source_segment *s = &r->segments[r->read.n_segments++];

	CHECK(r->read.n_segments <= RIG_SEGMENTS_MAX);
	*s = (struct source_segment){
		.file = file, .file_off = offset, .size = size, .slab_off = r->dst_used
	};
	r->dst_used += size > 0 ? (last - first) * SLAB_PAGE : 0;
}

static void on_done(struct iod_read *read, int result)
{
	struct rig_read *r = CONTAINER_OF(read, struct rig_read, read);

	CHECK(!r->is_done);
	CHECK_EQ(read->n_in_flight, 0);
	r->is_done = true;
	r->result = result;
	r->order = ++n_done;
}

void rig_submit(struct rig *rig, struct rig_read *r, enum iod_read_class class, uint8_t *dst)
{
	r->read.segments = r->segments;
	r->read.class = class;
	r->read.dst = dst;
	r->read.dst_size = r->dst_used;
	r->read.done = on_done;
	iod_reader_submit(rig->reader, &r->read);
	CHECK(!r->is_done);
}

void rig_wait(struct rig *rig, struct rig_read *r)
{
	while (!r->is_done)
		CHECK(sd_event_run(rig->event, 60 * 1000 * 1000) > 0);
}

void rig_run_for(struct rig *rig, uint64_t usec)
{
	double end = rig_seconds() + (double)usec / 1e6;

	for (;;) {
		double left = end - rig_seconds();

		if (left <= 0)
			break;
		CHECK(sd_event_run(rig->event, (uint64_t)(left * 1e6) + 1) >= 0);
	}
}

void rig_check(struct rig *rig, const struct rig_read *r)
{
	for (uint32_t i = 0; i < r->read.n_segments; i++) {
		const struct source_segment *s = &r->segments[i];
		const uint8_t *got = r->read.dst + s->slab_off + s->file_off % SLAB_PAGE;
		uint8_t *want = malloc(s->size + 1);

		CHECK(want);
		CHECK_EQ(fd_pread_all(rig->files[s->file].fd, want, s->size, s->file_off), 0);
		CHECK_MSG(memcmp(got, want, s->size) == 0, "segment %u: other bytes", i);
		free(want);
	}
	CHECK_MSG(r->read.dst[r->dst_used] == RIG_POISON, "written past the request");
}

double rig_seconds(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}
