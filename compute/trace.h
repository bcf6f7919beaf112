#pragma once
/*
 * The values of every layer at every position of a prompt, written as they are computed: one
 * safetensors file, DIR/trace.f32 (named so that no reader takes it for a shard), with
 *
 *	layers.L.NAME     F32 [positions, hidden], NAME as in K3_VALUES
 *	layers.L.experts  I32 [positions, top_k], ascending, and layers.L.weights F32, in MoE layers
 *	residual_last     F32 [layers, hidden]: the running sum at the last position
 */
#include "compute/engine.h"
#include "shared/config.h"
#include "shared/err.h"

struct k3_trace;

/* Make DIR where it is missing, and the file in it, for n_positions. ERR_IO, ERR_SPACE. */
int k3_trace_new(struct k3_trace **ret, const char *dir, const struct config *config,
		 uint32_t n_layers, uint32_t n_positions, struct err *err);
/* Watch the engine from here on; one sequence, its positions counted from 0. */
void k3_trace_watch(struct k3_trace *t, struct k3_engine *e);
/* Close the file: 0, or the first error of any write. */
int k3_trace_finish(struct k3_trace *t, struct err *err);
struct k3_trace *k3_trace_free(struct k3_trace *t);
void k3_trace_freep(struct k3_trace **t);
