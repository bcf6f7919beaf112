#pragma once
/*
 * What a sequence keeps from token to token: per KDA layer the recurrent state of every head and
 * the last conv_size - 1 inputs of the three convolutions; per MLA layer the normalised latents and
 * the shared key parts of all positions. Only the layers write it, and only from tiles whose bytes
 * were checked.
 */
#include <stddef.h>
#include <stdint.h>

#include "compute/engine.h"

enum k3_stream { K3_STREAM_Q, K3_STREAM_K, K3_STREAM_V, K3_STREAM_N_ };

struct k3_layer_state {
	/* KDA, else NULL */
	float *recurrent;          /* [heads][dk][dv] */
	float *conv[K3_STREAM_N_]; /* [conv_size - 1][kda width], oldest first */
	/* MLA; grow with use */
	float *latents; /* [capacity][kv_lora_rank] */
	float *ropes;   /* [capacity][qk_rope_dim] */
	uint32_t capacity;
};

struct k3_sequence {
	const struct config *config; /* borrowed from the engine's settings */
	uint32_t n_layers;
	uint32_t max_positions;
	uint32_t position;             /* tokens taken so far */
	struct k3_layer_state *layers; /* [n_layers] */
	void *memory;                  /* of all KDA layers */
	size_t memory_size;
};

struct k3_state_size {
	uint64_t kda, mla;
};
void k3_state_plan(const struct config *c, uint32_t n_layers, uint32_t max_positions,
		   struct k3_state_size *ret);

/* Room for n_positions in every MLA layer; what is there stays. ERR_NO_MEMORY. */
int k3_sequence_reserve(struct k3_sequence *s, uint32_t n_positions, struct err *err);
