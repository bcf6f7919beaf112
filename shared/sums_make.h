#pragma once
/* Inside of sums*.c only. */
#include "shared/sums.h"

/* Empty tables for n_layers layers and the head; negative without memory. */
int sums_make(const struct source *s, uint32_t n_layers, struct sums **ret);
