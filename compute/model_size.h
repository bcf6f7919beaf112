#pragma once
/* How large a model's tiles and experts will be in the slab, from config.json alone: no header is
 * read. The daemon's own numbers differ by page borders and where a checkpoint stores a matrix as
 * F32; WELCOME has the true ones. */
#include <stdint.h>

#include "shared/config.h"

struct k3_model_size {
	uint64_t trunk_size;    /* slab bytes of all tiles */
	uint64_t max_tile_size; /* of the largest */
	uint64_t expert_size;   /* of one slot; 0 without experts */
	uint32_t n_tiles;
	uint32_t n_experts;    /* in all layers together */
	uint32_t n_moe_layers; /* among the first n_layers */
	/* Bytes of weights as released, page borders and padding not counted. */
	uint64_t layers_data; /* all layers without their routed experts */
	uint64_t shared_data; /* of layers_data: what is computed while a layer's experts load */
	uint64_t head_data;
	uint64_t expert_data; /* one routed expert */
	uint64_t embed_row;
};

/* The first n_layers and the head. tile_bytes 0: the usual cut. */
void k3_model_size(const struct config *c, uint32_t n_layers, uint64_t tile_bytes,
		   struct k3_model_size *ret);
/* What a daemon would pin of a budget: whole tiles, so a little less. size: of the same model. */
uint64_t k3_model_pinned(const struct config *c, uint32_t n_layers, uint64_t tile_bytes,
			 const struct k3_model_size *size, uint64_t budget);
