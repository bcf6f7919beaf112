/*
 * One step: the rows of a batch go through all layers once. Reads top to bottom as the skeleton of
 * k3-architecture 3.2.
 */
#include "compute/layers.h"

static int attention(struct k3_engine *e, uint32_t layer, struct err *err)
{
	uint64_t begin = timeline_now(e->timeline);
	struct k3_scratch *s = &e->scratch;
	struct k3_input in;
	int r;

	k3_mix(e, s->attn_mix, s->vector[ROLE_INPUT_NORM]);
	if (layer % e->config->block_size == 0)
		k3_snapshot(e);
	k3_show(e, K3_VALUE_attn_in, layer, s->x);
	k3_input_set(&in, s->x, e->n_rows, e->config->hidden_size, s->packed_x);
	r = (e->config->is_mla[layer] ? k3_layer_mla : k3_layer_kda)(e, layer, &in, err);
	if (r < 0)
		return r;
	k3_show(e, K3_VALUE_attn_out, layer, s->out);
	k3_residual_add(e, layer);
	timeline_span(e->timeline, "attention", begin, NULL, 0);
	return 0;
}

static int feed_forward(struct k3_engine *e, uint32_t layer, struct err *err)
{
	uint64_t begin = timeline_now(e->timeline);
	struct k3_scratch *s = &e->scratch;
	struct k3_input in;
	int r;

	k3_mix(e, s->mlp_mix, s->vector[ROLE_POST_NORM]);
	k3_show(e, K3_VALUE_ffn_in, layer, s->x);
	k3_input_set(&in, s->x, e->n_rows, e->config->hidden_size, s->packed_x);
	r = (config_layer_is_moe(e->config, layer) ? k3_layer_moe : k3_layer_dense)(e, layer, &in,
										    err);
	if (r < 0)
		return r;
	k3_show(e, K3_VALUE_ffn_out, layer, s->out);
	k3_residual_add(e, layer);
	timeline_span(e->timeline, "feed-forward", begin, NULL, 0);
	return 0;
}

static int run_layers(struct k3_engine *e, struct err *err)
{
	for (uint32_t layer = 0; layer < e->n_layers; layer++) {
		uint64_t begin = timeline_now(e->timeline);
		int r = k3_load_vectors(e, layer, err);

		if (r == 0)
			r = attention(e, layer, err);
		if (r == 0)
			r = feed_forward(e, layer, err);
		if (r < 0)
			return r;
		timeline_span(e->timeline, "layer", begin, "layer", layer);
		k3_show(e, K3_VALUE_residual, layer, k3_residual(e));
	}
	return 0;
}

static int check_rows(const struct k3_engine *e, const struct k3_rows *rows, struct err *err)
{
	for (uint32_t i = 0; i < rows->n; i++)
		if (rows->ids[i] >= e->config->vocab_size)
			return err_set(err, ERR_USAGE,
				       "token id %u is outside the vocabulary of %u ids",
				       rows->ids[i], e->config->vocab_size);
	if (rows->n > e->max_positions - rows->sequence->position)
		return err_set(err, ERR_USAGE,
			       "%u more tokens after %u do not fit the context of %u positions "
			       "this run was planned for",
			       rows->n, rows->sequence->position, e->max_positions);
	if (rows->n == 0 || rows->n_logits > rows->n)
		return err_set(err, ERR_USAGE, "a step of %u rows cannot give %u rows of logits",
			       rows->n, rows->n_logits);
	return 0;
}

/* Twice in one step, a sequence would take both runs of rows at the same position. */
static int check_distinct(const struct k3_engine *e, const struct k3_sequence *sequence,
			  struct err *err)
{
	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i].sequence == sequence)
			return err_set(err, ERR_USAGE,
				       "the same sequence stands twice in one step");
	return 0;
}

/* Number the rows of the batch and find those that get logits. */
static int begin(struct k3_engine *e, const struct k3_batch *batch, struct err *err)
{
	e->n_groups = e->n_rows = e->n_head_rows = e->n_snapshots = 0;
	e->n_experts_pending = 0;
	e->residual_is_empty = false;
	e->first_bad_layer = UINT32_MAX;
	for (uint32_t i = 0; i < batch->n_rows; i++) {
		const struct k3_rows *rows = &batch->rows[i];
		int r = check_rows(e, rows, err);

		if (r == 0)
			r = check_distinct(e, rows->sequence, err);
		if (r == 0 && rows->n > e->max_rows - e->n_rows)
			r = err_set(err, ERR_USAGE,
				    "a step takes at most the %u rows it was planned for",
				    e->max_rows);
		if (r == 0)
			r = k3_sequence_reserve(rows->sequence, rows->sequence->position + rows->n,
						err);
		if (r < 0)
			return r;
		e->groups[e->n_groups++] = (struct k3_group){
			.sequence = rows->sequence,
			.first_row = e->n_rows,
			.n = rows->n,
			.position = rows->sequence->position,
			.n_logits = rows->n_logits,
			.logits = rows->logits,
		};
		for (uint32_t j = rows->n - rows->n_logits; j < rows->n; j++)
			e->head_rows[e->n_head_rows++] = e->n_rows + j;
		e->n_rows += rows->n;
	}
	return 0;
}

static int embed(struct k3_engine *e, const struct k3_batch *batch, struct err *err)
{
	uint64_t begin = timeline_now(e->timeline);
	size_t hidden = e->config->hidden_size;

	for (uint32_t i = 0; i < e->n_groups; i++) {
		int r = k3_iod_rows(e->iod, batch->rows[i].ids, e->groups[i].n,
				    k3_residual(e) + e->groups[i].first_row * hidden, err);

		if (r < 0)
			return r;
	}
	timeline_span(e->timeline, "embedding", begin, "rows", e->n_rows);
	return 0;
}

int k3_engine_step(struct k3_engine *e, const struct k3_batch *batch, struct err *err)
{
	int r = begin(e, batch, err);

	if (r < 0 || e->n_rows == 0)
		return r;
	r = k3_iod_sweep(e->iod, e->n_layers, e->n_head_rows > 0, batch->again, err);
	if (r == 0)
		r = embed(e, batch, err);
	if (r == 0)
		r = run_layers(e, err);
	if (r == 0 && e->n_head_rows > 0)
		r = k3_head(e, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < e->n_groups; i++)
		e->groups[i].sequence->position += e->groups[i].n;
	return 0;
}
