/*
 * config.json to struct config. The rows below say for each field where it stands in the released
 * (nested) and in the flat form, its type and its range; what a form does not have is not read. All
 * problems of one file are collected into one sentence, since a user should not have to find them
 * one by one. What is read but must have one value (activation, router, quantisation) is checked
 * here and not kept. Called by source.c and by the client with the bytes the daemon sent.
 */
#include "shared/config.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shared/attr.h"
#include "shared/must.h"

enum { DIM_MAX = 1 << 24, PRODUCT_MAX = 1 << 30 };

/* One file being parsed and what was found wrong with it. */
struct reader {
	const json_t *root, *text, *linear; /* text_config and linear_attn_config, or the root */
	enum config_form form;
	const char *name;
	struct config *c;
	struct err *err;
	unsigned n_problems;
};

static void problem(struct reader *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void problem(struct reader *r, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (r->n_problems++ == 0)
		(void)err_set(r->err, ERR_CONFIG, "%s: %s", r->name, text);
	else
		err_append(r->err, "; %s", text);
}

/* ---- the fields that are kept ------------------------------------------------------------ */

enum place { IN_TEXT, IN_LINEAR };
enum field_type { FIELD_UINT, FIELD_FLOAT, FIELD_BOOL };

struct field {
	enum place place; /* of the released form; the flat one has all at the top */
	enum field_type type;
	const char *released; /* NULL: not in this form */
	const char *flat;
	size_t offset;
	double min, max; /* inclusive */
};

#define UINT(place, released, flat, member, min, max)                                        \
	{                                                                                    \
		place, FIELD_UINT, released, flat, offsetof(struct config, member), min, max \
	}
#define FLOAT(place, released, flat, member, min, max)                                        \
	{                                                                                     \
		place, FIELD_FLOAT, released, flat, offsetof(struct config, member), min, max \
	}
#define BOOL(place, released, flat, member)                                              \
	{                                                                                \
		place, FIELD_BOOL, released, flat, offsetof(struct config, member), 0, 1 \
	}

/* clang-format off */
static const struct field fields[] = {
	UINT(IN_TEXT, "vocab_size", "vocab_size", vocab_size, 1, DIM_MAX),
	UINT(IN_TEXT, "hidden_size", "hidden_size", hidden_size, 1, DIM_MAX),
	UINT(IN_TEXT, "num_hidden_layers", "num_hidden_layers", n_layers, 1, CONFIG_LAYERS_MAX),
	UINT(IN_TEXT, "intermediate_size", "intermediate_size", dense_size, 1, DIM_MAX),
	UINT(IN_TEXT, "first_k_dense_replace", "first_k_dense_replace", n_dense_layers, 0, CONFIG_LAYERS_MAX),
	UINT(IN_TEXT, "moe_layer_freq", NULL, moe_layer_freq, 1, CONFIG_LAYERS_MAX),
	FLOAT(IN_TEXT, "activation_situ_beta", "situ_beta", situ_beta, 1e-6, 1e6),
	FLOAT(IN_TEXT, "activation_situ_linear_beta", "situ_linear_beta", situ_linear_beta, 1e-6, 1e6),
	FLOAT(IN_TEXT, "rms_norm_eps", "rms_norm_eps", rms_norm_eps, 1e-30, 1),
	UINT(IN_TEXT, "num_attention_heads", "num_attention_heads", n_heads, 1, DIM_MAX),
	UINT(IN_TEXT, "q_lora_rank", "q_lora_rank", q_lora_rank, 1, DIM_MAX),
	UINT(IN_TEXT, "kv_lora_rank", "kv_lora_rank", kv_lora_rank, 1, DIM_MAX),
	UINT(IN_TEXT, "qk_nope_head_dim", "qk_nope_head_dim", qk_nope_dim, 1, DIM_MAX),
	UINT(IN_TEXT, "qk_rope_head_dim", "qk_rope_head_dim", qk_rope_dim, 1, DIM_MAX),
	UINT(IN_TEXT, "v_head_dim", "v_head_dim", v_dim, 1, DIM_MAX),
	UINT(IN_LINEAR, "num_heads", "kda_num_heads", n_kda_heads, 1, DIM_MAX),
	UINT(IN_LINEAR, "head_dim", "kda_head_dim", kda_dim, 1, DIM_MAX),
	UINT(IN_LINEAR, "short_conv_kernel_size", "short_conv_kernel_size", conv_size, 1, 64),
	FLOAT(IN_LINEAR, "gate_lower_bound", "gate_lower_bound", gate_lower_bound, -1e6, -1e-6),
	UINT(IN_TEXT, "attn_res_block_size", "attn_res_block_size", block_size, 1, CONFIG_LAYERS_MAX),
	UINT(IN_TEXT, "num_experts", "num_experts", n_experts, 1, 1 << 20),
	UINT(IN_TEXT, "num_experts_per_token", "num_experts_per_token", top_k, 1, 1 << 20),
	UINT(IN_TEXT, "num_shared_experts", "num_shared_experts", n_shared_experts, 1, 1 << 10),
	UINT(IN_TEXT, "moe_intermediate_size", "moe_intermediate_size", expert_size, 1, DIM_MAX),
	UINT(IN_TEXT, "routed_expert_hidden_size", "routed_expert_hidden_size", latent_size, 1, DIM_MAX),
	FLOAT(IN_TEXT, "routed_scaling_factor", "routed_scaling_factor", routed_scale, 1e-6, 1e6),
	BOOL(IN_TEXT, "latent_moe_use_norm", "latent_moe_use_norm", has_latent_norm),
	BOOL(IN_TEXT, "moe_renormalize", "moe_renormalize", has_renormalize),
	UINT(IN_TEXT, "max_position_embeddings", NULL, max_positions, 1, 1 << 30),
	UINT(IN_TEXT, "bos_token_id", NULL, bos_id, 0, DIM_MAX),
	UINT(IN_TEXT, "eos_token_id", NULL, eos_id, 0, DIM_MAX),
	UINT(IN_TEXT, "pad_token_id", NULL, pad_id, 0, DIM_MAX),
};
/* clang-format on */

static const json_t *object_at(const struct reader *r, enum place place)
{
	return place == IN_LINEAR ? r->linear : r->text;
}

/* "text_config.linear_attn_config." and the like, for messages. */
static const char *path_of(const struct reader *r, enum place place)
{
	if (r->form == CONFIG_FORM_FLAT)
		return "";
	return place == IN_LINEAR ? "text_config.linear_attn_config." : "text_config.";
}

static void read_field(struct reader *r, const struct field *f)
{
	const char *key = r->form == CONFIG_FORM_FLAT ? f->flat : f->released;
	const char *path = path_of(r, f->place);
	char *member = (char *)r->c + f->offset;
	const json_t *v;
	double number;

	if (!key)
		return;
	v = json_object_get(object_at(r, f->place), key);
	if (!v) {
		problem(r, "%s%s is missing", path, key);
		return;
	}
	if (f->type == FIELD_BOOL) {
		if (json_is_boolean(v))
			*(bool *)(void *)member = json_is_true(v);
		else
			problem(r, "%s%s must be true or false", path, key);
		return;
	}
	if (f->type == FIELD_UINT ? !json_is_integer(v) : !json_is_number(v)) {
		problem(r, "%s%s must be a %s", path, key,
			f->type == FIELD_UINT ? "whole number" : "number");
		return;
	}
	number = json_number_value(v);
	if (!(number >= f->min && number <= f->max)) {
		problem(r, "%s%s is %g, outside of %g to %g", path, key, number, f->min, f->max);
		return;
	}
	if (f->type == FIELD_UINT)
		*(uint32_t *)(void *)member = (uint32_t)json_integer_value(v);
	else
		*(float *)(void *)member = (float)number;
}

/* ---- the fields that must have one value ------------------------------------------------- */

static void want_string(struct reader *r, const json_t *in, const char *path, const char *key,
			const char *wanted, bool is_required)
{
	const json_t *v = json_object_get(in, key);

	if (!v && is_required)
		problem(r, "%s%s is missing", path, key);
	else if (v && !json_is_string(v))
		problem(r, "%s%s must be \"%s\"", path, key, wanted);
	else if (v && strcmp(json_string_value(v), wanted) != 0)
		problem(r, "%s%s is \"%.60s\", only \"%s\" is supported", path, key,
			json_string_value(v), wanted);
}

static void want_bool(struct reader *r, const json_t *in, const char *path, const char *key,
		      bool wanted, bool is_required)
{
	const json_t *v = json_object_get(in, key);

	if (!v && is_required)
		problem(r, "%s%s is missing", path, key);
	else if (v && (wanted ? !json_is_true(v) : !json_is_false(v)))
		problem(r, "%s%s must be %s", path, key, wanted ? "true" : "false");
}

static void want_integer(struct reader *r, const json_t *in, const char *path, const char *key,
			 json_int_t wanted, bool is_required)
{
	const json_t *v = json_object_get(in, key);

	if (!v && is_required)
		problem(r, "%s%s is missing", path, key);
	else if (v && !(json_is_integer(v) && json_integer_value(v) == wanted))
		problem(r, "%s%s must be %lld", path, key, (long long)wanted);
}

static bool is_set(const json_t *in, const char *key)
{
	const json_t *v = json_object_get(in, key);

	return v && !json_is_null(v);
}

static void check_architecture(struct reader *r)
{
	const json_t *list = json_object_get(r->root, "architectures");
	const char *one = json_string_value(json_array_get(list, 0));

	if (!list && r->form == CONFIG_FORM_FLAT)
		return;
	if (!list)
		problem(r, "architectures is missing");
	else if (json_array_size(list) != 1 || !one)
		problem(r, "architectures must be a list of one name");
	else if (strcmp(one, "KimiK31ForConditionalGeneration") == 0)
		problem(r, "architecture %s (K3.1, sparse attention) is not supported", one);
	else if (strcmp(one, "KimiK3ForConditionalGeneration") != 0)
		problem(r,
			"architecture %.80s is not known; this engine runs "
			"KimiK3ForConditionalGeneration",
			one);
	if (r->form == CONFIG_FORM_RELEASED) {
		want_string(r, r->root, "", "model_type", "kimi_k3", false);
		want_string(r, r->text, "text_config.", "model_type", "kimi_linear", false);
	}
}

/* Anything that would ask for rotated positions, sparse attention or extra layers. */
static void check_features(struct reader *r)
{
	const char *path = path_of(r, IN_TEXT);
	bool is_released = r->form == CONFIG_FORM_RELEASED;

	if (is_set(r->root, "dsa_config") || is_set(r->text, "dsa_config"))
		problem(r, "dsa_config is present: the sparse attention of K3.1 is not supported");
	if (is_set(r->text, "rope_scaling") || is_set(r->text, "rope_theta") ||
	    is_set(r->text, "rope_parameters"))
		problem(r,
			"%srope_theta or rope_scaling is present: rotary positions are not "
			"supported",
			path);
	want_bool(r, r->text, path, "mla_use_nope", true, is_released);
	want_bool(r, r->text, path, "mla_use_output_gate", true, true);
	want_bool(r, r->linear, path_of(r, IN_LINEAR), "use_full_rank_gate", true, is_released);
	want_string(r, r->text, path, "hidden_act", "situ", is_released);
	want_string(r, r->text, path, "moe_router_activation_func", "sigmoid", is_released);
	want_string(r, r->text, path, "topk_method", "noaux_tc", false);
	want_integer(r, r->text, path, "num_expert_group", 1, false);
	want_integer(r, r->text, path, "topk_group", 1, false);
	want_integer(r, r->text, path, "num_nextn_predict_layers", 0, false);
	want_bool(r, r->text, path, "tie_word_embeddings", false, false);
	if (is_released)
		want_bool(r, r->root, "", "tie_word_embeddings", false, false);
	if (is_set(r->text, "num_key_value_heads"))
		want_integer(r, r->text, path, "num_key_value_heads", r->c->n_heads, false);
}

static void check_quantization(struct reader *r)
{
	static const char path[] = "text_config.quantization_config.";
	static const char weights_path[] = "text_config.quantization_config.config_groups.*."
					   "weights.";
	const json_t *q = json_object_get(r->text, "quantization_config");
	const json_t *groups, *group, *weights;

	if (is_set(r->root, "quantization_config") && r->root != r->text)
		problem(r, "quantization_config must stand inside text_config");
	if (!q && r->form == CONFIG_FORM_FLAT)
		return;
	if (!json_is_object(q)) {
		problem(r, "text_config.quantization_config is missing");
		return;
	}
	want_string(r, q, path, "quant_method", "compressed-tensors", true);
	want_string(r, q, path, "format", "mxfp4-pack-quantized", true);
	want_string(r, q, path, "quantization_status", "compressed", false);
	if (is_set(q, "kv_cache_scheme"))
		problem(r, "%skv_cache_scheme must be null", path);
	groups = json_object_get(q, "config_groups");
	if (json_object_size(groups) != 1) {
		problem(r, "%sconfig_groups must hold one group", path);
		return;
	}
	group = json_object_iter_value(json_object_iter((json_t *)groups));
	want_string(r, group, path, "format", "mxfp4-pack-quantized", false);
	if (is_set(group, "input_activations") || is_set(group, "output_activations"))
		problem(r, "%sconfig_groups quantises activations", path);
	weights = json_object_get(group, "weights");
	want_integer(r, weights, weights_path, "num_bits", 4, true);
	want_string(r, weights, weights_path, "type", "float", true);
	want_string(r, weights, weights_path, "strategy", "group", true);
	want_integer(r, weights, weights_path, "group_size", 32, true);
	want_bool(r, weights, weights_path, "symmetric", true, true);
	want_bool(r, weights, weights_path, "dynamic", false, false);
	want_string(r, weights, weights_path, "scale_dtype", "torch.uint8", false);
}

/* ---- layers ------------------------------------------------------------------------------ */

enum { LAYER_UNSEEN = 0, LAYER_IN_KDA = 1, LAYER_IN_FULL = 2 };

/* Mark the layers of one list; false when the list is not usable at all. */
static bool mark_layers(struct reader *r, const char *key, uint8_t mark, uint8_t *seen)
{
	const char *path = path_of(r, IN_LINEAR);
	const json_t *list = json_object_get(r->linear, key), *v;
	size_t i;

	if (!json_is_array(list)) {
		problem(r, "%s%s %s", path, key, list ? "must be a list" : "is missing");
		return false;
	}
	json_array_foreach((json_t *)list, i, v)
	{
		json_int_t layer = json_integer_value(v);

		if (!json_is_integer(v) || layer < 1 || layer > (json_int_t)r->c->n_layers) {
			problem(r, "%s%s: entry %zu is not a layer from 1 to %u (counted from one)",
				path, key, i, r->c->n_layers);
			return false;
		}
		if (seen[layer - 1] != LAYER_UNSEEN) {
			problem(r, "%s%s: layer %lld stands twice in the layer lists", path, key,
				(long long)layer);
			return false;
		}
		seen[layer - 1] = mark;
	}
	return true;
}

static void read_layers(struct reader *r)
{
	uint8_t seen[CONFIG_LAYERS_MAX] = { 0 };
	bool has_kda = r->form == CONFIG_FORM_RELEASED || json_object_get(r->linear, "kda_layers");
	bool ok;

	if (r->c->n_layers == 0)
		return; /* missing, said already */
	ok = mark_layers(r, "full_attn_layers", LAYER_IN_FULL, seen);
	if (has_kda)
		ok = mark_layers(r, "kda_layers", LAYER_IN_KDA, seen) && ok;
	for (uint32_t i = 0; ok && i < r->c->n_layers; i++) {
		if (has_kda && seen[i] == LAYER_UNSEEN) {
			problem(r,
				"layer %u (counted from one) is in neither kda_layers nor "
				"full_attn_layers",
				i + 1);
			return;
		}
		r->c->is_mla[i] = seen[i] == LAYER_IN_FULL;
	}
}

/* ---- how fields fit together ------------------------------------------------------------- */

static void check_product(struct reader *r, const char *what, uint32_t a, uint32_t b)
{
	if ((uint64_t)a * b > PRODUCT_MAX)
		problem(r, "%s is %llu, more than %d", what, (unsigned long long)a * b,
			(int)PRODUCT_MAX);
}

/* Fields that are missing are 0 here and were named already. */
static void check_consistency(struct reader *r)
{
	const struct config *c = r->c;
	json_int_t id;
	static const char *const ids[] = { "bos_token_id", "eos_token_id", "pad_token_id" };
	const uint32_t kept[] = { c->bos_id, c->eos_id, c->pad_id };

	if (c->n_experts && c->top_k > c->n_experts)
		problem(r, "num_experts_per_token %u is more than num_experts %u", c->top_k,
			c->n_experts);
	if (c->expert_size % 32)
		problem(r, "moe_intermediate_size %u is not a multiple of 32, the group of MXFP4",
			c->expert_size);
	if (c->latent_size % 32)
		problem(r,
			"routed_expert_hidden_size %u is not a multiple of 32, the group of MXFP4",
			c->latent_size);
	if (c->n_layers && c->n_dense_layers > c->n_layers)
		problem(r, "first_k_dense_replace %u is more than num_hidden_layers %u",
			c->n_dense_layers, c->n_layers);
	check_product(r, "KDA heads times head_dim", c->n_kda_heads, c->kda_dim);
	check_product(r, "MLA heads times query width", c->n_heads,
		      c->qk_nope_dim + c->qk_rope_dim);
	check_product(r, "MLA heads times key and value width", c->n_heads,
		      c->qk_nope_dim + c->v_dim);
	check_product(r, "shared experts times moe_intermediate_size", c->n_shared_experts,
		      c->expert_size);
	for (size_t i = 0; r->form == CONFIG_FORM_RELEASED && i < N_ELEMENTS(ids); i++) {
		if (c->vocab_size && kept[i] >= c->vocab_size)
			problem(r, "text_config.%s %u is not below vocab_size %u", ids[i], kept[i],
				c->vocab_size);
		if (!is_set(r->root, ids[i]))
			continue;
		id = json_integer_value(json_object_get(r->root, ids[i]));
		if (id != (json_int_t)kept[i])
			problem(r, "%s is %lld at the top and %u in text_config", ids[i],
				(long long)id, kept[i]);
	}
}

int config_parse(const char *json, size_t size, const char *name, struct config *ret,
		 struct err *err)
{
	CLEANUP(json_decrefp) json_t *root = NULL;
	struct config c = { .moe_layer_freq = 1,
			    .bos_id = UINT32_MAX,
			    .eos_id = UINT32_MAX,
			    .pad_id = UINT32_MAX };
	struct reader r = { .name = name, .c = &c, .err = err };
	json_error_t why;

	root = json_loadb(json, size, JSON_REJECT_DUPLICATES, &why);
	if (!root)
		return err_set(err, ERR_CONFIG, "%s: not valid JSON, line %d: %s", name, why.line,
			       why.text);
	if (!json_is_object(root))
		return err_set(err, ERR_CONFIG, "%s: the JSON must be an object", name);
	r.root = root;
	r.text = json_object_get(root, "text_config");
	r.form = r.text ? CONFIG_FORM_RELEASED : CONFIG_FORM_FLAT;
	r.text = r.text ? r.text : root;
	r.linear =
		r.form == CONFIG_FORM_FLAT ? root : json_object_get(r.text, "linear_attn_config");
	c.form = r.form;
	check_architecture(&r);
	if (r.n_problems) /* another model: its other fields mean nothing to the reader */
		return -err_errno(ERR_CONFIG);
	for (size_t i = 0; i < N_ELEMENTS(fields); i++)
		read_field(&r, &fields[i]);
	check_features(&r);
	check_quantization(&r);
	read_layers(&r);
	check_consistency(&r);
	if (r.n_problems)
		return -err_errno(ERR_CONFIG);
	*ret = c;
	return 0;
}

bool config_layer_is_moe(const struct config *c, uint32_t layer)
{
	return layer >= c->n_dense_layers && layer % c->moe_layer_freq == 0;
}
