/*
 * Requests become chunks, chunks become bytes in memory. One loop thread; see reader.h for the
 * states. Everything the kernel may do to a read is handled here and nowhere else: less than asked
 * for, an error that passes, an error that stays, an end of file inside the last page.
 */
#include "iod/read/read.h"

#include <errno.h>
#include <time.h>

#include "iod/read/change.h"
#include "iod/read/reader.h"
#include "shared/attr.h"
#include "shared/must.h"

/* Of the disk's errors; those of a kernel that has no room just now say nothing about the disk. */
enum { TRIES_MAX = 4, BUSY_TRIES_MAX = 12 };
#define BACK_OFF_NS    (UINT64_C(20) * 1000 * 1000) /* then four times as long each */
#define FLUSH_AGAIN_NS (UINT64_C(1) * 1000 * 1000)

static uint64_t now_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static uint64_t page_start(uint64_t offset)
{
	return offset & ~(uint64_t)(IOD_PAGE - 1);
}

static uint64_t page_end(uint64_t offset)
{
	return page_start(offset + IOD_PAGE - 1);
}

/* The bytes of a segment, pages included. */
static uint64_t page_span(const struct source_segment *s)
{
	return page_end(s->file_off + s->size) - page_start(s->file_off);
}

/* ---- the timer: chunks that pause ---------------------------------------------------------- */

static void arm_timer(struct iod_reader *r)
{
	uint64_t due = UINT64_MAX;

	if (!list_is_empty(&r->paused))
		due = list_entry(r->paused.next, struct reader_chunk, link)->due_ns;
	if (r->needs_flush && now_ns() + FLUSH_AGAIN_NS < due)
		due = now_ns() + FLUSH_AGAIN_NS;
	if (due == UINT64_MAX) {
		(void)sd_event_source_set_enabled(r->timer, SD_EVENT_OFF);
		return;
	}
	must(sd_event_source_set_time(r->timer, due / 1000 + 1) >= 0);
	must(sd_event_source_set_enabled(r->timer, SD_EVENT_ONESHOT) >= 0);
}

static void pause_chunk(struct iod_reader *r, struct reader_chunk *c, enum reader_chunk_pause why,
			uint64_t due_ns)
{
	struct list *at = r->paused.prev;

	while (at != &r->paused && list_entry(at, struct reader_chunk, link)->due_ns > due_ns)
		at = at->prev;
	c->pause = why;
	c->due_ns = due_ns;
	list_push_head(at, &c->link);
}

/* ---- cutting ------------------------------------------------------------------------------- */

static void start_chunk(struct iod_reader *r, struct reader_chunk *c)
{
	uint32_t device = (uint32_t)(c->queue - r->queues);

	c->pause = CHUNK_RUNS;
	c->started_ns = now_ns();
	c->is_stall_told = false;
	c->due_ns =
		r->fault.is_active ? iod_fault_start(&r->fault, &c->io, device, c->started_ns) : 0;
	r->backend->class->queue(r->backend, &c->io);
}

static bool is_in_slab(const struct iod_reader *r, const uint8_t *dst)
{
	return dst >= r->slab && dst < r->slab + r->slab_size;
}

/* The piece of registered memory dst lies in, and how many bytes of size lie in the same piece. */
static int32_t find_buffer(const struct iod_reader *r, const uint8_t *dst, uint64_t *size)
{
	uint64_t offset, piece, room;

	if (!is_in_slab(r, dst))
		return IOD_NOT_FIXED;
	offset = (uint64_t)(dst - r->slab);
	piece = offset / r->piece_size;
	if (piece >= r->n_registered)
		return IOD_NOT_FIXED;
	room = (piece + 1) * r->piece_size;
	if (room > r->slab_size)
		room = r->slab_size;
	room -= offset;
	if (*size > room)
		*size = room;
	return (int32_t)piece;
}

static void skip_empty_segments(struct iod_read *req)
{
	while (req->next_segment < req->n_segments && req->segments[req->next_segment].size == 0)
		req->next_segment++;
}

static struct iod_queue *queue_of(struct iod_reader *r, const struct iod_read *req)
{
	uint32_t file = req->segments[req->next_segment].file;

	return &r->queues[r->devices->files[file].device];
}

