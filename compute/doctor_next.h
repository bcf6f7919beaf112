#pragma once
/* The command that k3 doctor ends with, as a shell takes it. */
#include <stdbool.h>
#include <stdint.h>

#include "compute/doctor.h"
#include "shared/option.h"

struct k3_next_want {
	const struct option_list *dirs, *trunk; /* borrowed */
	const char *config, *tok;               /* as given; NULL: the model's */
	unsigned n_layers;                      /* as given; 0: all */
	enum k3_checkpoint checkpoint;
	bool fits;           /* a run within this machine's memory */
	bool has_vocabulary; /* a prompt can be text */
	uint64_t trunk_size; /* of a trunk file that would pay; 0: none would */
};

/* NULL: there is none to give. Caller frees; *ret_why: static. */
char *k3_next_command(const struct k3_next_want *want, const char **ret_why);
