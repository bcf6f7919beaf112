#pragma once
/* What the size of a private daemon's ring depends on (shared/ring_size.h): depths, chunks and
 * rates from options and profile, and the memory's rate, measured where it counts. */
#include "compute/memplan.h"
#include "compute/options.h"

/* Rate of the disks with the model in the profile, bytes a second; 0: it names none, or not all.
 * ERR_USAGE when the profile or an option is not understood. ret_in_flight: bytes that a daemon
 * with these options keeps in flight. */
int k3_ring_profile(const struct k3_command_line *line, double *ret_rate, uint64_t *ret_in_flight,
		    struct err *err);
/* Fill in_flight and rates of want from the options alone. */
int k3_ring_rates_find(const struct k3_command_line *line, struct k3_memplan_want *want,
		       struct err *err);
/* k3_memplan_make for a run: where the ring depends on them, disk and memory are measured for a
 * moment, unless options or profile say how fast they are. */
int k3_ring_plan(const struct k3_command_line *line, struct k3_memplan_want *want,
		 struct k3_memplan *ret, struct err *err);
