#pragma once
/*
 * The experts that clients ask for, recorded as k3-store replay reads them: a line of JSON for each
 * step of a client, {"client": N, "step": N, "layers": [[ids of the first MoE layer, ascending],
 * ...]}. A step is written when the next begins, or when the client or the daemon goes; a layer
 * that it did not reach is empty. A step of several rows is one line with each expert once. Of each
 * client one step is kept in memory; a file of IOD_RECORD_SIZE_MAX bytes ends the recording.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"

#define IOD_RECORD_SIZE_MAX (1ull << 30)

struct iod_client;
struct iod_recorder;
struct source;

/* A client's step under way; zeroed: none. */
struct iod_record {
	uint64_t *asked; /* a bit for each expert of all layers; NULL: nothing yet. Owned */
	uint32_t n_steps;
	bool is_begun;
};

/* source: borrowed. */
int iod_recorder_new(struct iod_recorder **ret, const struct source *source, const char *path,
		     struct err *err);
struct iod_recorder *iod_recorder_free(struct iod_recorder *r);

/* All take a recorder of NULL: off. The client begins a step; it asks for an expert; it has gone.
 */
void iod_record_begin(struct iod_recorder *r, struct iod_client *c);
void iod_record_ask(struct iod_recorder *r, struct iod_client *c, uint32_t number);
void iod_record_end(struct iod_recorder *r, struct iod_client *c);
