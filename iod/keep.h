#pragma once
/*
 * What outlives the daemon: the slab, left with the service manager, so that a restart begins with
 * pinned tiles and experts in memory.
 *
 *   daemon 1   slab ──FDSTORE──► manager        killed; its reads in flight land for a while yet
 *              pipe: read end ──► manager       write end only in the ring: hangs up after the last
 *   daemon 2   gets both: keeps what is READY, leaves alone what is LOADING until the pipe hangs
 * up, then these places are EMPTY; adds a pipe of its own
 *
 * The ids of all pipes that have not hung up stand in the slab (struct slab_pipes): a slab is kept
 * only when each of them was passed along, so a message that the manager never got costs a cold
 * start and no wrong byte. What is not as this daemon would have made it (another model, plan or
 * version, changed files, an impossible directory) is dropped as a whole; the new slab is filled
 * after the hang-up, so that memory is never taken twice.
 */
#include <stdbool.h>
#include <stdint.h>

#include <systemd/sd-event.h>

#include "iod/passed.h"
#include "shared/slab.h"

struct iod_daemon;

/* Set to anything: an earlier daemon's reads are not waited for. For the test that shows why they
 * are. */
#define IOD_KEEP_HASTE_VARIABLE "K3_IOD_TEST_NO_DRAIN"

struct iod_keep_pipe {
	struct iod_keep *keep; /* borrowed: its owner */
	int fd;                /* owned; the read end; -1: hung up */
	uint64_t id;
	const char *name; /* borrowed from passed */
	sd_event_source *source;
};

struct iod_keep {
	struct iod_daemon *daemon;                  /* borrowed */
	struct iod_keep_pipe pipes[SLAB_PIPES_MAX]; /* of earlier daemons */
	uint32_t n_pipes, n_open;
	int slab_fd;        /* owned; as passed, until it is looked at; -1 */
	uint32_t n_waiting; /* tiles and slots that were LOADING */
	int own_pipe;       /* owned; the read end of ours, until the manager has it; -1 */
	bool is_adopted;    /* the slab is an earlier daemon's */
};

void iod_keep_init(struct iod_keep *k, struct iod_daemon *d);
void iod_keep_deinit(struct iod_keep *k);

/* Take what is the slab's out of d->passed. */
void iod_keep_take(struct iod_daemon *d);
/* The plan's digest: what must be equal for bytes to lie in the same places. Before the slab. */
int iod_keep_sign_plan(struct iod_daemon *d, struct err *err);
/* d->slab: the one that was passed, when it can be kept, else a new one. */
int iod_keep_make_slab(struct iod_daemon *d, struct err *err);
/* The write end of a new pipe for the reader (iod_reader_settings.alive_fd); 0: a restart will be
 * cold, which was said. */
int iod_keep_make_pipe(struct iod_daemon *d);
/* Reader, tiles and experts exist: take over what lies in a kept slab, leave slab and pipe with the
 * manager, watch the pipes of earlier daemons. */
int iod_keep_start(struct iod_daemon *d);
/* A slab that was dropped may still be written to: its memory has not gone yet. */
bool iod_keep_is_draining(const struct iod_daemon *d);

/* keep_check.c: is the directory of a kept slab one that a daemon can have left? ERR_STALE. */
int iod_keep_check_directory(const struct iod_daemon *d, struct err *err);
