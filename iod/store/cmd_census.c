/* k3-store census: the checkpoint's bytes by kind, layer and file, as a table or as JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "iod/store/census.h"
#include "iod/store/options.h"
#include "shared/attr.h"
#include "shared/log.h"

static const char *name_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static uint64_t header_bytes(const struct iod_census *c, uint64_t *ret_files)
{
	uint64_t headers = 0;

	*ret_files = 0;
	for (uint32_t i = 0; i < c->n_files; i++) {
		headers += c->files[i].header_size;
		*ret_files += c->files[i].size;
	}
	return headers;
}

/* Routed experts that one token reads: top_k in each layer that has any. */
static uint64_t token_experts(const struct iod_census *c)
{
	uint64_t total = 0;

	for (uint32_t i = 0; i < c->n_layers; i++)
		if (config_layer_is_moe(&c->config, i) && iod_census_is_whole(c, i))
			total += iod_census_experts(c->layers[i]).bytes / c->config.n_experts *
				 c->config.top_k;
	return total;
}

/* ---- the table --------------------------------------------------------------------------- */

/* 1446456066048 as 1,446,456,066,048 */
static const char *grouped(uint64_t n, char text[32])
{
	char digits[24];
	int len = snprintf(digits, sizeof(digits), "%" PRIu64, n), at = 0;

	for (int i = 0; i < len; i++) {
		if (i > 0 && (len - i) % 3 == 0)
			text[at++] = ',';
		text[at++] = digits[i];
	}
	text[at] = '\0';
	return text;
}

static void print_row(const char *name, struct iod_census_sum sum, uint64_t total)
{
	char tensors[32], bytes[32];

	(void)printf("%-36s %10s %20s %7.3f %%\n", name, grouped(sum.tensors, tensors),
		     grouped(sum.bytes, bytes),
		     total ? 100.0 * (double)sum.bytes / (double)total : 0.0);
}

static void print_bytes(const char *name, uint64_t n)
{
	char bytes[32];

	(void)printf("%-36s %10s %20s\n", name, "", grouped(n, bytes));
}

static void print_kinds(const struct iod_census *c)
{
	struct iod_census_sum all = iod_census_all(c->kinds), layers = { 0 };
	uint64_t files = 0, headers = header_bytes(c, &files);

	(void)printf("%-36s %10s %20s\n", "kind", "tensors", "bytes");
	for (unsigned i = 0; i < IOD_CENSUS_KINDS; i++)
		if (c->kinds[i].tensors > 0)
			print_row(iod_census_sentence((enum iod_census_kind)i), c->kinds[i],
				  all.bytes);
	print_row("all tensors", all, all.bytes);
	(void)printf("\n");
	layers = iod_census_trunk(c->kinds);
	print_row("routed experts", iod_census_experts(c->kinds), all.bytes);
	print_row("trunk: the layers without them", layers, all.bytes);
	if (c->left_out)
		print_bytes("layers beyond --layers", c->left_out);
	print_bytes("headers", headers);
	print_bytes("files", files);
	(void)printf("\na token reads\n");
	print_bytes("  trunk", layers.bytes);
	print_bytes("  head, output mix",
		    c->kinds[IOD_CENSUS_HEAD].bytes + c->kinds[IOD_CENSUS_HEAD_MIX].bytes);
	print_bytes("  routed experts, none cached", token_experts(c));
}

static void print_layers(const struct iod_census *c)
{
	(void)printf("\n%-5s  %-10s %16s %18s %18s\n", "layer", "kind", "trunk", "experts", "all");
	for (uint32_t i = 0; i < c->n_layers; i++) {
		struct iod_census_sum all = iod_census_all(c->layers[i]);
		char trunk[32], experts[32], bytes[32];

		(void)printf("%5u  %s %-6s %16s %18s %18s%s\n", i,
			     c->config.is_mla[i] ? "MLA" : "KDA",
			     config_layer_is_moe(&c->config, i) ? "MoE" : "dense",
			     grouped(iod_census_trunk(c->layers[i]).bytes, trunk),
			     grouped(iod_census_experts(c->layers[i]).bytes, experts),
			     grouped(all.bytes, bytes),
			     all.tensors == 0            ? "  not there"
			     : iod_census_is_whole(c, i) ? ""
							 : "  incomplete");
	}
}

static void print_absent(const struct iod_census *c)
{
	const struct shards *s = &c->shards;

	for (uint32_t i = 0; i < s->n_absent; i++) {
		const struct shards_content *content = &s->absent_content[i];

		(void)printf("%s%s: not there", i == 0 ? "\n" : "", s->absent[i]);
		for (uint32_t layer = 0; layer < c->config.n_layers; layer++)
			if (shards_content_has(content, layer))
				(void)printf("; layer %u", layer);
		(void)printf("%s\n", content->has_others ? "; embedding, head or vision" : "");
	}
}

