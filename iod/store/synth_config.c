/* See synth_config.h. */
#include "iod/store/synth_config.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "shared/attr.h"

/* Every key that a reader must find, with a tiny geometry. */
static const char tiny[] =
	"{\"architectures\": [\"KimiK3ForConditionalGeneration\"], \"model_type\": \"kimi_k3\","
	" \"dtype\": \"bfloat16\", \"bos_token_id\": 0, \"eos_token_id\": 2, \"pad_token_id\": 255,"
	" \"tie_word_embeddings\": false,"
	" \"text_config\": {\"architectures\": [\"KimiLinearForCausalLM\"],"
	" \"model_type\": \"kimi_linear\", \"dtype\": \"bfloat16\", \"vocab_size\": 256,"
	" \"hidden_size\": 128, \"num_hidden_layers\": 9, \"intermediate_size\": 192,"
	" \"first_k_dense_replace\": 1, \"moe_layer_freq\": 1, \"hidden_act\": \"situ\","
	" \"activation_situ_beta\": 4.0, \"activation_situ_linear_beta\": 25.0,"
	" \"rms_norm_eps\": 1e-05, \"num_attention_heads\": 4, \"num_key_value_heads\": 4,"
	" \"q_lora_rank\": 64, \"kv_lora_rank\": 32, \"qk_nope_head_dim\": 24,"
	" \"qk_rope_head_dim\": 8, \"v_head_dim\": 24, \"mla_use_nope\": true,"
	" \"mla_use_output_gate\": true,"
	" \"linear_attn_config\": {\"num_heads\": 4, \"head_dim\": 32,"
	" \"short_conv_kernel_size\": 4, \"use_full_rank_gate\": true, \"gate_lower_bound\": -5.0,"
	" \"full_attn_layers\": [], \"kda_layers\": []},"
	" \"attn_res_block_size\": 3, \"num_experts\": 16, \"num_experts_per_token\": 4,"
	" \"num_shared_experts\": 2, \"moe_intermediate_size\": 64,"
	" \"routed_expert_hidden_size\": 64, \"latent_moe_use_norm\": true,"
	" \"moe_router_activation_func\": \"sigmoid\", \"moe_renormalize\": true,"
	" \"routed_scaling_factor\": 1.0, \"use_grouped_topk\": true, \"num_expert_group\": 1,"
	" \"topk_group\": 1, \"topk_method\": \"noaux_tc\", \"num_nextn_predict_layers\": 0,"
	" \"max_position_embeddings\": 1048576, \"bos_token_id\": 0, \"eos_token_id\": 2,"
	" \"pad_token_id\": 255, \"tie_word_embeddings\": false,"
	" \"quantization_config\": {\"quant_method\": \"compressed-tensors\","
	" \"format\": \"mxfp4-pack-quantized\", \"quantization_status\": \"compressed\","
	" \"kv_cache_scheme\": null, \"config_groups\": {\"group_0\": {"
	" \"format\": \"mxfp4-pack-quantized\", \"targets\": [\"Linear\"],"
	" \"input_activations\": null, \"output_activations\": null, \"weights\": {"
	" \"num_bits\": 4, \"type\": \"float\", \"strategy\": \"group\", \"group_size\": 32,"
	" \"symmetric\": true, \"dynamic\": false, \"scale_dtype\": \"torch.uint8\"}}}}}}";

/* Which key an option sets. */
static const struct {
	const char *option;
	size_t offset;
	bool in_linear; /* linear_attn_config */
	const char *key;
} keys[] = {
#define KEY(name, field, in_linear, key)                                        \
	{                                                                       \
		name, offsetof(struct iod_store_options, field), in_linear, key \
	}
	KEY("layers", layers, false, "num_hidden_layers"),
	KEY("dense-layers", dense_layers, false, "first_k_dense_replace"),
	KEY("hidden", hidden, false, "hidden_size"),
	KEY("vocab", vocab, false, "vocab_size"),
	KEY("dense", dense, false, "intermediate_size"),
	KEY("block", block, false, "attn_res_block_size"),
	KEY("heads", heads, false, "num_attention_heads"),
	KEY("heads", heads, false, "num_key_value_heads"),
	KEY("q-lora", q_lora, false, "q_lora_rank"),
	KEY("kv-lora", kv_lora, false, "kv_lora_rank"),
	KEY("nope", nope, false, "qk_nope_head_dim"),
	KEY("rope", rope, false, "qk_rope_head_dim"),
	KEY("v", v, false, "v_head_dim"),
	KEY("kda-heads", kda_heads, true, "num_heads"),
	KEY("kda-dim", kda_dim, true, "head_dim"),
	KEY("conv", conv, true, "short_conv_kernel_size"),
	KEY("experts", experts, false, "num_experts"),
	KEY("top-k", top_k, false, "num_experts_per_token"),
	KEY("shared", shared, false, "num_shared_experts"),
	KEY("expert", expert, false, "moe_intermediate_size"),
	KEY("latent", latent, false, "routed_expert_hidden_size"),
#undef KEY
};

