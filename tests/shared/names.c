/* Names to roles and back, and the shapes of the released model as k3-architecture 2.2 has them. */
#include "shared/names.h"

#include "tests/harness/test.h"
#include "tests/shared/files.h"

static struct config released(void)
{
	struct config c;
	struct err err = { 0 };
	size_t size;
	char *text = test_read_file(test_data("checkpoint/config.json"), &size);

	CHECK_MSG(config_parse(text, size, "config.json", &c, &err) == 0, "%s", err.text);
	free(text);
	return c;
}

static struct names_id parse(const char *name, const struct config *c)
{
	struct names_id id;
	size_t len = strlen(name);
	char *exact = malloc(len); /* no byte after the name, for the sanitizer */

	memcpy(exact, name, len);
	names_parse(exact, len, c, &id);
	free(exact);
	return id;
}

static void round_trip(void)
{
	struct config c = released();
	char name[256];
	unsigned n = 0;

	for (uint32_t layer = 0; layer < c.n_layers; layer++) {
		for (unsigned role = 0; role < ROLE_N_; role++) {
			struct names_id id;

			if (!role_in_layer((enum role)role, &c, layer))
				continue;
			(void)names_format((enum role)role, layer, name, sizeof(name));
			id = parse(name, &c);
			CHECK_MSG(id.kind == NAMES_TRUNK && id.role == role && id.layer == layer,
				  "%s came back as %s of layer %u", name, role_name(id.role),
				  id.layer);
			n++;
		}
	}
	/* 23 in layer 0; 5,404 and 5,398 less 896 * 6 in KDA and MLA layers: section 2.1 */
	CHECK_EQ(n, 23 + 68 * (5404 - 5376) + 24 * (5398 - 5376));
	for (unsigned part = 0; part < EXPERT_PARTS; part++) {
		struct names_id id;

		(void)names_format_expert(92, 895, (enum expert_part)part, name, sizeof(name));
		id = parse(name, &c);
		CHECK(id.kind == NAMES_EXPERT && id.layer == 92 && id.expert == 895);
		CHECK_EQ(id.part, part);
	}
}

static void literal(void)
{
	static const struct {
		const char *name;
		enum role role;
		uint32_t rows, cols;
	} rows[] = {
		{ "language_model.model.layers.0.self_attn.g_proj.weight", ROLE_KDA_G, 12288,
		  7168 },
		{ "language_model.model.layers.3.self_attn.g_proj.weight", ROLE_MLA_G, 12288,
		  7168 },
		{ "language_model.model.layers.92.self_attn.o_proj.weight", ROLE_MLA_O, 7168,
		  12288 },
		{ "language_model.model.layers.3.self_attn.q_b_proj.weight", ROLE_MLA_Q_B, 18432,
		  1536 },
		{ "language_model.model.layers.3.self_attn.kv_b_proj.weight", ROLE_MLA_KV_B, 24576,
		  512 },
		{ "language_model.model.layers.3.self_attn.kv_a_proj_with_mqa.weight",
		  ROLE_MLA_KV_A, 576, 7168 },
		{ "language_model.model.layers.0.self_attn.q_conv1d.weight", ROLE_KDA_Q_CONV, 12288,
		  4 },
		{ "language_model.model.layers.0.mlp.down_proj.weight", ROLE_DENSE_DOWN, 7168,
		  33792 },
		{ "language_model.model.layers.1.block_sparse_moe.gate.weight", ROLE_ROUTER, 896,
		  7168 },
		{ "language_model.model.layers.1.block_sparse_moe.shared_experts.up_proj.weight",
		  ROLE_SHARED_UP, 6144, 7168 },
		{ "language_model.model.embed_tokens.weight", ROLE_EMBED, 163840, 7168 },
		{ "language_model.lm_head.weight", ROLE_LM_HEAD, 163840, 7168 },
		{ "language_model.model.norm.weight", ROLE_FINAL_NORM, 1, 7168 },
	};
	static const uint32_t expert[EXPERT_PARTS][2] = { { 3072, 1792 }, { 3072, 112 },
							  { 3584, 1536 }, { 3584, 96 },
							  { 3072, 1792 }, { 3072, 112 } };
	struct config c = released();

	for (size_t i = 0; i < N_ELEMENTS(rows); i++) {
		struct names_id id = parse(rows[i].name, &c);
		uint32_t n_rows, n_cols;

		CHECK_EQ(id.kind, NAMES_TRUNK);
		CHECK_STR(role_name(id.role), role_name(rows[i].role));
		role_shape(id.role, &c, &n_rows, &n_cols);
		CHECK_EQ(n_rows, rows[i].rows);
		CHECK_EQ(n_cols, rows[i].cols);
	}
	for (unsigned i = 0; i < EXPERT_PARTS; i++) {
		uint32_t n_rows, n_cols;

		expert_part_shape((enum expert_part)i, &c, &n_rows, &n_cols);
		CHECK_EQ(n_rows, expert[i][0]);
		CHECK_EQ(n_cols, expert[i][1]);
	}
}

static void strangers(void)
{
	static const char *const names[] = {
		"",
		"x",
		"language_model.",
		"language_model.model.layers.",
		"language_model.model.layers.1",
		"language_model.model.layers.1.",
		"language_model.model.layers..input_layernorm.weight",
		"language_model.model.layers.01.input_layernorm.weight",
		"language_model.model.layers.-1.input_layernorm.weight",
		"language_model.model.layers.99999999999.input_layernorm.weight",
		"language_model.model.layers.1.input_layernorm.weights",
		"language_model.model.layers.1.input_layernorm.weigh",
		"language_model.model.layers.1.model.norm.weight",
		"language_model.input_layernorm.weight",
		"language_model.model.layers.1.block_sparse_moe.experts.1.w4.weight_packed",
		"language_model.model.layers.1.block_sparse_moe.experts.1.w1.weight",
		"language_model.model.layers.1.block_sparse_moe.experts.1.w1.weight_packede",
		"language_model.model.layers.1.block_sparse_moe.experts.1.w",
		"language_model.model.layers.1.block_sparse_moe.experts.001.w1.weight_packed",
		"language_model.model.layers.3.self_attn.indexer.wk.weight",
		"vision_tower.patch_embed.proj.weight",
		"mm_projector.proj.0.weight",
		"Language_model.model.norm.weight",
	};
	struct config c = released();

	for (size_t i = 0; i < N_ELEMENTS(names); i++)
		CHECK_MSG(parse(names[i], &c).kind == NAMES_OTHER, "%s", names[i]);
	/* Beyond the config's layers: known, and the caller's to judge. */
	CHECK_EQ(parse("language_model.model.layers.93.self_attn.g_proj.weight", &c).layer, 93);
}

static const struct test_case cases[] = {
	{ "round_trip", round_trip },
	{ "literal", literal },
	{ "strangers", strangers },
};
TEST_MAIN(cases)
