#pragma once
/*
 * The daemon: everything it owns, in the order in which it is made. One thread, one loop. State
 * changes wake the pump, which runs once a turn and serves whoever can be served.
 */
#include <stdbool.h>
#include <stdint.h>

#include <systemd/sd-event.h>

#include "iod/access.h"
#include "iod/checks.h"
#include "iod/experts.h"
#include "iod/handout.h"
#include "iod/journal.h"
#include "iod/keep.h"
#include "iod/listener.h"
#include "iod/metrics.h"
#include "iod/options.h"
#include "iod/read/read.h"
#include "iod/ride.h"
#include "iod/rows.h"
#include "iod/scrape.h"
#include "iod/trunk.h"
#include "shared/attr.h"
#include "shared/catalog.h"
#include "shared/list.h"
#include "shared/slab.h"
#include "shared/tuning.h"

enum iod_phase {
	IOD_PHASE_MEMORY, /* as much of the slab is made resident as must be */
	IOD_PHASE_PROBE,  /* one tile is read */
	IOD_PHASE_SERVE,  /* READY: clients are let in; the rest of the slab follows, a piece a
			     turn, and pinned tiles still load */
};

struct iod_daemon {
	const struct iod_options *options; /* borrowed: as at the start */
	int argc;                          /* set by main, borrowed: what a reload reads again */
	char **argv;
	/* of the options that a reload may change */
	uint64_t io_timeout;   /* seconds */
	uint64_t lease_limit;  /* seconds; 0: none */
	uint64_t refused_usec; /* when a client was last told BUSY; 0: never */
	bool is_verbose;
	sd_event *event;
	struct iod_access access;
	struct iod_quota quota;
	struct iod_passed passed;
	struct iod_listener listener;
	struct iod_scrape *scrape; /* NULL: nobody asked for it */
	struct source *source;
	struct iod_checks checks;
	struct slab_plan plan;
	struct iod_trunk *trunk;
	struct iod_keep keep;
	struct slab *slab;
	struct tuning tuning; /* of the reader's devices */
	struct iod_reader *reader;
	struct iod_metrics metrics;
	struct iod_rides rides;
	struct iod_experts *experts;
	struct iod_rows *rows;
	struct iod_timeline *timeline; /* NULL: off */
	struct iod_recorder *recorder; /* NULL: off */
	struct iod_handout handout;
	struct list clients; /* struct iod_client.link */
	uint32_t n_clients;  /* connections that are not dead */
	uint32_t n_open;     /* of them, those with a WELCOME */
	uint32_t last_number;

	enum iod_phase phase;
	sd_event_source *pump_source, *start_source, *timer_source, *listen_source;
	bool is_change_told;  /* a file has changed, which is logged */
	bool is_resident;     /* all of the slab, and registered as far as it can be */
	bool is_pinned_told;  /* the line "all pinned" is printed */
	uint64_t start_usec;  /* CLOCK_MONOTONIC */
	uint64_t status_usec; /* when the last status went out */
	/* complaints: a few a second, the rest counted */
	uint64_t complain_usec;
	uint32_t n_complaints, n_unprinted;
};

/* Make everything up to the loop. Errors are sentences for main. */
int iod_daemon_new(struct iod_daemon **ret, const struct iod_options *options, struct err *err);
struct iod_daemon *iod_daemon_free(struct iod_daemon *d);
void iod_daemon_freep(struct iod_daemon **d);
/* Until a signal or the end of the embedded connection: the exit code. */
int iod_daemon_run(struct iod_daemon *d);

/* Something changed: the pump runs in this turn or the next. */
void iod_daemon_wake(struct iod_daemon *d);
/* Microseconds of CLOCK_MONOTONIC when this turn of the loop began. */
uint64_t iod_daemon_now(const struct iod_daemon *d);
