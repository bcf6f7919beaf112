#pragma once
/*
 * Which files a checkpoint consists of. With a model.safetensors.index.json the shards are those
 * that its weight_map names (a directory may hold leftovers of another numbering); without one they
 * are all *.safetensors of all directories. Called by source.c.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/config.h"
#include "shared/err.h"

/* What an index puts into a shard. */
struct shards_content {
	uint8_t layers[CONFIG_LAYERS_MAX / 8]; /* a bit each */
	bool is_known;                         /* there is an index that says it */
	bool has_others;                       /* tensors that belong to no layer */
};

struct shards {
	char **paths; /* owned; in the order of their names, each file once */
	uint32_t n_paths;
	char **absent; /* owned; names in an index that are in no directory; without an index those
			  that are left out between model-00001-of-N and model-N-of-N */
	struct shards_content *absent_content; /* owned; [n_absent] */
	uint32_t n_absent;
	char *index_path; /* owned; NULL when no directory has an index */
};

/* Look through the directories. ERR_CHECKPOINT when there is no shard at all, a directory cannot be
 * read, or an index is not understood. */
int shards_find(const char *const *dirs, uint32_t n_dirs, struct shards *ret, struct err *err);
void shards_deinit(struct shards *s);
bool shards_content_has(const struct shards_content *c, uint32_t layer);
