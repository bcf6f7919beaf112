#pragma once
/* What k3-store replay found, and how it is shown. */
#include <stdbool.h>
#include <stdio.h>

#include "iod/store/replay.h"

enum { IOD_REPLAY_SIZES = 64 };
enum iod_replay_row {
	IOD_REPLAY_LRU,
	IOD_REPLAY_DEFAULT,
	IOD_REPLAY_BELADY,
	IOD_REPLAY_PINNED,
	IOD_REPLAY_ROWS
};

struct iod_replay_table {
	const char *path;
	const struct iod_routing *routing; /* borrowed */
	uint32_t slots[IOD_REPLAY_SIZES];
	double gb[IOD_REPLAY_SIZES]; /* 0: the size was given in slots */
	size_t n;
	uint32_t n_clients, warm;
	uint64_t expert_bytes;
	struct iod_replay found[IOD_REPLAY_ROWS][IOD_REPLAY_SIZES];
};

/* From 0 to 1. */
double iod_replay_rate(const struct iod_replay *x);
/* Bytes read for a token of one client, after the warm-up. */
double iod_replay_bytes(const struct iod_replay_table *t, const struct iod_replay *x);
void iod_replay_print(const struct iod_replay_table *t, FILE *out);
/* Failures of out are the caller's to notice (ferror). */
void iod_replay_print_json(const struct iod_replay_table *t, FILE *out);
void iod_replay_plot(const struct iod_replay_table *t, FILE *out); /* SVG */
