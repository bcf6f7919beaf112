#pragma once
/*
 * Routing traces: which experts a model asked for, in order. Read from
 *
 *   JSON lines   {"tok": N, "layers": [[ids of a layer], ...]}, a token each, every line with the
 *                same number of layers. k3 run --dump-cache-trace DIR writes DIR/trace.jsonl so.
 *   int32 pairs  (layer, expert), little-endian, nothing else. A lower layer begins a new step; a
 *                token is as many pairs as there are layers in the file times top_k.
 */
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"

struct iod_routing_ask {
	uint32_t client; /* 0 as read */
	uint32_t step;   /* from 0; what goes through the layers together */
	uint32_t token;  /* from 0 for each client */
	uint32_t layer;
	uint32_t number; /* layer * n_ids + id */
};

struct iod_routing {
	struct iod_routing_ask *asks;
	size_t n;
	uint32_t n_steps, n_tokens, n_layers, n_ids;
	uint32_t n_distinct_layers; /* with any expert */
};

/* path: a file, or a directory with trace.jsonl. Free with iod_routing_deinit, also after a
 * failure. ERR_IO, ERR_USAGE (what the file has wrong, with its place), ERR_NO_MEMORY. */
int iod_routing_read(struct iod_routing *ret, const char *path, uint32_t top_k, struct err *err);
/* Cut the steps into n_clients equal runs and let them go side by side, a layer of each in turn.
 * ERR_USAGE: fewer steps than clients. */
int iod_routing_split(struct iod_routing *r, uint32_t n_clients, struct err *err);
void iod_routing_deinit(struct iod_routing *r);
/* The asks from `at` on that one client makes together: of one step and layer. */
size_t iod_routing_group(const struct iod_routing *r, size_t at);