/* Move the request on by size bytes, to the list of another device where its next bytes are. */
static void advance(struct iod_reader *r, struct iod_queue *q, struct iod_read *req, uint64_t size)
{
	req->next_offset += size;
	if (req->next_offset < page_span(&req->segments[req->next_segment]))
		return;
	req->next_offset = 0;
	req->next_segment++;
	skip_empty_segments(req);
	if (req->next_segment == req->n_segments) {
		iod_queue_remove(req);
	} else if (queue_of(r, req) != q) {
		iod_queue_remove(req);
		iod_queue_push_head(queue_of(r, req), req);
	}
}

/* The next chunk of a request that waits at s. */
static void start_next_chunk(struct iod_reader *r, struct iod_queue *q, struct iod_read *req)
{
	const struct source_segment *seg = &req->segments[req->next_segment];
	const struct iod_file *file = &r->devices->files[seg->file];
	struct reader_chunk *c = list_entry(r->free_chunks.next, struct reader_chunk, link);
	uint64_t size = page_span(seg) - req->next_offset;

	must(!list_is_empty(&r->free_chunks));
	list_remove(&c->link);
	if (size > q->chunk)
		size = q->chunk;
	c->io.file = seg->file;
	c->io.offset = page_start(seg->file_off) + req->next_offset;
	c->io.dst = req->dst + seg->slab_off + req->next_offset;
	c->io.buffer = find_buffer(r, c->io.dst, &size);
	c->io.size = (uint32_t)size;
	if (r->prepare && is_in_slab(r, c->io.dst))
		r->prepare(r->prepare_data, c->io.dst, size);
	c->io.is_buffered = file->direct_fd < 0;
	c->req = req;
	c->queue = q;
	c->class = req->class;
	c->n_tries = 0;
	c->want_end = c->io.offset + size < file->size ? c->io.offset + size : file->size;
	if (r->watch && req->started_ns == 0)
		req->started_ns = now_ns();
	req->n_in_flight++;
	iod_queue_started(q, c->class);
	advance(r, q, req, size);
	start_chunk(r, c);
}

static void pump(struct iod_reader *r)
{
	struct iod_read *req;

	r->needs_pump = false;
	/* A request may move to a device that was served already: until no one has a next. */
	for (bool is_any = true; is_any;) {
		is_any = false;
		for (uint32_t i = 0; i < r->devices->n_devices; i++) {
			while ((req = iod_queue_next(&r->queues[i]))) {
				start_next_chunk(r, &r->queues[i], req);
				is_any = true;
			}
		}
	}
	r->needs_flush = r->backend->class->flush(r->backend) == IOD_FLUSH_AGAIN;
	arm_timer(r);
}

/* ---- landing ------------------------------------------------------------------------------- */

static void finish_if_quiet(struct iod_reader *r, struct iod_read *req)
{
	if (!req->is_queued && req->n_in_flight == 0)
		list_push_tail(&r->finished, &req->link);
}

static void fail_request(struct iod_read *req, int result, uint32_t file, uint64_t offset)
{
	if (req->result == 0) {
		req->result = result;
		req->bad_file = file;
		req->bad_offset = offset;
	}
	if (req->is_queued)
		iod_queue_remove(req);
}

static void chunk_is_over(struct iod_reader *r, struct reader_chunk *c)
{
	struct iod_read *req = c->req;

	iod_queue_landed(c->queue, c->class);
	c->req = NULL;
	list_push_tail(&r->free_chunks, &c->link);
	must(req->n_in_flight > 0);
	req->n_in_flight--;
	finish_if_quiet(r, req);
}

static void count_bytes(struct iod_reader *r, struct reader_chunk *c, uint64_t n)
{
	c->req->bytes_read += n;
	r->counts.bytes[c->class] += n;
	c->queue->bytes[c->class] += n;
}

/* How often a read that ended with this error, or with nothing (0), is tried. */
static uint32_t tries_max(int error)
{
	switch (error) {
	case 0:
	case -EIO:
		return TRIES_MAX;
	case -EAGAIN:
	case -ENOMEM:
	case -EINTR:
		return BUSY_TRIES_MAX;
	}
	return 1;
}

static uint64_t back_off(uint32_t n_tries)
{
	return BACK_OFF_NS << (2 * ((n_tries < TRIES_MAX ? n_tries : TRIES_MAX) - 1));
}

