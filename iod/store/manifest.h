#pragma once
/*
 * A manifest of shards: a line each, fields separated by tabs: name, size in bytes, SHA-256 in hex;
 * more fields, other files than shards, and lines that begin with # are passed over.
 * deploy/k3-files.tsv is the release's.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"

struct iod_manifest_row {
	char name[128];
	uint64_t size;
	uint8_t sha256[32];
};

struct iod_manifest {
	struct iod_manifest_row *rows; /* owned */
	uint32_t n;
};

/* ERR_USAGE naming file and line. */
int iod_manifest_read(const char *path, struct iod_manifest *ret, struct err *err);
void iod_manifest_deinit(struct iod_manifest *m);
/* The row of the file that path ends with; NULL: none. */
const struct iod_manifest_row *iod_manifest_find(const struct iod_manifest *m, const char *path);

/* SHA-256 of the whole open file. -errno. progress is called with the bytes of each piece, and may
 * wait. */
int iod_manifest_hash(int fd, void (*progress)(void *data, uint64_t bytes), void *data,
		      uint8_t ret[32]);
