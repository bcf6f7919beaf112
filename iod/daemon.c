#include "iod/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "iod/budget.h"
#include "iod/client.h"
#include "iod/journal.h"
#include "iod/notify.h"
#include "iod/patience.h"
#include "iod/read/change.h"
#include "iod/reload.h"
#include "iod/start.h"
#include "iod/sweep.h"
#include "iod/timeline.h"
#include "iod/tune.h"
#include "iod/view.h"
#include "shared/fd.h"
#include "shared/log.h"
#include "shared/source_saved.h"

enum { TIMER_USEC = 1000000 };

/* ---- the loop -------------------------------------------------------------------------------- */

void iod_daemon_wake(struct iod_daemon *d)
{
	if (d->pump_source)
		(void)sd_event_source_set_enabled(d->pump_source, SD_EVENT_ONESHOT);
}

uint64_t iod_daemon_now(const struct iod_daemon *d)
{
	uint64_t now = 0;

	(void)sd_event_now(d->event, CLOCK_MONOTONIC, &now);
	return now;
}

/* Another client comes first next time. */
static void rotate_clients(struct iod_daemon *d)
{
	struct list *first = d->clients.next;

	list_remove(first);
	list_push_tail(&d->clients, first);
}

static int on_pump(sd_event_source *source, void *data)
{
	struct iod_daemon *d = data;

	(void)source;
	iod_client_reap(d);
	if (d->phase != IOD_PHASE_SERVE)
		return 0;
	if (d->options->embedded_fd > 0 && d->n_clients == 0)
		return sd_event_exit(d->event, 0);
	iod_rows_pump(d);
	iod_experts_pump(d);
	iod_sweep_pump(d);
	iod_trunk_pump_pins(d->trunk);
	iod_view_note_waits(d);
	if (!list_is_empty(&d->clients))
		rotate_clients(d);
	return 0;
}

static void on_tile_changed(void *data, struct iod_tile *tile)
{
	struct iod_daemon *d = data;
	struct err err = { 0 };

	iod_start_tile_changed(d);
	iod_sweep_tile_changed(d, tile);
	if (tile->error < 0 && d->phase == IOD_PHASE_SERVE) {
		iod_trunk_describe_failure(d->trunk, tile, &err);
		if (iod_daemon_may_complain(d))
			iod_event_log(LOG_LEVEL_WARNING, IOD_EVENT_READ_FAILED, NULL, "%s",
				      err.text);
	}
	iod_daemon_wake(d);
}

/* Each read that has been away for too long, once. Whoever waits for it goes on waiting: it may
 * still come, and until then its memory is the device's. */
static void report_stalls(struct iod_daemon *d)
{
	struct iod_stall stall;

	while (iod_reader_find_stalled(d->reader, d->io_timeout * 1000000000, &stall)) {
		const struct source_file *f = &d->source->files[stall.file];

		if (iod_daemon_may_complain(d))
			iod_event_log(LOG_LEVEL_WARNING, IOD_EVENT_READ_STALLED, NULL,
				      "%s: reading at byte %" PRIu64 " has taken %.0f s and is not "
				      "over: look after that disk (dmesg, smartctl)",
				      f->path, stall.offset, stall.seconds);
	}
}

/* Once: nothing of a file that has changed is read any more. */
static void report_changed(struct iod_daemon *d)
{
	uint32_t file = d->is_change_told ? UINT32_MAX : iod_reader_find_changed(d->reader);

	if (file == UINT32_MAX)
		return;
	d->is_change_told = true;
	iod_event_log(LOG_LEVEL_ERROR, IOD_EVENT_READ_FAILED, NULL, "%s: %s",
		      d->source->files[file].path, iod_read_strerror(-ESTALE));
}

static int on_timer(sd_event_source *source, uint64_t usec, void *data)
{
	struct iod_daemon *d = data;
	/* usec is when the timer was due: a client may have come since. */
	uint64_t now = iod_daemon_now(d);

	if (d->phase == IOD_PHASE_SERVE)
		iod_start_report_pinning(d);
	iod_client_check_stalled(d, now);
	iod_patience_check(d, now);
	report_changed(d);
	report_stalls(d);
	iod_start_listen_again(d);
	iod_scrape_listen_again(d->scrape);
	(void)sd_event_source_set_time(source, usec + TIMER_USEC);
	return 0;
}

static int on_stop(sd_event_source *source, const struct signalfd_siginfo *si, void *data)
{
	struct iod_daemon *d = data;

	(void)source;
	iod_event_log(LOG_LEVEL_INFO, IOD_EVENT_STOPPING, NULL,
		      "stopping on %s with %u clients; the next start is cold, unless the service "
		      "manager restarts us",
		      strsignal((int)si->ssi_signo), d->n_clients);
	iod_notify_stopping("stopping");
	return sd_event_exit(d->event, 0);
}

