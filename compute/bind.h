#pragma once
/*
 * Where each matrix of each layer lies in the catalog: the catalog's tiles sorted by (layer, role).
 * Made once when the engine is made; the layers ask for tiles by the numbers found here.
 */
#include <stddef.h>
#include <stdint.h>

#include "compute/kernel/kernel.h"
#include "shared/catalog.h"
#include "shared/err.h"
#include "shared/names.h"

/* The tiles of one matrix: consecutive in the catalog, rows ascending. n_tiles 0: not there. */
struct k3_matrix {
	uint32_t first_tile, n_tiles;
	uint32_t rows, cols;
	enum kern_format format; /* KERN_F32 or KERN_BF16, one for the whole matrix */
};

struct k3_layer_tiles {
	uint32_t bundle; /* tile of the small vectors */
	struct k3_matrix matrix[ROLE_N_];
};

struct k3_bind {
	const struct catalog *catalog; /* borrowed from the connection */
	uint32_t n_layers;             /* the catalog's; layers[n_layers] is the head */
	struct k3_layer_tiles *layers; /* [n_layers + 1], owned */
};

/* cat has passed catalog_check. ERR_BIND when a matrix is scattered or mixes formats. */
int k3_bind_init(struct k3_bind *b, const struct catalog *cat, struct err *err);
void k3_bind_deinit(struct k3_bind *b);
