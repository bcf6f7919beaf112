#pragma once
/*
 * --cpus: lists of CPUs as the kernel writes them ("0-3,8"), and keeping to one. A list narrows
 * what the affinity mask allows (which knows cpusets already) and never widens it. A thread stays
 * inside the list but is not tied to one CPU of it: when a neighbour takes one, the others must be
 * free to go where there is room.
 */
#include <sched.h>
#include <stddef.h>

#include "shared/err.h"

enum { K3_CPU_LIST_MAX = 256 }; /* bytes of a list as text; a longer one ends in "..." */

/* The calling thread, and all that it starts from now on, keep to these CPUs. NULL: as it is.
 * ERR_USAGE when it is no list, or names a CPU that is not allowed: then nothing has changed.
 * ret_before (may be NULL): what was allowed before, with a list alone. */
int k3_cpus_use(const char *list, cpu_set_t *ret_before, struct err *err);
/* What the affinity mask of the calling thread allows, as a list. */
void k3_cpus_text(char text[K3_CPU_LIST_MAX]);
