#pragma once
/*
 * Counting tensors that are not there, by class, so that one sentence names every class with its
 * first tensor and how many more of it are missing. Used when shards are bound (source.c) and when
 * a catalog is checked against a config (catalog.c).
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"
#include "shared/names.h"

enum { MISSING_CLASSES = ROLE_N_ + EXPERT_PARTS };

struct missing {
	uint64_t total;
	uint64_t count[MISSING_CLASSES];
	uint32_t layer[MISSING_CLASSES]; /* of the first one */
	uint32_t expert[MISSING_CLASSES];
	uint8_t is_layer_hit[CONFIG_LAYERS_MAX];
};

/* One missing tensor; layers and experts are given in ascending order. */
void missing_add(struct missing *m, enum role role, uint32_t layer);
bool missing_has_global(const struct missing *m); /* one that belongs to no layer */
void missing_add_expert(struct missing *m, uint32_t layer, uint32_t expert, enum expert_part part);

/*
 * ERR_BIND with the whole list when there is one: "WHERE: N tensors are missing, in layers 2, 5 to
 * 7 (counted from zero)NOTE; missing: NAME and 3 like it; ...", names without the prefix they
 * share. note is put as it is (""). No more than n_names classes are named. Returns 0 when nothing
 * is missing.
 */
int missing_report(const struct missing *m, const char *where, const char *note, unsigned n_names,
		   struct err *err);
