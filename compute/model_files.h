#pragma once
/* The weight files of a model by name and size, for commands that look at them from outside. */
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"
#include "shared/option.h"

struct k3_model_files {
	char **paths;    /* owned */
	uint64_t *sizes; /* owned */
	size_t n;
	uint64_t total_size;
};

/* The *.safetensors of the directories, and the trunk files. ERR_IO names what cannot be
 * listed. */
int k3_model_files_find(const struct option_list *dirs, const struct option_list *trunk,
			struct k3_model_files *ret, struct err *err);
void k3_model_files_deinit(struct k3_model_files *files);