/* The read brought an error, or nothing (0). Returns true when it is tried again. */
static bool retry_chunk(struct iod_reader *r, struct reader_chunk *c, int error)
{
	/* A request that has failed already only waits for quiet. */
	if (c->req->result < 0)
		return false;
	c->n_tries++;
	if (c->n_tries < tries_max(error)) {
		r->counts.reads_retried++;
		pause_chunk(r, c, CHUNK_BACKS_OFF, now_ns() + back_off(c->n_tries));
		return true;
	}
	r->counts.reads_failed++;
	/* Nothing again and again before the known size: the file was cut. */
	fail_request(c->req, error == 0 ? -ENODATA : error, c->io.file, c->io.offset);
	return false;
}

static void chunk_landed(struct iod_reader *r, struct reader_chunk *c)
{
	uint64_t n, whole;

	r->counts.reads++;
	if (c->io.result < 0) {
		if (!retry_chunk(r, c, c->io.result))
			chunk_is_over(r, c);
		return;
	}
	n = (uint64_t)c->io.result;
	must(n <= c->io.size);
	/* The last page of a file may end early: that is all there is. */
	if (c->io.offset + n >= c->want_end) {
		count_bytes(r, c, n);
		chunk_is_over(r, c);
		return;
	}
	/* Short: go on from the last whole page, since only pages can be read direct. */
	r->counts.reads_short++;
	whole = page_start(n);
	count_bytes(r, c, whole);
	c->io.offset += whole;
	c->io.dst += whole;
	c->io.size -= (uint32_t)whole;
	if (whole == 0) {
		if (!retry_chunk(r, c, 0))
			chunk_is_over(r, c);
	} else if (c->req->result < 0) {
		chunk_is_over(r, c);
	} else {
		c->n_tries = 0;
		start_chunk(r, c);
	}
}

/* Bytes count when their file is as it was: looked at after the last of them came. */
static void check_files(struct iod_reader *r, struct iod_read *req)
{
	uint32_t last = UINT32_MAX;

	if (req->result == -ENODATA && iod_file_has_changed(&r->devices->files[req->bad_file]))
		req->result = -ESTALE;
	for (uint32_t i = 0; i < req->n_segments && req->result == 0; i++) {
		const struct source_segment *s = &req->segments[i];

		if (s->file != last && iod_file_has_changed(&r->devices->files[s->file]))
			fail_request(req, -ESTALE, s->file, s->file_off);
		last = s->file;
	}
}

/* Where a request that is over was read from. */
static uint32_t device_of(const struct iod_reader *r, const struct iod_read *req)
{
	return r->devices->files[req->segments[0].file].device;
}

static void deliver(struct iod_reader *r)
{
	r->is_delivering = true;
	while (!list_is_empty(&r->finished)) {
		struct iod_read *req = list_entry(r->finished.next, struct iod_read, link);

		list_remove(&req->link);
		r->n_requests[req->class]--;
		check_files(r, req);
		if (r->watch && req->n_segments > 0)
			r->watch(r->watch_data, req, device_of(r, req));
		req->done(req, req->result); /* may free it, may submit others */
	}
	r->is_delivering = false;
}

/* The disk first, then the callers, then what they asked for. */
static void settle(struct iod_reader *r)
{
	pump(r);
	while (!list_is_empty(&r->finished) || r->needs_pump) {
		deliver(r);
		pump(r);
	}
}

void iod_reader_on_landed(void *data, struct iod_op *io)
{
	struct iod_reader *r = data;
	struct reader_chunk *c = CONTAINER_OF(io, struct reader_chunk, io);

	must(c->req);
	iod_fault_land(&r->fault, io);
	if (c->due_ns > 0 && c->due_ns > now_ns())
		pause_chunk(r, c, CHUNK_HELD, c->due_ns);
	else
		chunk_landed(r, c);
}

void iod_reader_on_settled(void *data)
{
	settle(data);
}

int iod_reader_on_pump(sd_event_source *source, void *data)
{
	(void)source;
	settle(data);
	return 0;
}

int iod_reader_on_timer(sd_event_source *source, uint64_t usec, void *data)
{
	struct iod_reader *r = data;
	uint64_t now = now_ns();

	(void)source;
	(void)usec;
	while (!list_is_empty(&r->paused)) {
		struct reader_chunk *c = list_entry(r->paused.next, struct reader_chunk, link);

		if (c->due_ns > now)
			break;
		must(c->req);
		list_remove(&c->link);
		if (c->pause == CHUNK_HELD)
			chunk_landed(r, c);
		else if (c->req->result < 0)
			chunk_is_over(r, c);
		else
			start_chunk(r, c);
	}
	settle(r);
	return 0;
}

