#pragma once
/* Files that a slip must not cost: shards, and what lies beside them. */
#include <stdbool.h>

#include "shared/option.h"

/* Is path, by whatever name, a file of the model in these directories, or one of its trunk files?
 * Files that are not there yet, and devices, are not. */
bool model_files_has(const struct option_list *dirs, const struct option_list *trunk,
		     const char *path);
