/* Depth and chunk of each device: which row of the settings is whose, and the words about it. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "iod/read/reader.h"
#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/slab.h"
#include "shared/tuning.h"

/* The device a path lies on, or which it is. */
static int device_of_path(const char *path, dev_t *ret)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	*ret = iod_device_number(&st);
	return 0;
}

static bool apply_row(const struct iod_devices *d, const struct tuning_row *row, dev_t dev,
		      struct iod_queue *queues)
{
	for (uint32_t i = 0; i < d->n_devices; i++) {
		if (d->devices[i].st_dev != dev)
			continue;
		if (row->depth)
			queues[i].depth = (uint32_t)row->depth;
		if (row->chunk)
			queues[i].chunk = (uint32_t)row->chunk;
		return true;
	}
	return false;
}

static int apply_rows(const struct iod_reader *r, const struct iod_reader_settings *s,
		      struct iod_queue *queues, struct err *err)
{
	for (uint32_t i = 0; i < s->n_rows; i++) {
		const struct tuning_row *row = &s->rows[i];
		dev_t dev = 0;
		int e;

		if (row->depth == 0 && row->chunk == 0)
			continue;
		e = device_of_path(row->path, &dev);
		/* A profile may know more disks than the model lies on. */
		if ((e == 0 && apply_row(r->devices, row, dev, queues)) || row->is_from_profile)
			continue;
		return err_set(err, ERR_USAGE, "--%s for %s: %s",
			       row->depth ? "queue-depth" : "chunk", row->path,
			       e < 0 ? strerror(-e)
				     : "no file of the model lies on that device; name the model's "
				       "directory or a file of it");
	}
	return 0;
}

int iod_reader_tune(const struct iod_reader *r, const struct iod_reader_settings *s,
		    struct iod_queue *queues, struct err *err)
{
	uint64_t depths = 0;
	int e;

	if (s->chunk % IOD_PAGE != 0 || s->chunk > READER_PIECE)
		return err_set(err, ERR_USAGE,
			       "a chunk of %llu bytes is not a multiple of 4096 up to 64 MiB",
			       (unsigned long long)s->chunk);
	for (uint32_t i = 0; i < r->devices->n_devices; i++) {
		queues[i].depth = s->queue_depth ? s->queue_depth : SLAB_READ_DEPTH;
		queues[i].chunk = s->chunk ? (uint32_t)s->chunk : SLAB_READ_CHUNK;
	}
	e = apply_rows(r, s, queues, err);
	if (e < 0)
		return e;
	for (uint32_t i = 0; i < r->devices->n_devices; i++)
		depths += queues[i].depth;
	if (depths > IOD_OPS_MAX)
		return err_set(err, ERR_USAGE,
			       "--queue-depth: %llu reads in flight over all devices, %u at most",
			       (unsigned long long)depths, IOD_OPS_MAX);
	return 0;
}

/* ---- words --------------------------------------------------------------------------------- */

static void append(char *text, size_t size, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void append(char *text, size_t size, const char *fmt, ...)
{
	size_t len = strlen(text);
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text + len, size - len, fmt, ap);
	va_end(ap);
}

static void append_tuning(char *text, size_t size, const struct iod_queue *q)
{
	bool is_mib = q->chunk % (1 << 20) == 0;

	append(text, size, "depth %u, chunk %u %s", q->depth, q->chunk >> (is_mib ? 20 : 10),
	       is_mib ? "MiB" : "KiB");
}

static bool is_same(const struct iod_queue *a, const struct iod_queue *b)
{
	return a->depth == b->depth && a->chunk == b->chunk;
}

void iod_reader_describe_tuning(const struct iod_reader *r, char *text, size_t size)
{
	const struct iod_devices *d = r->devices;
	bool is_one = true;

	text[0] = '\0';
	for (uint32_t i = 1; i < d->n_devices; i++)
		is_one &= is_same(&r->queues[i], &r->queues[0]);
	if (d->n_devices > 1)
		append(text, size, "%u devices%s", d->n_devices, is_one ? ", " : ": ");
	for (uint32_t i = 0; i < (is_one && d->n_devices > 0 ? 1 : d->n_devices); i++) {
		if (!is_one)
			append(text, size, "%s%u:%u ", i ? "; " : "", major(d->devices[i].st_dev),
			       minor(d->devices[i].st_dev));
		append_tuning(text, size, &r->queues[i]);
	}
}

/* ---- while it runs ------------------------------------------------------------------------- */

int iod_reader_retune(struct iod_reader *r, const struct iod_reader_settings *settings,
		      char *changes, size_t size, struct err *err)
{
	const struct iod_devices *d = r->devices;
	CLEANUP(freep) struct iod_queue *fresh = calloc(d->n_devices + 1, sizeof(*fresh));
	uint64_t depths = 0;
	int e;

	changes[0] = '\0';
	if (!fresh)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	e = iod_reader_tune(r, settings, fresh, err);
	if (e < 0)
		return e;
	for (uint32_t i = 0; i < d->n_devices; i++)
		depths += fresh[i].depth;
	if (depths > r->n_chunks)
		return err_set(err, ERR_USAGE,
			       "%llu reads in flight over all devices: more than %u need a restart",
			       (unsigned long long)depths, r->n_chunks);
	for (uint32_t i = 0; i < d->n_devices; i++) {
		struct iod_queue *q = &r->queues[i];

		if (is_same(q, &fresh[i]))
			continue;
		append(changes, size, "%sdevice %u:%u (of %s): ", changes[0] ? "; " : "",
		       major(d->devices[i].st_dev), minor(d->devices[i].st_dev),
		       d->devices[i].first_path);
		append_tuning(changes, size, &fresh[i]);
		append(changes, size, "%s", " instead of ");
		append_tuning(changes, size, q);
		q->depth = fresh[i].depth;
		q->chunk = fresh[i].chunk;
	}
	if (r->backend->class->set_depth)
		r->backend->class->set_depth(r->backend, (uint32_t)depths);
	iod_reader_wake(r);
	return 0;
}
