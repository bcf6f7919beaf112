/*
 * The MLPs whose weights are tiles: the dense one of the first layers and the shared experts
 * (k3-architecture 3.5): down(SiTU_GLU(gate x, up x)).
 */
#include "compute/layers.h"

/* Elements of the activation that stay with one worker. */
enum { GRAIN = 512 };

static void activate(void *data, size_t begin, size_t end, unsigned worker)
{
	struct k3_engine *e = data;
	struct k3_scratch *s = &e->scratch;

	(void)worker;
	e->kernel->situ(s->gate + begin, s->up + begin, end - begin, e->config->situ_beta,
			e->config->situ_linear_beta, s->gate + begin);
}

struct mlp_roles {
	enum role gate, up, down;
};

static int run_mlp(struct k3_engine *e, uint32_t layer, const struct mlp_roles *roles, size_t width,
		   struct k3_input *in, struct err *err)
{
	struct k3_scratch *s = &e->scratch;
	struct k3_input inner;
	int r;

	r = k3_multiply(e, layer, roles->gate, in, s->gate, err);
	if (r == 0)
		r = k3_multiply(e, layer, roles->up, in, s->up, err);
	if (r < 0)
		return r;
	k3_team_run(e->team, e->n_rows * width, GRAIN, activate, e);
	k3_input_set(&inner, s->gate, e->n_rows, width, s->packed_mid);
	return k3_multiply(e, layer, roles->down, &inner, s->out, err);
}

int k3_layer_dense(struct k3_engine *e, uint32_t layer, struct k3_input *in, struct err *err)
{
	static const struct mlp_roles roles = { ROLE_DENSE_GATE, ROLE_DENSE_UP, ROLE_DENSE_DOWN };

	return run_mlp(e, layer, &roles, e->config->dense_size, in, err);
}

int k3_layer_shared(struct k3_engine *e, uint32_t layer, struct k3_input *in, struct err *err)
{
	static const struct mlp_roles roles = { ROLE_SHARED_GATE, ROLE_SHARED_UP,
						ROLE_SHARED_DOWN };

	return run_mlp(e, layer, &roles, config_shared_size(e->config), in, err);
}
