#pragma once
/*
 * compute/iod_client.h without a daemon: tiles, rows and experts are read from the checkpoint's
 * files as the catalog's source says. One tile is held at a time; what is given back is overwritten
 * at once, so that a use after the lease shows. Misuse by the engine fails the test.
 */
#include "compute/iod_client.h"
#include "shared/catalog.h"

enum fake_order { FAKE_ASCENDING, FAKE_DESCENDING, FAKE_SHUFFLED };

struct fake_iod_knobs {
	enum fake_order order; /* of landing experts */
	bool experts_are_late; /* none has landed until one is waited for */
	bool all_stale_once;   /* first wrong bytes and a lost lease, then the right ones */
	bool has_nan;          /* the first weights of every tile of nan_layer */
	uint32_t nan_layer;
	uint64_t tile_bytes; /* 0: as the catalog's default */
	uint32_t max_layers; /* 0: all */
};

void fake_iod_new(struct k3_iod **ret, const char *model_dir, const struct fake_iod_knobs *knobs);
const struct config *fake_iod_config(const struct k3_iod *c);
