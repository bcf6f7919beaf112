/* The reader's birth and end: which back end, what memory is registered, and the words about it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "iod/read/read.h"
#include "iod/read/reader.h"
#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/must.h"

enum { PIECES_MAX = 1 << 14 }; /* the kernel's limit of registered buffers */
enum { SPARE_DEPTH = 128 };

/* Refusals of the ring and of its buffers; ENOMEM there is about the limit, not about memory. */
static void explain_errno(int error, char *text, size_t size)
{
	struct rlimit limit;

	if (error == -ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
		(void)snprintf(text, size, "memlock limit %llu KiB: raise it or give CAP_IPC_LOCK",
			       (unsigned long long)limit.rlim_cur / 1024);
	else
		(void)snprintf(text, size, "%s", strerror(-error));
}

static void explain_no_uring(int error, char *text, size_t size)
{
	CLEANUP(fd_closep) int fd = -1;
	char value[2] = "0", why[96];

	explain_errno(error, why, sizeof(why));
	fd = open("/proc/sys/kernel/io_uring_disabled", O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		(void)fd_pread_all(fd, value, 1, 0);
	if (value[0] != '0')
		(void)snprintf(text, size, "no io_uring: kernel.io_uring_disabled is %s", value);
	else if (error == -EPERM || error == -EACCES)
		(void)snprintf(text, size, "no io_uring: a sandbox forbids it (%s)", why);
	else if (error == -ENOSYS)
		(void)snprintf(text, size, "no io_uring: the kernel is too old or hides it");
	else
		(void)snprintf(text, size, "no io_uring: %s", why);
}

static int choose_backend(struct iod_reader *r, enum iod_backend_choice choice,
			  const struct iod_backend_setup *setup, struct err *err)
{
	int e;

	if (choice == IOD_BACKEND_THREADS) {
		(void)snprintf(r->why_threads, sizeof(r->why_threads), "chosen by option");
	} else {
		e = r->fault.no_uring ? -EPERM : iod_backend_uring_new(&r->backend, setup);
		if (e >= 0)
			return 0;
		explain_no_uring(e, r->why_threads, sizeof(r->why_threads));
		if (choice == IOD_BACKEND_URING)
			return err_set(err, ERR_UNSUPPORTED,
				       "%s; use --backend auto or threads to read without it",
				       r->why_threads);
	}
	e = iod_backend_threads_new(&r->backend, setup);
	if (e < 0)
		return err_set(err, ERR_NO_MEMORY, "the reading threads cannot be started: %s",
			       fd_strerror(-e));
	return 0;
}

static int make_backend(struct iod_reader *r, sd_event *event,
			const struct iod_reader_settings *settings, struct err *err)
{
	CLEANUP(freep) int *fds = malloc((r->devices->n_files + 1) * sizeof(*fds));
	struct iod_backend_setup setup = {
		.event = event,
		.fds = fds,
		.n_fds = r->devices->n_files,
		.n_ops = r->n_chunks,
		.n_usual = r->n_usual,
		.n_pieces = r->n_pieces,
		.n_rings_refused = (uint32_t)r->fault.n_rings_refused,
		.alive_fd = settings->alive_fd,
		.landed = iod_reader_on_landed,
		.settled = iod_reader_on_settled,
		.data = r,
	};

	if (!fds)
		return err_set(err, ERR_NO_MEMORY, "out of memory for the reader");
	for (uint32_t i = 0; i < r->devices->n_files; i++)
		fds[i] = r->devices->files[i].fd;
	return choose_backend(r, settings->backend, &setup, err);
}

static int make_queues(struct iod_reader *r, const struct iod_reader_settings *settings,
		       struct err *err)
{
	uint32_t n_devices = r->devices->n_devices, depths = 0;
	int e;

	r->queues = calloc(n_devices + 1, sizeof(*r->queues));
	if (!r->queues)
		return err_set(err, ERR_NO_MEMORY, "out of memory for the reader");
	for (uint32_t i = 0; i < n_devices; i++)
		iod_queue_init(&r->queues[i]);
	e = iod_reader_tune(r, settings, r->queues, err);
	if (e < 0)
		return e;
	for (uint32_t i = 0; i < n_devices; i++)
		depths += r->queues[i].depth;
	/* Room to go deeper later. */
	r->n_chunks = (n_devices + 1) * SPARE_DEPTH < IOD_OPS_MAX ? (n_devices + 1) * SPARE_DEPTH
								  : IOD_OPS_MAX;
	r->n_usual = depths > 0 ? depths : 1;
	if (r->n_chunks < depths)
		r->n_chunks = depths;
	r->chunks = calloc(r->n_chunks, sizeof(*r->chunks));
	if (!r->chunks)
		return err_set(err, ERR_NO_MEMORY, "out of memory for the reader");
	for (uint32_t i = 0; i < r->n_chunks; i++) {
		list_init(&r->chunks[i].io.link);
		list_push_tail(&r->free_chunks, &r->chunks[i].link);
	}
	return 0;
}

static void plan_pieces(struct iod_reader *r)
{
	r->piece_size = READER_PIECE;
	while (r->piece_size < READER_PIECE_MAX && r->slab_size / r->piece_size >= PIECES_MAX)
		r->piece_size *= 2;
	r->n_pieces = (uint32_t)((r->slab_size + r->piece_size - 1) / r->piece_size);
	if (r->n_pieces > PIECES_MAX)
		r->n_pieces = PIECES_MAX; /* the rest is read unregistered */
}

static int add_sources(struct iod_reader *r, sd_event *event, struct err *err)
{
	int e;

	e = sd_event_add_defer(event, &r->pump_source, iod_reader_on_pump, r);
	if (e >= 0)
		e = sd_event_source_set_enabled(r->pump_source, SD_EVENT_OFF);
	if (e >= 0)
		e = sd_event_add_time(event, &r->timer, CLOCK_MONOTONIC, 0, 50, iod_reader_on_timer,
				      r);
	if (e >= 0)
		e = sd_event_source_set_enabled(r->timer, SD_EVENT_OFF);
	if (e < 0)
		return err_set(err, ERR_NO_MEMORY, "the reader's event sources: %s",
			       fd_strerror(-e));
	return 0;
}

int iod_reader_new(struct iod_reader **ret, sd_event *event, const struct source *src,
		   uint8_t *slab, uint64_t slab_size, const struct iod_reader_settings *settings,
		   struct err *err)
{
	const char *faults = secure_getenv(IOD_FAULT_VARIABLE);
	enum iod_direct direct = settings->direct;
	struct iod_reader *r;
	int e;

	r = calloc(1, sizeof(*r));
	if (!r)
		return err_set(err, ERR_NO_MEMORY, "out of memory for the reader");
	list_init(&r->free_chunks);
	list_init(&r->paused);
	list_init(&r->finished);
	r->slab = slab;
	r->slab_size = slab ? slab_size : 0;
	r->prepare = settings->prepare;
	r->prepare_data = settings->prepare_data;
	plan_pieces(r);
	e = iod_fault_parse(&r->fault, faults, err);
	if (r->fault.is_active)
		(void)snprintf(r->fault_text, sizeof(r->fault_text), "%s", faults);
	if (r->fault.no_direct && direct == IOD_DIRECT_AUTO)
		direct = IOD_DIRECT_OFF;
	if (e >= 0)
		e = iod_devices_new(&r->devices, src, direct, err);
	if (e >= 0)
		e = make_queues(r, settings, err);
	if (e >= 0)
		e = add_sources(r, event, err);
	if (e >= 0)
		e = make_backend(r, event, settings, err);
	if (e < 0) {
		iod_reader_free(r);
		return e;
	}
	*ret = r;
	return 0;
}

bool iod_reader_keeps_alive_fd(const struct iod_reader *r)
{
	return r->backend->keeps_alive_fd;
}

struct iod_reader *iod_reader_free(struct iod_reader *r)
{
	if (!r)
		return NULL;
	if (r->backend)
		r->backend->class->free(r->backend);
	(void)sd_event_source_disable_unref(r->timer);
	(void)sd_event_source_disable_unref(r->pump_source);
	iod_devices_free(r->devices);
	free(r->chunks);
	free(r->queues);
	free(r);
	return NULL;
}

int iod_reader_register_some(struct iod_reader *r, uint64_t resident)
{
	uint64_t offset = r->n_registered * r->piece_size;
	uint64_t size = r->slab_size - offset;
	int e;

	if (!r->backend->class->register_piece || r->register_error < 0 ||
	    r->n_registered == r->n_pieces)
		return 0;
	if (size > r->piece_size)
		size = r->piece_size;
	if (offset + size > resident)
		return 1;
	e = r->fault.no_register ? -ENOMEM
				 : r->backend->class->register_piece(r->backend, r->n_registered,
								     r->slab + offset, size);
	if (e < 0) {
		/* What is registered stays so; the rest is read unregistered. */
		r->register_error = e;
		return 0;
	}
	r->n_registered++;
	return r->n_registered < r->n_pieces;
}

/* ---- words --------------------------------------------------------------------------------- */

static void describe_buffers(const struct iod_reader *r, char *text, size_t size)
{
	char why[96];

	if (!r->backend->class->register_piece || r->slab_size == 0) {
		text[0] = '\0';
	} else if (r->register_error == 0) {
		(void)snprintf(text, size, "%s",
			       r->n_registered == r->n_pieces ? ", registered buffers"
							      : ", buffers not yet registered");
	} else {
		explain_errno(r->register_error, why, sizeof(why));
		(void)snprintf(text, size, ", %u of %u buffers registered (%s)", r->n_registered,
			       r->n_pieces, why);
	}
}

static void describe_direct(const struct iod_reader *r, char *text, size_t size)
{
	const struct iod_devices *d = r->devices;

	if (d->n_direct == d->n_files)
		(void)snprintf(text, size, "O_DIRECT");
	else if (d->why_buffered[0] == '\0')
		(void)snprintf(text, size, "buffered (chosen by option)");
	else
		(void)snprintf(text, size, "%u of %u files BUFFERED (%s)", d->n_files - d->n_direct,
			       d->n_files, d->why_buffered);
}

const char *iod_reader_describe(const struct iod_reader *r)
{
	const char *note = r->backend->note ? r->backend->note : r->why_threads;
	char direct[192], buffers[160], tuning[256];
	struct iod_reader *w = (struct iod_reader *)r; /* only the text, made when asked for */

	describe_direct(r, direct, sizeof(direct));
	describe_buffers(r, buffers, sizeof(buffers));
	iod_reader_describe_tuning(r, tuning, sizeof(tuning));
	(void)snprintf(w->text, sizeof(w->text), "%s%s%s%s, %s%s, %s%s%s", r->backend->class->name,
		       note[0] ? " (" : "", note, note[0] ? ")" : "", direct, buffers, tuning,
		       r->fault.is_active ? ", FAULTS INJECTED: " : "", r->fault_text);
	return r->text;
}

const char *iod_reader_describe_short(const struct iod_reader *r)
{
	const struct iod_devices *d = r->devices;
	struct iod_reader *w = (struct iod_reader *)r;
	bool is_fixed = r->n_registered > 0 && r->n_registered == r->n_pieces;

	(void)snprintf(w->text_short, sizeof(w->text_short), "%s, %s%s", r->backend->class->name,
		       d->n_direct == d->n_files ? "O_DIRECT"
		       : d->n_direct == 0        ? "buffered"
						 : "partly O_DIRECT",
		       is_fixed ? ", fixed" : "");
	return r->text_short;
}
