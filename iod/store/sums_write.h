#pragma once
/* Writing the sidecar of checksums (shared/sums.h). Called by k3-store pack and k3-store verify
 * --write; never logs. */
#include <stdbool.h>
#include <stdint.h>

#include "shared/catalog.h"

struct iod_sums_want {
	struct source_want model; /* no trunk file, the usual tiles */
	const char *out;
	uint64_t rate; /* bytes a second at most; 0: no bound */
	void (*progress)(void *data, uint64_t done, uint64_t total);
	void *data;
};

struct iod_sums_result {
	uint64_t size, resumed_size; /* bytes of weights: all, and those that an earlier run read */
};

/*
 * Through OUT.partial, which is replaced every few seconds, so that a run that was killed goes on
 * from there; renamed when all is read. An expert with an impossible scale ends it: ERR_EXPERT.
 * Also ERR_IO, ERR_SPACE.
 */
int iod_sums_write(const struct iod_sums_want *want, struct iod_sums_result *ret, struct err *err);
