#pragma once
/*
 * Memory, bytes and time of a run in one view, and the same over a ladder of budgets. Shown by
 * k3 plan and k3 doctor; the memory is k3 run's own plan (memplan.h).
 */
#include <jansson.h>
#include <stdio.h>

#include "compute/cpu_list.h"
#include "compute/memplan.h"
#include "compute/token_plan.h"

enum { K3_PLAN_LADDER_MAX = 32, K3_PLAN_CONTEXT = 2048 };

/* Where a rate comes from, as a phrase: "measured", "given with --disk-rate", "assumed: ...". */
struct k3_plan_rates {
	struct k3_rates rates;
	char disk_note[256], memory_note[256];
	unsigned n_threads;         /* that compute */
	char cpus[K3_CPU_LIST_MAX]; /* on these */
	bool is_disk_assumed;
};

struct k3_plan_want {
	struct k3_memplan_want memory;
	const struct k3_plan_rates *rates; /* borrowed */
};

struct k3_plan_row {
	struct k3_memplan memory;
	struct k3_token_plan token;
};

struct k3_plan {
	struct k3_memplan_want want;
	const struct k3_plan_rates *rates; /* borrowed */
	struct k3_memplan memory;          /* filled also when it does not fit */
	struct k3_token_plan token;
	uint64_t position_bytes; /* of state for every position of a sequence */
	uint64_t state_bytes;    /* of state whatever the length */
	uint32_t n_ladder;
	struct k3_plan_row ladder[K3_PLAN_LADDER_MAX]; /* budgets that work, ascending */
};

/* ERR_BUDGET with both numbers when the run does not fit; ret is filled then, too. */
int k3_plan_make(const struct k3_plan_want *want, struct k3_plan *ret, struct err *err);
void k3_plan_print(const struct k3_plan *plan, FILE *out);
/* The same as an object; the caller's reference. */
json_t *k3_plan_json(const struct k3_plan *plan);

/* Rates: given (> 0, bytes per second) or else memory measured and the disk assumed. */
void k3_plan_rates_init(struct k3_plan_rates *ret, double disk, double memory, unsigned n_threads);
/* What of them k3 run would know: an assumed disk is none. */
void k3_plan_rates_for_ring(const struct k3_plan_rates *rates, struct ring_rates *ret);