/* ---- what callers do ----------------------------------------------------------------------- */

/* A request that does not fit its memory or its files must not be started. */
static int check_request(const struct iod_reader *r, struct iod_read *req)
{
	if ((uintptr_t)req->dst % IOD_PAGE != 0)
		return -EINVAL;
	for (uint32_t i = 0; i < req->n_segments; i++) {
		const struct source_segment *s = &req->segments[i];
		uint64_t file_size;

		req->bad_file = s->file;
		req->bad_offset = s->file_off;
		if (s->file >= r->devices->n_files || s->slab_off % IOD_PAGE != 0)
			return -EINVAL;
		if (r->devices->files[s->file].has_changed)
			return -ESTALE;
		file_size = r->devices->files[s->file].size;
		if (s->file_off > file_size || s->size > file_size - s->file_off)
			return -EINVAL;
		if (s->size > 0 &&
		    (s->slab_off > req->dst_size || page_span(s) > req->dst_size - s->slab_off))
			return -EINVAL;
	}
	req->bad_file = 0;
	req->bad_offset = 0;
	return 0;
}

void iod_reader_wake(struct iod_reader *r)
{
	r->needs_pump = true;
	if (!r->is_delivering)
		must(sd_event_source_set_enabled(r->pump_source, SD_EVENT_ONESHOT) >= 0);
}

void iod_reader_submit(struct iod_reader *r, struct iod_read *req)
{
	list_init(&req->link);
	req->next_segment = 0;
	req->next_offset = 0;
	req->n_in_flight = 0;
	req->is_queued = false;
	req->bytes_read = 0;
	req->started_ns = 0;
	req->result = check_request(r, req);
	r->n_requests[req->class]++;
	skip_empty_segments(req);
	if (req->result < 0 || req->next_segment == req->n_segments)
		list_push_tail(&r->finished, &req->link);
	else
		iod_queue_push(queue_of(r, req), req);
	iod_reader_wake(r);
}

void iod_reader_promote(struct iod_reader *r, struct iod_read *req, enum iod_read_class class)
{
	bool was_queued = req->is_queued;

	if (class >= req->class)
		return;
	for (uint32_t i = 0; i < r->n_chunks; i++) {
		struct reader_chunk *c = &r->chunks[i];

		if (c->req != req)
			continue;
		iod_queue_landed(c->queue, c->class);
		c->class = class;
		iod_queue_started(c->queue, class);
	}
	if (was_queued)
		iod_queue_remove(req);
	r->n_requests[req->class]--;
	r->n_requests[class]++;
	req->class = class;
	if (was_queued)
		iod_queue_push(queue_of(r, req), req);
	iod_reader_wake(r);
}

void iod_reader_watch(struct iod_reader *r, iod_reader_watch_fn *fn, void *data)
{
	r->watch = fn;
	r->watch_data = data;
}

bool iod_reader_is_idle(const struct iod_reader *r, enum iod_read_class class)
{
	for (int c = 0; c <= (int)class; c++) {
		if (r->n_requests[c] > 0)
			return false;
	}
	return true;
}

bool iod_reader_find_stalled(struct iod_reader *r, uint64_t limit_ns, struct iod_stall *ret)
{
	uint64_t now = now_ns();

	for (uint32_t i = 0; i < r->n_chunks; i++) {
		struct reader_chunk *c = &r->chunks[i];

		if (!c->req || c->pause == CHUNK_BACKS_OFF || c->is_stall_told ||
		    now - c->started_ns < limit_ns)
			continue;
		c->is_stall_told = true;
		r->counts.reads_stalled++;
		*ret = (struct iod_stall){ .file = c->io.file,
					   .offset = c->io.offset,
					   .seconds = (double)(now - c->started_ns) / 1e9 };
		return true;
	}
	return false;
}

bool iod_reader_device(const struct iod_reader *r, uint32_t i, struct iod_reader_device *ret)
{
	const struct iod_queue *q = &r->queues[i];

	if (i >= r->devices->n_devices)
		return false;
	*ret = (struct iod_reader_device){
		.first_path = r->devices->devices[i].first_path,
		.depth = q->depth,
		.chunk = q->chunk,
		.n_in_flight = q->n_in_flight,
		.bytes = q->bytes,
	};
	return true;
}

const struct iod_reader_counts *iod_reader_counts(const struct iod_reader *r)
{
	return &r->counts;
}
