/* config.json: the released file, the flat form, and everything that must be refused. */
#include "shared/config.h"

#include <jansson.h>

#include "tests/harness/test.h"
#include "tests/shared/files.h"

static struct err err;

static int parse_file(const char *path, struct config *c)
{
	size_t size;
	char *text = test_read_file(path, &size);
	int r;

	err_clear(&err);
	r = config_parse(text, size, "config.json", c, &err);
	free(text);
	return r;
}

static int parse_json(const json_t *root, struct config *c)
{
	char *text = json_dumps(root, 0);
	int r;

	err_clear(&err);
	r = config_parse(text, strlen(text), "config.json", c, &err);
	free(text);
	return r;
}

/* "text_config.hidden_size": the object that holds it, and the key in it. */
static json_t *find_parent(json_t *root, const char *path, const char **ret_key)
{
	const char *dot;

	while ((dot = strchr(path, '.'))) {
		root = json_object_getn(root, path, (size_t)(dot - path));
		CHECK(root);
		path = dot + 1;
	}
	*ret_key = path;
	return root;
}

/* The released config with one value replaced (NULL: removed). */
static json_t *changed(const char *path, const char *value)
{
	json_t *root = json_load_file(test_data("checkpoint/config.json"), 0, NULL), *parent;
	const char *key;

	CHECK(root);
	parent = find_parent(root, path, &key);
	if (value)
		CHECK(json_object_set_new(parent, key, json_loads(value, JSON_DECODE_ANY, NULL)) ==
		      0);
	else
		CHECK(json_object_del(parent, key) == 0);
	return root;
}

static void released(void)
{
	static const unsigned full[] = { 4,  8,  12, 16, 20, 24, 28, 32, 36, 40, 44, 48,
					 52, 56, 60, 64, 68, 72, 76, 80, 84, 88, 92, 93 };
	struct config c;
	unsigned n = 0;

	CHECK_MSG(parse_file(test_data("checkpoint/config.json"), &c) == 0, "%s", err.text);
	CHECK_EQ(c.form, CONFIG_FORM_RELEASED);
	CHECK(c.vocab_size == 163840 && c.hidden_size == 7168 && c.n_layers == 93);
	CHECK(c.dense_size == 33792 && c.n_dense_layers == 1 && c.moe_layer_freq == 1);
	CHECK(c.situ_beta == 4 && c.situ_linear_beta == 25 && c.rms_norm_eps == 1e-5f);
	CHECK(c.n_heads == 96 && c.q_lora_rank == 1536 && c.kv_lora_rank == 512);
	CHECK(c.qk_nope_dim == 128 && c.qk_rope_dim == 64 && c.v_dim == 128);
	CHECK(c.n_kda_heads == 96 && c.kda_dim == 128 && c.conv_size == 4);
	CHECK(c.gate_lower_bound == -5 && c.block_size == 12 &&
	      config_n_snapshots(&c, c.n_layers) == 8);
	CHECK(c.n_experts == 896 && c.top_k == 16 && c.n_shared_experts == 2);
	CHECK(c.expert_size == 3072 && c.latent_size == 3584 && c.routed_scale == 1);
	CHECK(c.has_latent_norm && c.has_renormalize && c.max_positions == 1048576);
	CHECK(c.bos_id == 163584 && c.eos_id == 163586 && c.pad_id == 163839);
	CHECK(config_kda_width(&c) == 12288 && config_shared_size(&c) == 6144);
	for (unsigned i = 0; i < 93; i++) {
		bool is_full = n < N_ELEMENTS(full) && full[n] == i + 1;

		n += is_full;
		CHECK_EQ(c.is_mla[i], is_full);
		CHECK_EQ(config_layer_is_moe(&c, i), i > 0);
	}
}

static void flat(void)
{
	struct config c;

	CHECK_MSG(parse_file(test_data("oracle/tiny13/config.json"), &c) == 0, "%s", err.text);
	CHECK_EQ(c.form, CONFIG_FORM_FLAT);
	CHECK(c.n_layers == 13 && c.hidden_size == 128 && c.vocab_size == 256);
	CHECK(c.n_kda_heads == 4 && c.kda_dim == 16 && c.situ_beta == 4);
	CHECK(c.is_mla[3] && c.is_mla[7] && c.is_mla[11] && c.is_mla[12] && !c.is_mla[0]);
	CHECK(c.max_positions == 0 && c.eos_id == UINT32_MAX && c.moe_layer_freq == 1);
}

static void oracles(void)
{
	static const char *const names[] = { "tiny", "odd",  "range", "blocks",
					     "wide", "ties", "shape" };
	struct config c;
	char path[64];

	for (size_t i = 0; i < N_ELEMENTS(names); i++) {
		(void)snprintf(path, sizeof(path), "oracle/%s/config.json", names[i]);
		CHECK_MSG(parse_file(test_data(path), &c) == 0, "%s", err.text);
	}
}

