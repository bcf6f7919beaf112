#pragma once
/*
 * --verify-reads: what was read is compared with its checksums before anyone may use it. Tiles
 * against the trunk file's own or the sidecar (shared/sums.h), experts and rows of the embedding
 * against the sidecar. Whoever reads tries once more after a mismatch, then tells those who wait.
 * While the option is off, everything passes.
 */
#include <stdint.h>

#include "iod/options.h"
#include "shared/catalog.h"
#include "shared/sums.h"

struct iod_daemon;

struct iod_checks {
	struct iod_daemon *daemon;   /* borrowed */
	const struct source *source; /* borrowed */
	struct sums *sums;           /* owned; NULL: the option is off */
};

/* Find and load the sidecar when the option is on. ERR_CHECKPOINT, ERR_USAGE with the remedy. */
int iod_checks_open(struct iod_checks *c, struct iod_daemon *d, struct err *err);
void iod_checks_close(struct iod_checks *c);

/* 0, or a negative errno with the sentence: file, tensor and bytes. bytes: where it was read to. */
int iod_checks_tile(const struct iod_checks *c, uint32_t tile, const uint8_t *bytes,
		    struct err *err);
int iod_checks_expert(const struct iod_checks *c, uint32_t layer, uint32_t expert,
		      const uint8_t *bytes, struct err *err);
int iod_checks_row(const struct iod_checks *c, uint32_t row, const uint8_t *bytes, struct err *err);
/* Log that a mismatch is read once more. */
void iod_checks_tell_again(const struct iod_checks *c, const struct err *err);
