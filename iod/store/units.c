/* See units.h. */
#include "iod/store/units.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"

enum { PAGE = 4096, ROWS_BYTES = 16 << 20 };

void iod_units_deinit(struct iod_units *u)
{
	free(u->items);
	memset(u, 0, sizeof(*u));
}

static int compare(const void *a, const void *b)
{
	const struct iod_unit *x = a, *y = b;

	if (x->s != y->s)
		return x->s->n_trunk_files ? 1 : -1;
	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	if (x->off != y->off)
		return x->off < y->off ? -1 : 1;
	return x->kind < y->kind ? -1 : x->kind > y->kind;
}

static void add(struct iod_units *u, const struct iod_unit *unit, uint64_t room)
{
	u->items[u->n++] = *unit;
	u->size += unit->size;
	if (room > u->max_room)
		u->max_room = room;
}

static void add_tiles(struct iod_units *u, const struct source *s)
{
	for (uint32_t i = 0; i < s->catalog.header->n_tiles; i++) {
		const struct source_segment *seg = &s->segments[s->tile_segment[i]];
		const struct catalog_tile *t = &s->catalog.tiles[i];

		add(u,
		    &(struct iod_unit){ .s = s,
					.kind = IOD_UNIT_TILE,
					.index = i,
					.file = seg->file,
					.off = seg->file_off,
					.size = t->data_size },
		    t->slab_size);
	}
}

static void add_experts(struct iod_units *u, const struct source *s)
{
	const struct catalog_header *h = s->catalog.header;
	uint64_t size = 0;

	for (unsigned i = 0; i < EXPERT_PARTS; i++)
		size += (uint64_t)h->expert_rows[i] * h->expert_cols[i];
	for (uint32_t layer = 0; layer < h->n_layers; layer++)
		for (uint32_t i = 0; i < h->n_experts && source_expert(s, layer, i); i++) {
			const struct source_segment *seg =
				&s->segments[source_expert(s, layer, i)->first_segment];

			add(u,
			    &(struct iod_unit){ .s = s,
						.kind = IOD_UNIT_EXPERT,
						.layer = layer,
						.expert = i,
						.file = seg->file,
						.off = seg->file_off,
						.size = size },
			    h->expert_size);
		}
}

static void add_rows(struct iod_units *u, const struct source *s, uint32_t step)
{
	uint32_t n_rows = (uint32_t)s->catalog.header->embed_rows;

	for (uint32_t at = 0; at < n_rows; at += step) {
		uint32_t n = n_rows - at < step ? n_rows - at : step;

		add(u,
		    &(struct iod_unit){ .s = s,
					.kind = IOD_UNIT_ROWS,
					.index = at,
					.n_rows = n,
					.file = s->embed_file,
					.off = s->embed_off + at * s->embed_row_size,
					.size = n * s->embed_row_size },
		    n * s->embed_row_size + 2 * PAGE);
	}
}

int iod_units_add(struct iod_units *u, const struct source *s, bool with_experts, struct err *err)
{
	uint64_t step = ROWS_BYTES / s->embed_row_size + 1;
	uint64_t n = s->catalog.header->n_tiles + (with_experts ? s->n_experts : 0) +
		     s->catalog.header->embed_rows / step + 1;
	struct iod_unit *grown = reallocarray(u->items, u->n + n, sizeof(*grown));

	if (!grown)
		return err_set(err, ERR_NO_MEMORY, "no memory for the list of tensors");
	u->items = grown;
	add_tiles(u, s);
	if (with_experts)
		add_experts(u, s);
	add_rows(u, s, (uint32_t)step);
	qsort(u->items, u->n, sizeof(*u->items), compare);
	return 0;
}