static void bad_files(void)
{
	struct config c;

	CHECK(parse_file(test_data("config/bad_layer_index.json"), &c) < 0);
	CHECK_MSG(strstr(err.text, "full_attn_layers: entry 2"), "%s", err.text);
	CHECK(parse_file(test_data("config/bad_topk.json"), &c) < 0);
	CHECK_MSG(strstr(err.text, "num_experts_per_token 128"), "%s", err.text);
	CHECK(parse_file(test_data("config/no_layermap.json"), &c) < 0);
	CHECK_MSG(strstr(err.text, "full_attn_layers is missing"), "%s", err.text);
	CHECK_EQ(err.code, ERR_CONFIG);
}

/* Each key that section 1.2 marks as required, removed alone and all at once. */
static void missing(void)
{
	static const char *const keys[] = {
		"vocab_size",
		"hidden_size",
		"num_hidden_layers",
		"intermediate_size",
		"first_k_dense_replace",
		"moe_layer_freq",
		"hidden_act",
		"activation_situ_beta",
		"activation_situ_linear_beta",
		"rms_norm_eps",
		"num_attention_heads",
		"q_lora_rank",
		"kv_lora_rank",
		"qk_nope_head_dim",
		"qk_rope_head_dim",
		"v_head_dim",
		"mla_use_nope",
		"mla_use_output_gate",
		"linear_attn_config.num_heads",
		"linear_attn_config.head_dim",
		"linear_attn_config.short_conv_kernel_size",
		"linear_attn_config.use_full_rank_gate",
		"linear_attn_config.gate_lower_bound",
		"linear_attn_config.full_attn_layers",
		"linear_attn_config.kda_layers",
		"attn_res_block_size",
		"num_experts",
		"num_experts_per_token",
		"num_shared_experts",
		"moe_intermediate_size",
		"routed_expert_hidden_size",
		"latent_moe_use_norm",
		"moe_router_activation_func",
		"moe_renormalize",
		"routed_scaling_factor",
		"max_position_embeddings",
		"bos_token_id",
		"eos_token_id",
		"pad_token_id",
		"quantization_config",
	};
	json_t *all = json_load_file(test_data("checkpoint/config.json"), 0, NULL);
	struct config c;

	for (size_t i = 0; i < N_ELEMENTS(keys); i++) {
		char path[128], wanted[160];
		json_t *one, *parent;
		const char *key;

		(void)snprintf(path, sizeof(path), "text_config.%s", keys[i]);
		(void)snprintf(wanted, sizeof(wanted), "%s is missing", path);
		one = changed(path, NULL);
		CHECK_MSG(parse_json(one, &c) < 0, "accepted without %s", path);
		CHECK_MSG(strstr(err.text, wanted), "%s: %s", path, err.text);
		json_decref(one);
		if (strcmp(keys[i], "num_hidden_layers") == 0)
			continue; /* without it the layer lists cannot be judged */
		parent = find_parent(all, path, &key);
		CHECK(json_object_del(parent, key) == 0);
	}
	CHECK(parse_json(all, &c) < 0);
	for (size_t i = 0; i < N_ELEMENTS(keys); i++) {
		char wanted[160];

		if (strcmp(keys[i], "num_hidden_layers") == 0)
			continue;
		(void)snprintf(wanted, sizeof(wanted), "%s is missing", keys[i]);
		CHECK_MSG(strstr(err.text, wanted), "%s is not in the list: %s", keys[i], err.text);
	}
	json_decref(all);
}

