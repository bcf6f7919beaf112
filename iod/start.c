#include "iod/start.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "iod/client.h"
#include "iod/daemon.h"
#include "iod/journal.h"
#include "iod/notify.h"
#include "shared/err.h"
#include "shared/fd.h"
#include "shared/log.h"

/* More than one turn can take on a slow machine, so that the manager never gives up on a start that
 * goes on. */
enum { EXTEND_USEC = 60 * 1000000 };
enum { STATUS_USEC = 1000000 };

static void quit(struct iod_daemon *d, const struct err *err)
{
	iod_event_log(LOG_LEVEL_ERROR, IOD_EVENT_NOT_STARTED, NULL, "%s", err->text);
	iod_listener_turn_away(&d->listener, err);
	(void)sd_event_exit(d->event, err_exit_code(err->code));
}

static int on_connect(sd_event_source *source, int fd, uint32_t revents, void *data)
{
	struct iod_daemon *d = data;
	int conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	int r;

	(void)revents;
	if (conn < 0) {
		if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
			return 0;
		iod_daemon_complain(d, "a connection could not be accepted: %s; trying again",
				    fd_strerror(errno));
		/* it stays readable: not again and again, but when the timer says so */
		(void)sd_event_source_set_enabled(source, SD_EVENT_OFF);
		return 0;
	}
	if (d->n_clients >= IOD_QUOTA_CONNECTIONS) {
		(void)fd_close(conn);
		iod_daemon_complain(d, "a connection was closed: there are %u already",
				    d->n_clients);
		return 0;
	}
	r = iod_client_new(d, conn);
	if (r < 0)
		iod_daemon_complain(d, "a connection could not be set up: %s", strerror(-r));
	return 0;
}

void iod_start_listen_again(struct iod_daemon *d)
{
	if (d->listen_source)
		(void)sd_event_source_set_enabled(d->listen_source, SD_EVENT_ON);
}

static int let_in(struct iod_daemon *d)
{
	if (d->options->embedded_fd > 0)
		return iod_client_new(d, (int)d->options->embedded_fd);
	return sd_event_add_io(d->event, &d->listen_source, d->listener.fd, EPOLLIN, on_connect, d);
}

static void serve(struct iod_daemon *d)
{
	struct err err = { 0 };
	int r;

	d->phase = IOD_PHASE_SERVE;
	r = let_in(d);
	if (r < 0) {
		(void)err_set(&err, ERR_SOCKET, "letting clients in: %s", strerror(-r));
		quit(d, &err);
		return;
	}
	iod_notify_ready("serving");
	if (!d->is_resident)
		(void)sd_event_source_set_enabled(d->start_source, SD_EVENT_ON);
	iod_start_report_pinning(d);
	iod_daemon_wake(d);
}

void iod_start_tile_changed(struct iod_daemon *d)
{
	const struct iod_tile *probe = &d->trunk->tiles[0];
	struct err err = { 0 };

	if (d->phase != IOD_PHASE_PROBE)
		return;
	if (probe->error < 0) {
		iod_trunk_describe_failure(d->trunk, probe, &err);
		quit(d, &err);
	} else if (probe->state == SLAB_READY) {
		serve(d);
	}
}

static void probe(struct iod_daemon *d)
{
	struct iod_tile *tile;

	d->phase = IOD_PHASE_PROBE;
	/* a kept slab shows that the files can be read, and places in it may be taken */
	if (d->trunk->n_tiles == 0 || d->keep.is_adopted) {
		serve(d);
		return;
	}
	tile = &d->trunk->tiles[0];
	if (tile->is_pinned)
		iod_trunk_load_pinned(d->trunk, tile);
	else
		iod_trunk_load_at(d->trunk, tile, d->plan.ring_off);
}

static double megabytes(uint64_t bytes)
{
	return (double)bytes / 1e6;
}

