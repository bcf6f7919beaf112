/*
 * The engine as its users see it: made from a config and a connection, planned, freed.
 */
#include "compute/engine.h"

#include <stdlib.h>
#include <unistd.h>

#include "compute/layers.h"
#include "shared/attr.h"
#include "shared/standard.h"

_Static_assert(KERN_STACK + (256 << 10) <= STANDARD_STACK_LEAST, "a kernel and its callers");

void k3_engine_plan(const struct config *c, uint32_t n_layers, uint32_t max_rows,
		    uint32_t max_positions, struct k3_engine_memory *ret)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	struct k3_scratch_want want = {
		.config = c,
		.n_layers = n_layers,
		.max_rows = max_rows,
		.max_positions = max_positions,
		/* The team is not made yet and has no more threads than that. */
		.n_workers = cpus > 0 ? (unsigned)cpus : 1,
	};
	struct k3_scratch_size scratch;
	struct k3_state_size state;

	k3_scratch_plan(&want, &scratch);
	k3_state_plan(c, n_layers, max_positions, &state);
	*ret = (struct k3_engine_memory){
		.scratch = scratch.activations,
		.vectors = scratch.vectors,
		.contributions = scratch.contributions,
		.state_kda = state.kda,
		.state_mla = state.mla,
		.logits = (uint64_t)c->vocab_size * sizeof(float),
		.stacks = (uint64_t)want.n_workers * KERN_STACK,
	};
}

static int check_settings(const struct k3_engine_settings *s, struct err *err)
{
	const struct config *c = s->config;
	const struct catalog *cat = k3_iod_catalog(s->iod);

	if (!c->has_renormalize || !c->has_latent_norm)
		return err_set(err, ERR_CONFIG,
			       "moe_renormalize and latent_moe_use_norm must be true: this engine "
			       "has no other form of the mixture of experts");
	if (s->n_layers == 0 || s->n_layers > cat->header->n_layers)
		return err_set(err, ERR_USAGE, "%u layers are asked for, the daemon has %u",
			       s->n_layers, cat->header->n_layers);
	if ((s->n_layers - 1) / c->block_size + 2 > KERN_MIX_SOURCES_MAX)
		return err_set(err, ERR_CONFIG,
			       "%u layers in blocks of %u have more than %d sources in a mix",
			       s->n_layers, c->block_size, KERN_MIX_SOURCES_MAX);
	if (s->max_rows == 0 || s->max_positions == 0)
		return err_set(err, ERR_USAGE, "a step needs room for a row and a position");
	return catalog_check(cat, c, err);
}

int k3_engine_new(struct k3_engine **ret, const struct k3_engine_settings *settings,
		  struct err *err)
{
	CLEANUP(k3_engine_freep) struct k3_engine *e = NULL;
	struct k3_scratch_want want = {
		.config = settings->config,
		.n_layers = settings->n_layers,
		.max_rows = settings->max_rows,
		.max_positions = settings->max_positions,
		.n_workers = k3_team_n_threads(settings->team),
	};
	int r = check_settings(settings, err);

	if (r < 0)
		return r;
	e = calloc(1, sizeof(*e));
	if (!e)
		return err_set(err, ERR_NO_MEMORY, "no memory for the engine");
	e->config = settings->config;
	e->iod = settings->iod;
	e->timeline = settings->timeline;
	e->team = settings->team;
	e->kernel = settings->kernels;
	e->n_layers = settings->n_layers;
	e->max_rows = settings->max_rows;
	e->max_positions = settings->max_positions;
	e->groups = calloc(e->max_rows, sizeof(*e->groups));
	e->head_rows = calloc(e->max_rows, sizeof(*e->head_rows));
	if (!e->groups || !e->head_rows)
		return err_set(err, ERR_NO_MEMORY, "no memory for the rows of a step");
	r = k3_bind_init(&e->bind, k3_iod_catalog(e->iod), err);
	if (r == 0)
		r = k3_scratch_init(&e->scratch, &want, err);
	if (r < 0)
		return r;
	*ret = TAKE(e);
	return 0;
}

struct k3_engine *k3_engine_free(struct k3_engine *e)
{
	if (!e)
		return NULL;
	k3_scratch_deinit(&e->scratch);
	k3_bind_deinit(&e->bind);
	free(e->groups);
	free(e->head_rows);
	free(e);
	return NULL;
}

void k3_engine_freep(struct k3_engine **e)
{
	*e = k3_engine_free(*e);
}

void k3_engine_on_routing(struct k3_engine *e, k3_routing_fn *fn, void *data)
{
	e->on_routing = fn;
	e->routing_data = data;
}

void k3_engine_on_value(struct k3_engine *e, k3_value_fn *fn, void *data)
{
	e->on_value = fn;
	e->value_data = data;
}