/* ---- JSON -------------------------------------------------------------------------------- */

static json_t *json_of_sum(struct iod_census_sum sum)
{
	return json_pack("{s:I, s:I}", "tensors", (json_int_t)sum.tensors, "bytes",
			 (json_int_t)sum.bytes);
}

static json_t *json_of_kinds(const struct iod_census_sum sums[IOD_CENSUS_KINDS])
{
	json_t *o = json_object();

	for (unsigned i = 0; i < IOD_CENSUS_KINDS; i++)
		if (sums[i].tensors > 0)
			(void)json_object_set_new(o, iod_census_key((enum iod_census_kind)i),
						  json_of_sum(sums[i]));
	return o;
}

static json_t *json_of_layers(const struct iod_census *c)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < c->n_layers; i++)
		(void)json_array_append_new(
			a, json_pack("{s:i, s:s, s:s, s:o, s:o, s:o, s:b, s:o}", "layer", (int)i,
				     "attention", c->config.is_mla[i] ? "mla" : "kda", "mlp",
				     config_layer_is_moe(&c->config, i) ? "moe" : "dense", "trunk",
				     json_of_sum(iod_census_trunk(c->layers[i])), "experts",
				     json_of_sum(iod_census_experts(c->layers[i])), "all",
				     json_of_sum(iod_census_all(c->layers[i])), "complete",
				     (int)iod_census_is_whole(c, i), "kinds",
				     json_of_kinds(c->layers[i])));
	return a;
}

static json_t *json_of_files(const struct iod_census *c)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < c->n_files; i++)
		(void)json_array_append_new(a, json_pack("{s:s, s:I, s:I}", "name",
							 name_of(c->files[i].path), "bytes",
							 (json_int_t)c->files[i].size, "header",
							 (json_int_t)c->files[i].header_size));
	return a;
}

static json_t *json_of_absent(const struct iod_census *c)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < c->shards.n_absent; i++) {
		json_t *layers = json_array();

		for (uint32_t layer = 0; layer < c->config.n_layers; layer++)
			if (shards_content_has(&c->shards.absent_content[i], layer))
				(void)json_array_append_new(layers, json_integer(layer));
		(void)json_array_append_new(
			a, json_pack("{s:s, s:o}", "name", c->shards.absent[i], "layers", layers));
	}
	return a;
}

static int print_json(const struct iod_census *c)
{
	uint64_t files = 0, headers = header_bytes(c, &files);
	json_t *o = json_pack(
		"{s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:o, s:o}", "kinds",
		json_of_kinds(c->kinds), "experts", json_of_sum(iod_census_experts(c->kinds)),
		"trunk", json_of_sum(iod_census_trunk(c->kinds)), "all",
		json_of_sum(iod_census_all(c->kinds)), "layers", json_of_layers(c), "header_bytes",
		(json_int_t)headers, "file_bytes", (json_int_t)files, "left_out_bytes",
		(json_int_t)c->left_out, "token_expert_bytes", (json_int_t)token_experts(c),
		"files", json_of_files(c), "absent", json_of_absent(c));
	int r = o ? json_dumpf(o, stdout, JSON_INDENT(1)) : -1;

	json_decref(o);
	(void)putchar('\n');
	return r;
}

int iod_store_cmd_census(const struct iod_store_line *line)
{
	struct iod_census_want want = { .model_dirs = line->words.items,
					.n_model_dirs = (uint32_t)line->words.n,
					.config_path = line->options.config,
					.max_layers = (uint32_t)line->options.layers };
	CLEANUP(iod_census_deinit) struct iod_census c = { 0 };
	struct err err = { 0 };
	bool is_whole = true;

	if (line->words.n == 0) {
		log_error("census takes a model directory: %s", line->program->usage);
		return err_exit_code(ERR_USAGE);
	}
	if (iod_census_take(&want, &c, &err) < 0) {
		log_error("%s", err.text);
		return err_exit_code(err.code);
	}
	for (uint32_t i = 0; i < c.n_layers; i++)
		is_whole = is_whole && iod_census_is_whole(&c, i);
	if (line->options.json) {
		if (print_json(&c) < 0)
			return err_exit_code(ERR_NO_MEMORY);
	} else {
		print_kinds(&c);
		print_layers(&c);
		print_absent(&c);
	}
	return is_whole ? 0 : err_exit_code(ERR_CHECKPOINT);
}