/* The released pattern: every so-manyth layer is MLA, and the last one. */
static int set_layer_lists(json_t *linear, uint64_t n_layers, uint64_t mla_every)
{
	json_t *full = json_array(), *kda = json_array();
	int r = 0;

	for (uint64_t i = 1; i <= n_layers; i++) {
		bool is_full = i % mla_every == 0 || i == n_layers;

		r |= json_array_append_new(is_full ? full : kda, json_integer((json_int_t)i));
	}
	r |= json_object_set_new(linear, "full_attn_layers", full);
	r |= json_object_set_new(linear, "kda_layers", kda);
	return r;
}

/* A smaller vocabulary may leave the special ids outside: the last three rows then. */
static int clamp_ids(json_t *root, json_t *text)
{
	static const char *const ids[] = { "bos_token_id", "eos_token_id", "pad_token_id" };
	json_int_t vocab = json_integer_value(json_object_get(text, "vocab_size"));
	int r = 0;

	for (size_t i = 0; i < N_ELEMENTS(ids); i++) {
		json_int_t id = json_integer_value(json_object_get(text, ids[i]));
		json_int_t last = vocab - (json_int_t)(N_ELEMENTS(ids) - i);

		if (id < vocab)
			continue;
		r |= json_object_set_new(text, ids[i], json_integer(last < 0 ? 0 : last));
		if (json_object_get(root, ids[i]))
			r |= json_object_set(root, ids[i], json_object_get(text, ids[i]));
	}
	return r;
}

static int apply(const struct iod_store_line *line, json_t *root, bool is_builtin)
{
	const struct iod_store_options *o = &line->options;
	json_t *text = json_object_get(root, "text_config");
	json_t *linear = json_object_get(text, "linear_attn_config");
	bool is_relisted = is_builtin || option_was_given(line->program, o, "layers") ||
			   option_was_given(line->program, o, "mla-every");
	int r = 0;

	for (size_t i = 0; i < N_ELEMENTS(keys); i++) {
		uint64_t value;

		if (!option_was_given(line->program, o, keys[i].option))
			continue;
		memcpy(&value, (const char *)o + keys[i].offset, sizeof(value));
		r |= json_object_set_new(keys[i].in_linear ? linear : text, keys[i].key,
					 json_integer((json_int_t)value));
	}
	if (is_relisted)
		r |= set_layer_lists(
			linear,
			(uint64_t)json_integer_value(json_object_get(text, "num_hidden_layers")),
			o->mla_every);
	return r | clamp_ids(root, text);
}

static bool is_geometry_given(const struct iod_store_line *line)
{
	for (size_t i = 0; i < N_ELEMENTS(keys); i++)
		if (option_was_given(line->program, &line->options, keys[i].option))
			return true;
	return option_was_given(line->program, &line->options, "mla-every");
}

int iod_synth_config(const struct iod_store_line *line, const char *base, uint64_t base_size,
		     char **ret, struct err *err)
{
	CLEANUP(json_decrefp) json_t *root = NULL;
	json_error_t why;

	if (base && !is_geometry_given(line)) {
		*ret = strndup(base, base_size); /* as it is, byte for byte */
		return *ret ? 0 : err_set(err, ERR_NO_MEMORY, "out of memory");
	}
	root = json_loadb(base ? base : tiny, base ? base_size : sizeof(tiny) - 1, 0, &why);
	if (!root)
		return err_set(err, ERR_CONFIG, "%s: not valid JSON, line %d: %s",
			       line->options.config, why.line, why.text);
	if (!json_is_object(
		    json_object_get(json_object_get(root, "text_config"), "linear_attn_config")))
		return err_set(err, ERR_USAGE,
			       "%s: geometry options change only a config of the released "
			       "(nested) form",
			       line->options.config);
	if (apply(line, root, !base) != 0)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	*ret = json_dumps(root, JSON_INDENT(1));
	return *ret ? 0 : err_set(err, ERR_NO_MEMORY, "out of memory");
}
