#pragma once
/*
 * The engine: the model bound to a daemon's catalog, the scratch memory of a step, and the state of
 * one or more sequences. step() moves a batch of rows through all layers; a row's bits depend on
 * nothing but its sequence's tokens.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/iod_client.h"
#include "compute/kernel/kernel.h"
#include "compute/team.h"
#include "compute/value.h"
#include "shared/config.h"
#include "shared/err.h"

struct k3_engine;
struct timeline;
struct k3_sequence; /* KDA states, conv histories, MLA latents of one sequence */

struct k3_engine_settings {
	const struct config *config;      /* borrowed, outlives the engine */
	struct k3_iod *iod;               /* borrowed */
	struct k3_team *team;             /* borrowed */
	const struct kern_table *kernels; /* borrowed */
	struct timeline *timeline;        /* borrowed; NULL: off */
	uint32_t n_layers;                /* run the first n_layers and the head; <= catalog's */
	uint32_t max_rows;                /* rows of one step */
	uint32_t max_positions;           /* of one sequence */
};

/* What the engine and one sequence will allocate, by item, before anything is: used for the memory
 * plan. */
struct k3_engine_memory {
	uint64_t scratch;       /* activations of max_rows rows */
	uint64_t vectors;       /* a layer's small vectors, copied */
	uint64_t contributions; /* expert outputs kept until their turn */
	uint64_t state_kda;     /* per sequence: recurrent state and conv history */
	uint64_t state_mla;     /* per sequence at max_positions */
	uint64_t logits;        /* rows of logits kept at once */
	uint64_t stacks;        /* of the threads that compute, at most one a CPU */
};
void k3_engine_plan(const struct config *c, uint32_t n_layers, uint32_t max_rows,
		    uint32_t max_positions, struct k3_engine_memory *ret);

/* Checks the catalog against the config (catalog_check), allocates scratch. ERR_BIND,
 * ERR_NO_MEMORY. */
int k3_engine_new(struct k3_engine **ret, const struct k3_engine_settings *settings,
		  struct err *err);
struct k3_engine *k3_engine_free(struct k3_engine *e);
void k3_engine_freep(struct k3_engine **e);

int k3_sequence_new(struct k3_sequence **ret, const struct k3_engine *e, struct err *err);
struct k3_sequence *k3_sequence_free(struct k3_sequence *s);
void k3_sequence_freep(struct k3_sequence **s);
/* Make the memory of max_positions resident now, rather than as the positions come. */
int k3_sequence_take(struct k3_sequence *s, struct err *err);
/* Back to the empty sequence (for --recompute). */
void k3_sequence_reset(struct k3_sequence *s);
uint32_t k3_sequence_position(const struct k3_sequence *s); /* tokens taken so far */

struct k3_rows {
	struct k3_sequence *sequence;
	const uint32_t *ids; /* n tokens, appended to the sequence */
	uint32_t n;
	/* which rows get logits: the last n_logits of the n; 0 = none */
	uint32_t n_logits;
	float *logits; /* out: [n_logits][vocab_size], caller's memory */
};
struct k3_batch {
	struct k3_rows *rows; /* sum of n <= max_rows; sequences distinct */
	uint32_t n_rows;
	bool again; /* another step follows at once: let the daemon read ahead */
};

/* Told after the routing of a layer, for --dump-cache-trace and tests: top_k ids ascending with
 * weights. NULL: nobody. */
typedef void k3_routing_fn(void *data, uint32_t layer, uint32_t row, const uint16_t *ids,
			   const float *weights, uint32_t top_k);
void k3_engine_on_routing(struct k3_engine *e, k3_routing_fn *fn, void *data);

/* Told every value of every layer (value.h). NULL: nobody. */
void k3_engine_on_value(struct k3_engine *e, k3_value_fn *fn, void *data);

/*
 * One step. 0; or < 0 with err: ERR_NOT_FINITE names the first layer whose residual was not finite
 * (checked when a logit is not finite), ERR_EXPERT, ERR_IO, ERR_GONE. After an error the sequences
 * in the batch are undefined and must be reset.
 */
int k3_engine_step(struct k3_engine *e, const struct k3_batch *batch, struct err *err);