static void refused(void)
{
	static const struct {
		const char *path, *value, *says;
	} rows[] = {
		{ "architectures", "[\"LlamaForCausalLM\"]", "LlamaForCausalLM is not known" },
		{ "architectures", "[\"KimiK31ForConditionalGeneration\"]", "K3.1" },
		{ "architectures", "[]", "architectures" },
		{ "architectures", NULL, "architectures is missing" },
		{ "model_type", "\"other\"", "model_type" },
		{ "dsa_config", "{\"index_topk\": 2048}", "dsa_config" },
		{ "text_config.dsa_config", "{}", "dsa_config" },
		{ "text_config.rope_theta", "10000.0", "rotary" },
		{ "text_config.rope_scaling", "{\"type\": \"yarn\"}", "rotary" },
		{ "text_config.mla_use_nope", "false", "mla_use_nope" },
		{ "text_config.mla_use_output_gate", "false", "mla_use_output_gate" },
		{ "text_config.linear_attn_config.use_full_rank_gate", "false", "full_rank" },
		{ "text_config.hidden_act", "\"silu\"", "hidden_act is \"silu\"" },
		{ "text_config.moe_router_activation_func", "\"softmax\"", "softmax" },
		{ "text_config.num_expert_group", "4", "num_expert_group must be 1" },
		{ "text_config.topk_group", "2", "topk_group must be 1" },
		{ "text_config.topk_method", "\"greedy\"", "topk_method" },
		{ "text_config.num_nextn_predict_layers", "1", "num_nextn_predict_layers" },
		{ "text_config.tie_word_embeddings", "true", "tie_word_embeddings" },
		{ "text_config.num_key_value_heads", "8", "num_key_value_heads must be 96" },
		{ "text_config.hidden_size", "\"7168\"", "whole number" },
		{ "text_config.hidden_size", "7168.5", "whole number" },
		{ "text_config.hidden_size", "-7168", "outside" },
		{ "text_config.hidden_size", "0", "outside" },
		{ "text_config.hidden_size", "4294974464", "outside" },
		{ "text_config.num_hidden_layers", "100000", "outside" },
		{ "text_config.num_hidden_layers", "94", "layer 94" },
		{ "text_config.num_hidden_layers", "92", "entry" },
		{ "text_config.rms_norm_eps", "0", "outside" },
		{ "text_config.rms_norm_eps", "true", "number" },
		{ "text_config.moe_renormalize", "1", "true or false" },
		{ "text_config.linear_attn_config.gate_lower_bound", "5.0", "outside" },
		{ "text_config.num_experts_per_token", "897", "more than num_experts" },
		{ "text_config.moe_intermediate_size", "3080", "multiple of 32" },
		{ "text_config.routed_expert_hidden_size", "3600", "multiple of 32" },
		{ "text_config.first_k_dense_replace", "94", "first_k_dense_replace" },
		{ "text_config.num_attention_heads", "16000000", "query width" },
		{ "text_config.eos_token_id", "163840", "not below vocab_size" },
		{ "text_config.eos_token_id", "163585", "at the top" },
		{ "text_config.linear_attn_config.kda_layers", "[1, 2, 3]", "neither" },
		{ "text_config.linear_attn_config.full_attn_layers", "[4, 4]", "twice" },
		{ "text_config.linear_attn_config.full_attn_layers", "[1]", "twice" },
		{ "text_config.linear_attn_config.full_attn_layers", "[0]", "counted from one" },
		{ "text_config.linear_attn_config.full_attn_layers", "[\"4\"]", "entry 0" },
		{ "text_config.linear_attn_config.full_attn_layers", "{}", "must be a list" },
		{ "text_config.linear_attn_config", "[]", "num_heads is missing" },
		{ "text_config.quantization_config.quant_method", "\"gptq\"", "gptq" },
		{ "text_config.quantization_config.format", "\"nvfp4-pack-quantized\"", "nvfp4" },
		{ "text_config.quantization_config.config_groups", "{}", "one group" },
		{ "text_config.quantization_config.config_groups.group_0.weights.num_bits", "8",
		  "num_bits must be 4" },
		{ "text_config.quantization_config.config_groups.group_0.weights.group_size", "16",
		  "group_size must be 32" },
		{ "text_config.quantization_config.config_groups.group_0.input_activations", "{}",
		  "activations" },
		{ "text_config.quantization_config.kv_cache_scheme", "{}", "kv_cache_scheme" },
		{ "quantization_config", "{\"quant_method\": \"fp8\"}", "inside text_config" },
	};
	struct config c;

	for (size_t i = 0; i < N_ELEMENTS(rows); i++) {
		json_t *root = changed(rows[i].path, rows[i].value);

		CHECK_MSG(parse_json(root, &c) < 0, "%s = %s was accepted", rows[i].path,
			  rows[i].value);
		CHECK_EQ(err.code, ERR_CONFIG);
		CHECK_MSG(strstr(err.text, rows[i].says), "%s = %s: \"%s\" does not say \"%s\"",
			  rows[i].path, rows[i].value, err.text, rows[i].says);
		json_decref(root);
	}
}

static void not_json(void)
{
	static const char *const texts[] = { "",
					     "{",
					     "[]",
					     "null",
					     "{\"a\": 1, \"a\": 2}",
					     "{} x",
					     "\xff\xfe",
					     "{\"text_config\": 3}" };
	struct config c;

	for (size_t i = 0; i < N_ELEMENTS(texts); i++) {
		err_clear(&err);
		CHECK_MSG(config_parse(texts[i], strlen(texts[i]), "config.json", &c, &err) < 0,
			  "%s was accepted", texts[i]);
		CHECK_EQ(err.code, ERR_CONFIG);
	}
	CHECK(config_parse("{}", 2, "config.json", &c, NULL) < 0); /* no place for a sentence */
}

static const struct test_case cases[] = {
	{ "released", released },   { "flat", flat },       { "oracles", oracles },
	{ "bad_files", bad_files }, { "missing", missing }, { "refused", refused },
	{ "not_json", not_json },
};
TEST_MAIN(cases)
