#pragma once
/*
 * Is a checkpoint what it should be? Without deep: each shard's header and size, against a manifest
 * where there is one, whether anything is missing, and whether checksums and trunk file belong to
 * it. With deep: every byte, against the sidecar of checksums, the trunk file's own and the
 * manifest's SHA-256. Goes on after a fault. Called by cmd_verify.c; never logs.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"

struct iod_verify_want {
	const char *const *model_dirs;
	uint32_t n_model_dirs;
	const char *config_path;        /* may be NULL */
	const char *const *trunk_paths; /* of one set */
	uint32_t n_trunk_paths;
	const char *sums_path;     /* NULL: looked for */
	const char *manifest_path; /* may be NULL */
	const char *journal_path;  /* NULL: beside the checksums, or where they would be */
	uint32_t max_layers;
	uint64_t rate; /* bytes a second at most; 0: no bound */
	bool is_deep;
	/* a line for people; what: borrowed for good */
	void (*progress)(void *data, const char *what, uint64_t done, uint64_t total);
	void (*fault)(void *data, const char *sentence);
	void (*note)(void *data, const char *sentence);
	void *data;
};

struct iod_verify_result {
	uint64_t n_files, file_bytes; /* shards looked at */
	uint64_t n_faults;
	uint64_t checked_bytes; /* deep: read and compared with a checksum of any kind */
	uint64_t unchecked_bytes;
};

/* 0 when the work could be done: faults are in *ret. Errors: usage, config, memory. */
int iod_verify(const struct iod_verify_want *want, struct iod_verify_result *ret, struct err *err);
