#pragma once
/*
 * Embedded mode: a private k3-iod, started over a socketpair. It reads for this process alone and
 * ends when the connection does, or when this process dies.
 */
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"
#include "shared/option.h"

struct k3_embedded;

/* Options handed to the daemon as they are; all borrowed. NULL and 0: not given. */
struct k3_embedded_settings {
	const struct option_list *model_dirs, *trunk;
	const char *config, *tok, *backend, *direct, *policy, *huge_pages, *profile, *timeline;
	const char *sums, *lock;
	bool verify_reads;
	double trunk_gb, cache_gb;     /* 10^9 bytes */
	double disk_rate, memory_rate; /* 10^9 bytes a second; 0: not known */
	const struct option_list *queue_depth, *chunk;
	uint64_t tile, layers;
	const cpu_set_t *cpus; /* that it may use; NULL: those of the calling thread */
};

/* Start it. *ret_fd: our end of the connection, the caller's. ERR_UNSUPPORTED when no k3-iod is
 * found: $K3_IOD, beside this program, ../iod/k3-iod from it (a build tree), then PATH. */
int k3_embedded_start(struct k3_embedded **ret, const struct k3_embedded_settings *settings,
		      int *ret_fd, struct err *err);
/* The connection is closed: wait for the daemon's end (bounded, then SIGKILL), free. Returns its
 * exit code; 128 + n for a signal n. */
int k3_embedded_finish(struct k3_embedded *e);
void k3_embedded_freep(struct k3_embedded **e);
