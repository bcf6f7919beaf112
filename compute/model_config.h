#pragma once
/* config.json of a model's directories, for commands that open nothing else of it. */
#include "shared/config.h"
#include "shared/err.h"
#include "shared/option.h"

/* Read and parse path, or with NULL the config.json of the first of dirs that has one. */
int k3_config_read(const struct option_list *dirs, const char *path, struct config *ret,
		   struct err *err);
