#pragma once
/*
 * Writing a random checkpoint in the released layout: one shard a layer and one of globals; in each
 * F32, then BF16, then U8 tensors, each group sorted by name, so that experts lie in lexicographic
 * order. Called by cmd_synth.c and by tests; never logs.
 */
#include <stdint.h>

#include "shared/err.h"

struct iod_synth_want {
	const char *out; /* a directory: made, or empty */
	const char *config_json;
	uint64_t config_size;
	uint64_t seed;
	void (*progress)(void *data, uint64_t done, uint64_t total); /* bytes; may be NULL */
	void *data;
};

/* On failure what was written is removed again. *ret_size: bytes of all shards. */
int iod_synth(const struct iod_synth_want *want, uint64_t *ret_size, struct err *err);
