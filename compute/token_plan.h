#pragma once
/*
 * What a decode step uses and reads under a memory plan, and how long it should take. Pure
 * arithmetic over the plan and two rates; where an assumption enters, its source is in
 * token_plan.c and docs/planning.md.
 */
#include <stdint.h>

#include "compute/memplan.h"
#include "shared/config.h"

/* Bytes per second. */
struct k3_rates {
	double disk;   /* of all devices together, as the engine reads */
	double memory; /* plain read by all compute threads together */
};

struct k3_token_want {
	const struct config *config;   /* borrowed */
	const struct k3_memplan *plan; /* borrowed: budgets and sizes */
	struct k3_rates rates;
	uint32_t n_sequences; /* rows of a client's step; 0: 1 */
	uint32_t n_clients;   /* in phase, so that they share a sweep; 0: 1 */
	double hit_rate;      /* of the expert cache; < 0: estimated */
};

/* Of one step, which gives every sequence of every client a token. */
struct k3_token_plan {
	uint32_t n_tokens;
	uint64_t layers_used, head_used, experts_used, rows_used; /* bytes of weights computed on */
	uint64_t trunk_read, experts_read;                        /* bytes from disk */
	double hit_rate;
	double disk_seconds, compute_seconds; /* each alone */
	double seconds;                       /* of the step */
	double fill_seconds;                  /* once: the pinned part of the trunk from disk */
};

void k3_token_plan_make(const struct k3_token_want *want, struct k3_token_plan *ret);