static int on_hangup(sd_event_source *source, const struct signalfd_siginfo *si, void *data)
{
	(void)source;
	(void)si;
	iod_reload(data);
	return 0;
}

static int add_signal(struct iod_daemon *d, int signo, sd_event_signal_handler_t handler)
{
	return sd_event_add_signal(d->event, NULL, signo | SD_EVENT_SIGNAL_PROCMASK, handler, d);
}

static int make_loop(struct iod_daemon *d)
{
	int r = sd_event_new(&d->event);

	if (r >= 0)
		r = add_signal(d, SIGTERM, on_stop);
	if (r >= 0)
		r = add_signal(d, SIGINT, on_stop);
	if (r >= 0)
		r = add_signal(d, SIGHUP, on_hangup);
	if (r >= 0)
		r = sd_event_set_watchdog(d->event, true);
	if (r >= 0)
		r = sd_event_add_defer(d->event, &d->pump_source, on_pump, d);
	if (r >= 0)
		r = sd_event_source_set_enabled(d->pump_source, SD_EVENT_OFF);
	if (r >= 0)
		r = sd_event_add_time_relative(d->event, &d->timer_source, CLOCK_MONOTONIC,
					       TIMER_USEC, 0, on_timer, d);
	if (r >= 0)
		r = sd_event_source_set_enabled(d->timer_source, SD_EVENT_ON);
	return r;
}

/* ---- construction ---------------------------------------------------------------------------- */

static int open_listener(struct iod_daemon *d, struct err *err)
{
	int r;

	if (d->options->embedded_fd > 0)
		return 0;
	r = iod_passed_open(&d->passed, err);
	if (r < 0)
		return r;
	iod_keep_take(d);
	r = iod_scrape_open(d, err);
	if (r < 0)
		return r;
	r = iod_listener_inherit(&d->listener, &d->passed, err);
	if (r != 0)
		return r < 0 ? r : 0;
	if (!d->options->socket)
		return err_set(err, ERR_USAGE,
			       "no socket to serve: give --socket PATH (or start k3-iod.socket)");
	return iod_listener_bind(&d->listener, d->options->socket, err);
}

/* From the catalog that an earlier start has saved, where there is a place for it. */
static int open_source(struct iod_daemon *d, const struct source_want *want, struct err *err)
{
	const char *dir = d->options->state_dir;
	char note[400];
	int r;

	if (!dir && d->options->embedded_fd == 0)
		dir = getenv("STATE_DIRECTORY");
	if (!dir || strchr(dir, ':'))
		return source_open(want, &d->source, err);
	r = source_open_saved(want, dir, &d->source, note, err);
	if (note[0])
		log_info("%s", note);
	else if (r == 0 && d->source->saved)
		log_debug("the catalog is that of an earlier start, saved in %s", dir);
	return r;
}

static int open_model(struct iod_daemon *d, struct err *err)
{
	const struct iod_options *o = d->options;
	struct source_want want = {
		.model_dirs = o->model.items,
		.n_model_dirs = (uint32_t)o->model.n,
		.config_path = o->config,
		.trunk_paths = o->trunk.items,
		.n_trunk_paths = (uint32_t)o->trunk.n,
		.max_layers = (uint32_t)o->layers,
		.tile_bytes = o->tile,
	};
	struct iod_handout_want handout = {
		.config_path = o->config,
		.tokenizer_dir = o->tok,
		.model_dirs = o->model.items,
		.n_model_dirs = o->model.n,
	};
	int r;

	if (o->model.n == 0)
		return err_set(err, ERR_USAGE, "no model: give --model DIR");
	r = open_source(d, &want, err);
	if (r < 0)
		return r;
	r = iod_checks_open(&d->checks, d, err);
	if (r < 0)
		return r;
	handout.source = d->source;
	return iod_handout_open(&d->handout, &handout, err);
}

static int make_memory(struct iod_daemon *d, struct err *err)
{
	int r = iod_budget_plan(d->options, d->source, &d->tuning, d->keep.slab_fd, &d->plan, err);

	if (r < 0)
		return r;
	r = iod_trunk_new(&d->trunk, d->source, d->plan.pinned_size);
	if (r < 0)
		return err_set(err, ERR_NO_MEMORY, "no memory for %u tile records",
			       d->plan.n_tiles);
	slab_plan_set_pinned(&d->plan, d->trunk->pinned_size);
	d->plan.lock = memlock_parse(d->options->lock);
	r = d->plan.lock == MEMLOCK_YES ? memlock_check(d->plan.total_size, err) : 0;
	if (r == 0)
		r = iod_keep_sign_plan(d, err);
	if (r == 0)
		r = iod_keep_make_slab(d, err);
	if (r < 0)
		return r;
	return iod_handout_add_slab(&d->handout, d->slab, err);
}

static void prepare_memory(void *data, uint8_t *at, uint64_t size)
{
	slab_fault_at(data, at, size);
}

