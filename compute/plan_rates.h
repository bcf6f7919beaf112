#pragma once
/* The rates of a plan from a command line: --disk-rate, --memory-rate, --measure. */
#include "compute/options.h"
#include "compute/plan.h"

/* ERR_USAGE when options contradict each other, ERR_IO when nothing could be measured. */
int k3_plan_rates_find(struct k3_plan_rates *ret, const struct k3_command_line *line,
		       struct err *err);
/* What a vocabulary takes in memory that has not been opened. */
uint64_t k3_plan_vocabulary_size(const struct config *c);
