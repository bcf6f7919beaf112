#pragma once
/* The memory that this daemon will take: from options, or from what the machine allows. */
#include "iod/options.h"
#include "shared/catalog.h"
#include "shared/slab.h"
#include "shared/tuning.h"

/* ERR_BUDGET: below the least that works, or more than the machine and its control groups allow;
 * both numbers are named. kept_fd: the slab of the daemon before, whose memory can be had as well;
 * -1: none. */
int iod_budget_plan(const struct iod_options *o, const struct source *s,
		    const struct tuning *tuning, int kept_fd, struct slab_plan *ret,
		    struct err *err);
