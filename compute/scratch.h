#pragma once
/*
 * The memory of a step: activations of max_rows rows, laid out once. Attention and feed-forward
 * parts of a layer are never alive together, so their buffers share one region. All sizes come from
 * one walk, which runs without memory for the plan and with it for the engine: the two cannot
 * differ.
 */
#include <stddef.h>
#include <stdint.h>

#include "shared/config.h"
#include "shared/err.h"
#include "shared/names.h"

/* Queries of one block of attention, and positions scored at a time. */
enum { K3_QUERIES = 4, K3_POSITIONS = 256 };

/* What one worker of the team needs for itself. */
struct k3_worker {
	float *alpha, *read, *head_out; /* KDA, of one head */
	float *query;                   /* [kv_lora_rank] q~ before packing, later the context */
	float *packed_query;            /* [K3_QUERIES][packed kv_lora_rank] */
	float *packed_rope;             /* [K3_QUERIES][packed qk_rope_dim] */
	float *packed_context;          /* [K3_QUERIES][packed kv_lora_rank] */
	float *rope_scores;             /* [K3_QUERIES][K3_POSITIONS] */
	float *scores;                  /* [K3_QUERIES][max_positions] */
	float *keys;                    /* [qk_nope_dim][kv_lora_rank], for unaligned F32 weights */
};

struct k3_scratch {
	/* the residual stream */
	float **residual; /* [n_snapshots + 1] buffers of [rows][hidden] */
	uint32_t n_residual;
	/* in and out of a sub-layer */
	float *x;          /* [rows][hidden] normed input */
	float *out;        /* [rows][hidden] */
	float *packed_x;   /* [rows][packed hidden] */
	float *packed_mid; /* [rows][packed widest inner vector] */
	/* KDA */
	float *kda_q, *kda_k, *kda_v, *kda_g, *kda_z; /* [rows][kda width] */
	float *kda_f;                                 /* [rows][kda_dim] */
	float *kda_beta;                              /* [rows][heads] */
	float *kda_exp_a;                             /* [heads] */
	/* MLA */
	float *mla_cq;  /* [rows][q_lora_rank] */
	float *mla_q;   /* [rows][heads * (nope + rope)] */
	float *mla_ckv; /* [rows][kv_lora_rank + rope] */
	float *mla_g;   /* [rows][heads * v_dim] */
	float *mla_o;   /* [rows][heads * v_dim] */
	/* dense and shared MLP */
	float *gate, *up; /* [rows][dense_size or shared size] */
	/* experts */
	float *router;                  /* [rows][n_experts] */
	float *z;                       /* [rows][latent_size]; later the weighted sum */
	float *packed_z;                /* [rows][packed latent_size] */
	float *gathered;                /* rows of packed_z that chose one expert */
	float *expert_gate, *expert_up; /* [rows][expert_size] */
	float *packed_act;              /* [rows][packed expert_size] */
	float *moe_out;                 /* [rows][hidden] of the up projection */
	uint16_t *ids;                  /* [rows][top_k] ascending */
	float *weights;                 /* [rows][top_k] */
	uint32_t *expert_first;         /* [n_experts + 1] into pair_row */
	uint32_t *pair_row;             /* [rows * top_k] rows by expert */
	uint32_t *pair_of;              /* [rows][top_k] index of the contribution */
	uint16_t *wanted;               /* [n_experts] */
	float *contributions;           /* [rows * top_k][latent_size] */
	/* a layer's small vectors, by role, fp32 */
	float *vector[ROLE_N_];
	float *attn_mix, *mlp_mix; /* [hidden] norm * proj */
	struct k3_worker *workers; /* [n_workers] */
	unsigned n_workers;
	void *memory;
	size_t memory_size;
};

struct k3_scratch_size {
	uint64_t activations, vectors, contributions;
};

struct k3_scratch_want {
	const struct config *config;
	uint32_t n_layers, max_rows, max_positions;
	unsigned n_workers;
};

void k3_scratch_plan(const struct k3_scratch_want *want, struct k3_scratch_size *ret);
int k3_scratch_init(struct k3_scratch *s, const struct k3_scratch_want *want, struct err *err);
void k3_scratch_deinit(struct k3_scratch *s);