static int make_reader(struct iod_daemon *d, struct err *err)
{
	struct iod_reader_settings settings;

	int r;

	iod_options_reader(d->options, &d->tuning, &settings);
	settings.prepare = prepare_memory;
	settings.prepare_data = d->slab;
	settings.alive_fd = iod_keep_make_pipe(d);
	r = iod_reader_new(&d->reader, d->event, d->source, d->slab->base, d->slab->size, &settings,
			   err);
	if (r < 0 && settings.alive_fd > 0)
		(void)fd_close(settings.alive_fd);
	return r;
}

static int set_up(struct iod_daemon *d, struct err *err)
{
	int r = make_loop(d);

	if (r < 0)
		return err_set(err, ERR_UNSUPPORTED, "setting up the event loop: %s",
			       fd_strerror(-r));
	d->start_usec = iod_daemon_now(d);
	r = iod_tune_read(d->options, &d->tuning, err);
	/* the socket first: a second daemon must fail before it takes memory */
	if (r == 0)
		r = open_listener(d, err);
	if (r == 0)
		r = iod_access_init(&d->access, &d->options->allow_group, NULL, err);
	if (r == 0)
		r = open_model(d, err);
	if (r == 0)
		r = make_memory(d, err);
	if (r == 0)
		r = make_reader(d, err);
	if (r == 0 && d->options->record_trace)
		r = iod_recorder_new(&d->recorder, d->source, d->options->record_trace, err);
	if (r == 0 && d->options->timeline)
		r = iod_timeline_new(&d->timeline, d, d->options->timeline,
				     d->options->embedded_fd == 0, err);
	if (r < 0)
		return r;
	r = iod_trunk_start(d->trunk, d->slab, d->reader, &d->checks, &d->metrics, on_tile_changed,
			    d);
	if (r == 0)
		r = iod_experts_new(&d->experts, d, iod_policy_find(d->options->policy));
	if (r == 0)
		r = iod_rides_init(d);
	if (r == 0)
		r = iod_rows_new(&d->rows, d);
	if (r == 0)
		r = iod_keep_start(d);
	if (r == 0)
		r = iod_start_begin(d);
	if (r < 0)
		return err_set(err, ERR_NO_MEMORY, "setting up the daemon: %s", fd_strerror(-r));
	return 0;
}

int iod_daemon_new(struct iod_daemon **ret, const struct iod_options *options, struct err *err)
{
	CLEANUP(iod_daemon_freep) struct iod_daemon *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return err_set(err, ERR_NO_MEMORY, "no memory for the daemon's record");
	d->options = options;
	d->io_timeout = options->io_timeout;
	d->lease_limit = options->lease_limit;
	iod_quota_set(&d->quota, options);
	d->is_verbose = options->verbose;
	list_init(&d->clients);
	iod_listener_init(&d->listener);
	iod_keep_init(&d->keep, d);
	iod_handout_init(&d->handout);
	r = set_up(d, err);
	if (r < 0) {
		iod_listener_turn_away(&d->listener, err);
		return r;
	}
	*ret = TAKE(d);
	return 0;
}

struct iod_daemon *iod_daemon_free(struct iod_daemon *d)
{
	struct err err = { 0 };
	struct list *at, *next;

	if (!d)
		return NULL;
	/* nothing may land any more when what it lands in goes */
	d->reader = iod_reader_free(d->reader);
	if (iod_timeline_finish(d->timeline, &err) != 0)
		log_warning("%s", err.text);
	list_foreach_safe (at, next, &d->clients) {
		struct iod_client *c = list_entry(at, struct iod_client, link);

		iod_rows_end(c);
		iod_record_end(d->recorder, c);
		iod_client_free(c);
	}
	iod_rides_deinit(d);
	iod_rows_free(d->rows);
	iod_experts_free(d->experts);
	iod_recorder_free(d->recorder);
	iod_handout_deinit(&d->handout);
	slab_free(d->slab);
	iod_keep_deinit(&d->keep);
	iod_passed_deinit(&d->passed);
	iod_trunk_free(d->trunk);
	iod_checks_close(&d->checks);
	source_free(d->source);
	tuning_deinit(&d->tuning);
	iod_scrape_free(d->scrape);
	iod_listener_deinit(&d->listener);
	(void)sd_event_source_disable_unref(d->listen_source);
	(void)sd_event_source_disable_unref(d->start_source);
	(void)sd_event_source_disable_unref(d->timer_source);
	(void)sd_event_source_disable_unref(d->pump_source);
	(void)sd_event_unref(d->event);
	free(d);
	return NULL;
}

void iod_daemon_freep(struct iod_daemon **d)
{
	*d = iod_daemon_free(*d);
}

int iod_daemon_run(struct iod_daemon *d)
{
	return sd_event_loop(d->event);
}