/* ---- reading ----------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int iod_unit_reader_init(struct iod_unit_reader *r, const struct iod_units *u, uint64_t rate,
			 struct err *err)
{
	uint64_t room = (u->max_room + 2 * PAGE - 1) / PAGE * PAGE;

	*r = (struct iod_unit_reader){ .rate = rate, .fd = -1, .is_direct = true };
	r->began_ns = now_ns();
	r->buf = aligned_alloc(PAGE, room);
	if (!r->buf)
		return err_set(err, ERR_NO_MEMORY, "no memory to read %" PRIu64 " bytes", room);
	return 0;
}

void iod_unit_reader_deinit(struct iod_unit_reader *r)
{
	r->fd = fd_close(r->fd);
	free(r->buf);
	r->buf = NULL;
}

/* Sleep as long as the bytes so far are ahead of the rate. */
void iod_unit_reader_hold(struct iod_unit_reader *r, uint64_t bytes)
{
	uint64_t due;
	struct timespec t;

	r->bytes += bytes;
	if (r->rate == 0)
		return;
	due = r->began_ns + (uint64_t)((double)r->bytes / (double)r->rate * 1e9);
	t.tv_sec = (time_t)(due / 1000000000u);
	t.tv_nsec = (long)(due % 1000000000u);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* The twin for direct reads, when one real read proves that it works. */
static void open_twin(struct iod_unit_reader *r, const struct source *s, uint32_t file)
{
	if (r->s == s && r->file == file)
		return;
	r->fd = fd_close(r->fd);
	r->s = s;
	r->file = file;
	r->fd = open(s->files[file].path, O_RDONLY | O_CLOEXEC | O_DIRECT | O_NOCTTY | O_NONBLOCK);
	if (r->fd >= 0 && pread(r->fd, r->buf, PAGE, 0) < 1)
		r->fd = fd_close(r->fd);
	r->is_direct = r->is_direct && r->fd >= 0;
}

static int fail(const struct source_file *f, uint64_t off, int r, struct err *err)
{
	if (r == -ENODATA)
		return err_set(err, ERR_CHECKPOINT, "%s: the file ends before byte %" PRIu64,
			       f->path, off);
	return err_set(err, ERR_IO, "%s: reading at byte %" PRIu64 " failed: %s; check the disk",
		       f->path, off, strerror(-r));
}

/* Bytes [off, off + size) with the pages around them to at, which is page aligned. */
static int read_range(struct iod_unit_reader *r, const struct source *s, uint32_t file,
		      uint64_t off, uint64_t size, uint8_t *at, struct err *err)
{
	const struct source_file *f = &s->files[file];
	uint64_t begin = off / PAGE * PAGE, end = (off + size + PAGE - 1) / PAGE * PAGE;
	uint64_t got = 0;

	open_twin(r, s, file);
	while (begin + got < off + size) {
		int fd = r->fd >= 0 && got % PAGE == 0 ? r->fd : f->fd;
		ssize_t n = pread(fd, at + got, end - begin - got, (off_t)(begin + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fail(f, begin + got, n < 0 ? -errno : -ENODATA, err);
		got += (uint64_t)n;
	}
	/* what went through the page cache leaves it to others */
	if (r->fd < 0)
		(void)posix_fadvise(f->fd, (off_t)begin, (off_t)(end - begin), POSIX_FADV_DONTNEED);
	iod_unit_reader_hold(r, end - begin);
	return 0;
}

static int read_segments(struct iod_unit_reader *r, const struct source *s, uint32_t first,
			 uint32_t n, struct err *err)
{
	int e = 0;

	for (uint32_t i = first; e == 0 && i < first + n; i++)
		e = read_range(r, s, s->segments[i].file, s->segments[i].file_off,
			       s->segments[i].size, r->buf + s->segments[i].slab_off, err);
	return e;
}

int iod_unit_read(struct iod_unit_reader *r, const struct iod_unit *unit, const uint8_t **ret_bytes,
		  struct err *err)
{
	const struct source *s = unit->s;
	const struct source_expert *e;

	*ret_bytes = r->buf;
	switch (unit->kind) {
	case IOD_UNIT_TILE:
		return read_segments(
			r, s, s->tile_segment[unit->index],
			s->tile_segment[unit->index + 1] - s->tile_segment[unit->index], err);
	case IOD_UNIT_EXPERT:
		e = source_expert(s, unit->layer, unit->expert);
		return read_segments(r, s, e->first_segment, e->n_segments, err);
	case IOD_UNIT_ROWS:
		break;
	}
	*ret_bytes = r->buf + unit->off % PAGE;
	return read_range(r, s, unit->file, unit->off, unit->size, r->buf, err);
}
