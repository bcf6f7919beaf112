#pragma once
/* Depth and chunk of each device, from the options and the profile that they name. */
struct err;
struct iod_options;
struct tuning;

/* ret: freed with tuning_deinit, also after an error. ERR_USAGE. */
int iod_tune_read(const struct iod_options *o, struct tuning *ret, struct err *err);
