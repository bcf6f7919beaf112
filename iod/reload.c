#include "iod/reload.h"

#include <stdio.h>
#include <string.h>

#include "iod/daemon.h"
#include "iod/journal.h"
#include "iod/notify.h"
#include "iod/tune.h"

enum { WORDS_MAX = 1200 };

/* ---- what may change: each says in said what it changed, "" for nothing -------------------- */

static int apply_tuning(struct iod_daemon *d, const struct iod_options *o, char *said, size_t size,
			struct err *err)
{
	struct iod_reader_settings settings;
	struct tuning fresh;
	int r = iod_tune_read(o, &fresh, err);

	if (r == 0) {
		iod_options_reader(o, &fresh, &settings);
		r = iod_reader_retune(d->reader, &settings, said, size, err);
	}
	if (r < 0) {
		tuning_deinit(&fresh);
		return r;
	}
	tuning_deinit(&d->tuning);
	d->tuning = fresh;
	return 0;
}

static int apply_io_timeout(struct iod_daemon *d, const struct iod_options *o, char *said,
			    size_t size, struct err *err)
{
	(void)err;
	if (o->io_timeout != d->io_timeout)
		(void)snprintf(said, size, "io-timeout %u instead of %u", (unsigned)o->io_timeout,
			       (unsigned)d->io_timeout);
	d->io_timeout = o->io_timeout;
	return 0;
}

static int apply_quota(struct iod_daemon *d, const struct iod_options *o, char *said, size_t size,
		       struct err *err)
{
	struct iod_quota fresh;

	(void)err;
	iod_quota_set(&fresh, o);
	if (memcmp(&fresh, &d->quota, sizeof(fresh)) != 0)
		(void)snprintf(said, size,
			       "for new clients: max-clients %u, client-tiles %u, client-experts "
			       "%u, client-hints %u",
			       fresh.clients, fresh.tiles, fresh.experts, fresh.hints);
	d->quota = fresh;
	return 0;
}

static int apply_lease_limit(struct iod_daemon *d, const struct iod_options *o, char *said,
			     size_t size, struct err *err)
{
	(void)err;
	if (o->lease_limit != d->lease_limit)
		(void)snprintf(said, size, "lease-limit %u instead of %u", (unsigned)o->lease_limit,
			       (unsigned)d->lease_limit);
	d->lease_limit = o->lease_limit;
	return 0;
}

static int apply_verbose(struct iod_daemon *d, const struct iod_options *o, char *said, size_t size,
			 struct err *err)
{
	(void)err;
	if (o->verbose != d->is_verbose)
		(void)snprintf(said, size, "verbose %s", o->verbose ? "on" : "off");
	d->is_verbose = o->verbose;
	log_init("k3-iod", o->verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
	return 0;
}

/* A new one: its options and its function here. Those that may refuse come first. */
static const struct {
	const char *options; /* names with spaces around them */
	int (*apply)(struct iod_daemon *d, const struct iod_options *o, char *said, size_t size,
		     struct err *err);
} changeable[] = {
	{ " queue-depth chunk profile ", apply_tuning },
	{ " allow-group ", NULL }, /* looked up before anything changes: iod_reload */
	{ " io-timeout ", apply_io_timeout },
	{ " max-clients client-tiles client-experts client-hints ", apply_quota },
	{ " lease-limit ", apply_lease_limit },
	{ " verbose ", apply_verbose },
};

/* ---- all of it ----------------------------------------------------------------------------- */

static bool may_change(const char *name)
{
	char word[80];

	(void)snprintf(word, sizeof(word), " %s ", name);
	for (size_t i = 0; i < N_ELEMENTS(changeable); i++) {
		if (strstr(changeable[i].options, word))
			return true;
	}
	return false;
}

static void append(char *text, const char *word)
{
	size_t len = strlen(text);

	(void)snprintf(text + len, WORDS_MAX - len, "%s%s", len ? "; " : "", word);
}

static int apply_all(struct iod_daemon *d, const struct iod_options *o, char *changes,
		     struct err *err)
{
	for (size_t i = 0; i < N_ELEMENTS(changeable); i++) {
		char said[WORDS_MAX / 2] = "";
		int r = changeable[i].apply ? changeable[i].apply(d, o, said, sizeof(said), err)
					    : 0;

		if (r < 0)
			return r;
		if (said[0])
			append(changes, said);
	}
	return 0;
}

/* The options that differ from those of the start and stay as they are. */
static void find_fixed(const struct iod_daemon *d, const struct iod_options *o, char *names)
{
	for (size_t i = 0; i < iod_option_program.n_options; i++) {
		const struct option *row = &iod_option_program.options[i];

		if (!may_change(row->name) && !option_is_equal(row, d->options, o))
			append(names, row->name);
	}
}

static void log_result(const char *changes, const char *fixed)
{
	iod_event_log(LOG_LEVEL_INFO, IOD_EVENT_RELOADED, NULL, "configuration read again: %s",
		      changes[0] ? changes : "nothing changes");
	if (fixed[0])
		iod_event_log(LOG_LEVEL_WARNING, IOD_EVENT_RELOADED, NULL,
			      "not without a restart: %s", fixed);
}

void iod_reload(struct iod_daemon *d)
{
	char changes[WORDS_MAX] = "", fixed[WORDS_MAX] = "";
	struct iod_access groups;
	struct iod_options o;
	struct err err = { 0 };
	int r;

	iod_notify_reloading();
	r = iod_options_parse(&o, d->argc, d->argv, &err);
	if (r == 0)
		r = iod_access_init(&groups, &o.allow_group, &d->access, &err);
	if (r == 0)
		r = apply_all(d, &o, changes, &err);
	if (r == 0) {
		if (memcmp(&groups, &d->access, sizeof(groups)) != 0)
			append(changes, "allow-group for new connections");
		d->access = groups;
		find_fixed(d, &o, fixed);
		log_result(changes, fixed);
	} else {
		iod_event_log(LOG_LEVEL_ERROR, IOD_EVENT_RELOADED, NULL,
			      "the configuration is not taken, all stays as it was: %s", err.text);
	}
	/* A start that is not over yet reports itself. */
	if (d->phase == IOD_PHASE_SERVE)
		iod_notify_ready(r == 0 ? "serving" : "serving; the last reload was refused");
}
