/*
 * Attention residuals (k3-architecture 3.2): the running sum P and the snapshots B of a step, kept
 * fp32 in buffers of scratch.residual; taking a snapshot moves on to the next buffer and copies
 * nothing. Both live for one step only.
 */
#include <string.h>

#include "compute/layers.h"

struct mix_job {
	const struct k3_engine *e;
	const float *mix, *norm;
	const uint32_t *rows; /* NULL: all, in order */
};

static void mix_rows(void *data, size_t begin, size_t end, unsigned worker)
{
	const struct mix_job *job = data;
	const struct k3_engine *e = job->e;
	size_t hidden = e->config->hidden_size;
	const float *source[KERN_MIX_SOURCES_MAX];
	float eps = e->config->rms_norm_eps;

	(void)worker;
	for (size_t i = begin; i < end; i++) {
		size_t row = job->rows ? job->rows[i] : i;
		float *x = e->scratch.x + i * hidden;

		for (uint32_t n = 0; n <= e->n_snapshots; n++)
			source[n] = e->scratch.residual[n] + row * hidden;
		if (e->n_snapshots == 0) {
			e->kernel->rmsnorm(source[0], job->norm, hidden, eps, x);
			continue;
		}
		e->kernel->mix(source, (size_t)e->n_snapshots + 1, hidden, job->mix, eps, x);
		e->kernel->rmsnorm(x, job->norm, hidden, eps, x);
	}
}

void k3_mix(struct k3_engine *e, const float *mix, const float *norm)
{
	struct mix_job job = { e, mix, norm, NULL };

	k3_team_run(e->team, e->n_rows, 1, mix_rows, &job);
}

void k3_mix_head(struct k3_engine *e, const float *mix, const float *norm)
{
	struct mix_job job = { e, mix, norm, e->head_rows };

	k3_team_run(e->team, e->n_head_rows, 1, mix_rows, &job);
}

void k3_snapshot(struct k3_engine *e)
{
	e->n_snapshots++;
	e->residual_is_empty = true;
}

bool k3_is_finite(const float *x, size_t n)
{
	uint32_t largest = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, &x[i], sizeof(bits));
		bits &= 0x7fffffff;
		largest = bits > largest ? bits : largest;
	}
	return largest < 0x7f800000;
}

struct add_job {
	struct k3_engine *e;
	_Atomic bool is_bad;
};

static void add_rows(void *data, size_t begin, size_t end, unsigned worker)
{
	struct add_job *job = data;
	struct k3_engine *e = job->e;
	size_t hidden = e->config->hidden_size, n = (end - begin) * hidden;
	float *p = k3_residual(e) + begin * hidden;
	const float *out = e->scratch.out + begin * hidden;

	(void)worker;
	if (e->residual_is_empty)
		memcpy(p, out, n * sizeof(*p));
	else
		e->kernel->add(out, n, p);
	if (!k3_is_finite(p, n))
		job->is_bad = true;
}

void k3_residual_add(struct k3_engine *e, uint32_t layer)
{
	struct add_job job = { e, false };

	k3_team_run(e->team, e->n_rows, 1, add_rows, &job);
	e->residual_is_empty = false;
	if (job.is_bad && e->first_bad_layer == UINT32_MAX)
		e->first_bad_layer = layer;
}
