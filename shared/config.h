#pragma once
/*
 * The model's geometry from config.json: the released nested file, or the flat one of older small
 * checkpoints. Nothing has a default: a missing or contradictory field is an error, and one error
 * lists all of them. Facts: k3-architecture section 1.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"

enum { CONFIG_LAYERS_MAX = 1024 };
enum { CONFIG_FILE_MAX = 16 << 20 }; /* bytes of a config.json; the released one has 7 KB */

/* RMSNorm of the two MLA latents: what the vendor's code executes, not in config.json
 * (section 3.0). */
#define CONFIG_LATENT_NORM_EPS 1e-6f
/* L2 norm of KDA q and k, added to the sum of squares (section 3.3). */
#define CONFIG_L2_NORM_EPS 1e-6f

enum config_form { CONFIG_FORM_RELEASED, CONFIG_FORM_FLAT };

struct config {
	enum config_form form;
	uint32_t vocab_size;
	uint32_t hidden_size;
	uint32_t n_layers;
	uint32_t dense_size;     /* intermediate_size: width of the dense MLP */
	uint32_t n_dense_layers; /* first_k_dense_replace */
	uint32_t moe_layer_freq; /* MoE on layers >= n_dense_layers whose index is a multiple */
	float situ_beta;         /* gate cap */
	float situ_linear_beta;  /* up cap */
	float rms_norm_eps;
	/* gated MLA */
	uint32_t n_heads;
	uint32_t q_lora_rank;
	uint32_t kv_lora_rank;
	uint32_t qk_nope_dim;
	uint32_t qk_rope_dim; /* width of the shared key part; never rotated */
	uint32_t v_dim;
	/* KDA; dk = dv = kda_dim */
	uint32_t n_kda_heads;
	uint32_t kda_dim;
	uint32_t conv_size; /* taps of the short convolution */
	float gate_lower_bound;
	/* attention residuals */
	uint32_t block_size; /* layers l with l % block_size == 0 take a snapshot */
	/* latent mixture of experts */
	uint32_t n_experts;
	uint32_t top_k;
	uint32_t n_shared_experts; /* one fused MLP of width n_shared_experts * expert_size */
	uint32_t expert_size;      /* moe_intermediate_size */
	uint32_t latent_size;      /* routed_expert_hidden_size */
	float routed_scale;
	bool has_latent_norm; /* latent_moe_use_norm */
	bool has_renormalize; /* moe_renormalize */
	/* text */
	uint32_t max_positions;            /* 0 in the flat form: not stated */
	uint32_t bos_id, eos_id, pad_id;   /* UINT32_MAX when not stated (flat form) */
	uint8_t is_mla[CONFIG_LAYERS_MAX]; /* [layer, zero-based]: 1 = gated MLA, 0 = KDA */
};

/*
 * Parse size bytes of JSON. name is used in messages only ("/models/k3/config.json").
 * Returns 0, or a negative errno with err set (ERR_CONFIG): every missing field, wrong type, range
 * or contradiction in one sentence. Refused: an unknown architecture, RoPE, dsa_config (K3.1), a
 * quantisation other than the released MXFP4 packing, other activations or router functions,
 * layer lists that are not one-based and exactly covering.
 */
int config_parse(const char *json, size_t size, const char *name, struct config *ret,
		 struct err *err);

/* True when layer (zero-based) has routed experts. */
bool config_layer_is_moe(const struct config *c, uint32_t layer);
/* Derived widths. */
static inline uint32_t config_kda_width(const struct config *c)
{
	return c->n_kda_heads * c->kda_dim;
}
static inline uint32_t config_shared_size(const struct config *c)
{
	return c->n_shared_experts * c->expert_size;
}
/* Number of snapshots after the first n_layers layers: ceil(n_layers / block_size). */
static inline uint32_t config_n_snapshots(const struct config *c, uint32_t n_layers)
{
	return (n_layers + c->block_size - 1) / c->block_size;
}
