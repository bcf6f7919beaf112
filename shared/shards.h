#pragma once
/*
 * Which files a checkpoint consists of. With a model.safetensors.index.json the shards are those
 * that its weight_map names (a directory may hold leftovers of another numbering); without one they
 * are all *.safetensors of all directories. Called by source.c.
 */
#include <stdint.h>

#include "shared/err.h"

struct shards {
	char **paths; /* owned; in the order of their names, each file once */
	uint32_t n_paths;
	char **absent; /* owned; names in an index that are in no directory */
	uint32_t n_absent;
	char *index_path; /* owned; NULL when no directory has an index */
};

/* Look through the directories. ERR_CHECKPOINT when there is no shard at all, a directory cannot be
 * read, or an index is not understood. */
int shards_find(const char *const *dirs, uint32_t n_dirs, struct shards *ret, struct err *err);
void shards_deinit(struct shards *s);
