/*
 * The head (k3-architecture 3.9): output mix, final norm and lm_head for the rows that get logits,
 * and only for those.
 */
#include "compute/layers.h"

enum { GRAIN = 12 };

struct head_job {
	const struct k3_engine *e;
	const struct k3_weights *w;
	const struct k3_input *in;
};

static void head_rows(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct head_job *job = data;
	const struct k3_weights *w = job->w;
	const struct k3_input *in = job->in;
	size_t first = 0, vocab = job->e->config->vocab_size;

	(void)worker;
	for (uint32_t i = 0; i < job->e->n_groups; i++) {
		const struct k3_group *g = &job->e->groups[i];

		if (g->n_logits == 0)
			continue;
		kern_matmul(job->e->kernel, w->format, false,
			    w->bytes + begin * w->n_cols * k3_format_size(w->format), end - begin,
			    w->n_cols, in->packed + first * in->packed_stride, in->packed_stride,
			    g->n_logits, g->logits + w->first_row + begin, vocab);
		first += g->n_logits;
	}
}

static void head_tile(struct k3_engine *e, const struct k3_weights *w, void *data)
{
	struct head_job job = { e, w, data };

	k3_team_run(e->team, w->n_rows, GRAIN, head_rows, &job);
}

static int check_logits(const struct k3_engine *e, struct err *err)
{
	size_t vocab = e->config->vocab_size;

	for (uint32_t i = 0; i < e->n_groups; i++) {
		const struct k3_group *g = &e->groups[i];

		if (k3_is_finite(g->logits, g->n_logits * vocab))
			continue;
		if (e->first_bad_layer == UINT32_MAX)
			return err_set(err, ERR_NOT_FINITE,
				       "the logits are not finite, though every layer's residual "
				       "was: the fault is in the head (output mix, norm or "
				       "lm_head); check "
				       "its weights with k3-store verify");
		return err_set(err, ERR_NOT_FINITE,
			       "the logits are not finite: it began in layer %u, the first whose "
			       "residual was not; check the weights of that layer with k3-store "
			       "verify",
			       e->first_bad_layer);
	}
	return 0;
}

int k3_head(struct k3_engine *e, struct err *err)
{
	struct k3_scratch *s = &e->scratch;
	const struct k3_matrix *m = k3_matrix_of(e, e->bind.n_layers, ROLE_LM_HEAD);
	uint64_t begin = timeline_now(e->timeline);
	struct k3_input in;
	int r;

	r = k3_load_vectors(e, e->bind.n_layers, err);
	if (r < 0)
		return r;
	k3_mix_head(e, s->mlp_mix, s->vector[ROLE_FINAL_NORM]);
	k3_input_set(&in, s->x, e->n_head_rows, e->config->hidden_size, s->packed_x);
	in.by_rows = true; /* a product for each group, from any row on */
	k3_input_pack(e, &in, m->format);
	r = k3_each_tile(e, m, head_tile, &in, err);
	if (r < 0)
		return r;
	r = check_logits(e, err);
	timeline_span(e->timeline, "head", begin, "rows", e->n_head_rows);
	return r;
}
