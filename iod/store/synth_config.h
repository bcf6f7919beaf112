#pragma once
/* The config.json of a random checkpoint: a base and the geometry options given on top of it. */
#include "iod/store/options.h"

/* base: JSON of the released form, or NULL for the built-in tiny one. Caller frees *ret. ERR_USAGE
 * or ERR_CONFIG. */
int iod_synth_config(const struct iod_store_line *line, const char *base, uint64_t base_size,
		     char **ret, struct err *err);
