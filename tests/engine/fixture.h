#pragma once
/* A model run by the engine over fake_iod: everything a case needs, opened and closed in one go. */
#include "compute/engine.h"
#include "compute/layers.h"
#include "tests/engine/fake_iod.h"

struct fixture_want {
	const char *model_dir;
	enum kern_isa isa; /* KERN_ISA_N_: the best */
	unsigned n_threads;
	uint32_t max_rows, max_positions;
	uint32_t n_layers; /* 0: all */
	struct fake_iod_knobs knobs;
};

struct fixture {
	struct k3_iod *iod;
	struct k3_team *team;
	struct kern_table kernels;
	struct k3_engine *engine;
	struct k3_sequence *sequence;
	const struct config *config;
};

void fixture_open(struct fixture *f, const struct fixture_want *want);
void fixture_close(struct fixture *f);
/* Feed n ids in steps of at most chunk rows; logits [n][vocab] of every position, or NULL. */
void fixture_feed(struct fixture *f, const uint32_t *ids, size_t n, size_t chunk, float *logits);
/* Index of the largest, the first of equals. */
uint32_t fixture_argmax(const float *x, size_t n);
