#include "tests/engine/fixture.h"

#include "tests/harness/test.h"

void fixture_open(struct fixture *f, const struct fixture_want *want)
{
	struct err err = { 0 };
	struct k3_engine_settings settings;

	*f = (struct fixture){ 0 };
	fake_iod_new(&f->iod, want->model_dir, &want->knobs);
	f->config = fake_iod_config(f->iod);
	CHECK_MSG(k3_team_new(&f->team, want->n_threads, &err) == 0, "%s", err.text);
	CHECK_MSG(kern_table_init(&f->kernels, want->isa, &err) == 0, "%s", err.text);
	settings = (struct k3_engine_settings){
		.config = f->config,
		.iod = f->iod,
		.team = f->team,
		.kernels = &f->kernels,
		.n_layers = want->n_layers ? want->n_layers : f->config->n_layers,
		.max_rows = want->max_rows,
		.max_positions = want->max_positions,
	};
	CHECK_MSG(k3_engine_new(&f->engine, &settings, &err) == 0, "%s", err.text);
	CHECK_MSG(k3_sequence_new(&f->sequence, f->engine, &err) == 0, "%s", err.text);
}

void fixture_close(struct fixture *f)
{
	k3_sequence_free(f->sequence);
	k3_engine_free(f->engine);
	k3_team_free(f->team);
	k3_iod_free(f->iod);
}

void fixture_feed(struct fixture *f, const uint32_t *ids, size_t n, size_t chunk, float *logits)
{
	size_t vocab = f->config->vocab_size;

	for (size_t at = 0; at < n; at += chunk) {
		size_t rows = n - at < chunk ? n - at : chunk;
		struct k3_rows row = {
			.sequence = f->sequence,
			.ids = ids + at,
			.n = (uint32_t)rows,
			.n_logits = logits ? (uint32_t)rows : 0,
			.logits = logits ? logits + at * vocab : NULL,
		};
		struct k3_batch batch = { .rows = &row, .n_rows = 1 };
		struct err err = { 0 };

		CHECK_MSG(k3_engine_step(f->engine, &batch, &err) == 0, "%s", err.text);
	}
}

uint32_t fixture_argmax(const float *x, size_t n)
{
	uint32_t best = 0;

	for (size_t i = 1; i < n; i++)
		if (x[i] > x[best])
			best = (uint32_t)i;
	return best;
}
