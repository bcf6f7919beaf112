#pragma once
/* Presets of the two memory budgets. */
#include <stdint.h>
#include <stdio.h>

struct k3_preset {
	const char *name;
	double trunk_gb, cache_gb; /* auto: decided by the plan */
	const char *sentence;
};

/* NULL when there is none of that name. auto is one: its numbers are not used. */
const struct k3_preset *k3_preset_find(const char *name);
void k3_preset_print(FILE *out);