/* One line with all that decides how this daemon will do. */
static void log_start(const struct iod_daemon *d)
{
	const struct slab_plan *p = &d->plan;
	bool has_pages = d->is_resident || d->keep.is_adopted;
	char digest[33];

	for (int i = 0; i < 16; i++)
		(void)snprintf(digest + 2 * i, 3, "%02x", d->source->model_digest[i]);
	iod_event_log(
		LOG_LEVEL_INFO, IOD_EVENT_SERVING, NULL,
		"%s: model %s, %" PRIu64 " tensors, %u tiles from %s; %s; slab %.3f MB (pinned: %u "
		"tiles, %.3f MB; ring %.3f MB%s%s; %u expert slots, %.3f MB), %s, %s; beside it "
		"about "
		"%.1f MB; serving %s",
		K3_VERSION, digest, d->source->n_tensors, p->n_tiles,
		d->source->n_trunk_files ? "the trunk file" : "the shards",
		iod_reader_describe(d->reader), megabytes(p->total_size), d->trunk->n_pinned,
		megabytes(p->pinned_size), megabytes(p->ring_size), p->ring_note[0] ? " for " : "",
		p->ring_note, p->n_slots, megabytes(p->slots_size),
		has_pages ? d->slab->huge_note : "most pages still to be had", d->slab->mlock_note,
		megabytes(p->daemon_private_size),
		d->listener.fd >= 0 ? d->listener.where : "one client over its socket pair");
}

/* What could not be said yet in the line before. */
static void log_resident(const struct iod_daemon *d)
{
	log_info("all %.3f MB of the slab are resident: %s, %s; %s", megabytes(d->slab->size),
		 d->slab->huge_note, d->slab->mlock_note, iod_reader_describe(d->reader));
}

static void tell_progress(struct iod_daemon *d)
{
	uint64_t now = iod_daemon_now(d);

	if (now - d->status_usec < STATUS_USEC)
		return;
	d->status_usec = now;
	iod_notify_extend_timeout(EXTEND_USEC);
	iod_notify_status("taking memory: %.0f of %.0f MB", megabytes(d->slab->faulted),
			  megabytes(d->slab->size));
}

static int on_turn(sd_event_source *source, void *data)
{
	struct iod_daemon *d = data;
	struct err err = { 0 };
	int more, r;

	if (iod_keep_is_draining(d)) {
		/* the old slab still has its memory; iod_start_go_on comes when it has not */
		(void)sd_event_source_set_enabled(source, SD_EVENT_OFF);
		iod_notify_status("waiting for the reads of the daemon before to land");
		return 0;
	}
	if (d->phase == IOD_PHASE_MEMORY)
		tell_progress(d);
	more = slab_fault_some(d->slab, &err);
	if (more < 0) {
		quit(d, &err);
		return 0;
	}
	r = iod_reader_register_some(d->reader, d->slab->faulted);
	d->is_resident = more == 0 && r <= 0;
	if (!d->is_resident && (d->phase == IOD_PHASE_SERVE || !slab_is_usable_early(d->slab)))
		return 0;
	/* serve goes on with the rest: nothing may delay the probe */
	(void)sd_event_source_set_enabled(source, SD_EVENT_OFF);
	if (d->phase == IOD_PHASE_SERVE) {
		log_resident(d);
		return 0;
	}
	log_start(d);
	probe(d);
	return 0;
}

void iod_start_go_on(struct iod_daemon *d)
{
	if (d->phase == IOD_PHASE_MEMORY && d->start_source)
		(void)sd_event_source_set_enabled(d->start_source, SD_EVENT_ON);
}

int iod_start_begin(struct iod_daemon *d)
{
	int r = sd_event_add_defer(d->event, &d->start_source, on_turn, d);

	/* after everything else: a deferred source that stays on is always the one that has waited
	 * longest, and a signal would wait until all memory is taken */
	if (r >= 0)
		r = sd_event_source_set_priority(d->start_source, SD_EVENT_PRIORITY_IDLE);
	if (r < 0)
		return r;
	iod_notify_extend_timeout(EXTEND_USEC);
	return sd_event_source_set_enabled(d->start_source, SD_EVENT_ON);
}

void iod_start_report_pinning(struct iod_daemon *d)
{
	const struct iod_trunk *t = d->trunk;

	if (d->is_pinned_told)
		return;
	if (t->n_pinned_ready < t->n_pinned) {
		iod_notify_status("serving; pinning: %u of %u tiles", t->n_pinned_ready,
				  t->n_pinned);
		return;
	}
	d->is_pinned_told = true;
	iod_notify_status("serving; %u tiles pinned, %u expert slots", t->n_pinned,
			  d->plan.n_slots);
	if (t->n_pinned > 0)
		log_info("all %u pinned tiles are in memory", t->n_pinned);
}
