#include "compute/model_size.h"

#include "shared/catalog.h"
#include "shared/names.h"
#include "shared/slab_layout.h"

static uint64_t round_to_page(uint64_t size)
{
	return (size + SLAB_PAGE - 1) / SLAB_PAGE * SLAB_PAGE;
}

/* A walk over all tiles: sums, and what of a budget would be pinned. */
struct walk {
	struct k3_model_size size;
	double share; /* of the trunk that a budget is */
	double debt;
	uint64_t budget, pinned;
};

/* As iod/trunk.c chooses: a tile that the debt covers. */
static void pin_tile(struct walk *w, uint64_t slab_size)
{
	w->debt += w->share * (double)slab_size;
	if (w->debt < (double)slab_size || w->pinned + slab_size > w->budget)
		return;
	w->debt -= (double)slab_size;
	w->pinned += slab_size;
}

static void add_tile(struct walk *w, uint64_t size)
{
	struct k3_model_size *m = &w->size;
	/* read as whole pages: a run that starts inside a page takes one more */
	uint64_t slab_size = round_to_page(size) + SLAB_PAGE;

	m->trunk_size += slab_size;
	m->n_tiles++;
	if (slab_size > m->max_tile_size)
		m->max_tile_size = slab_size;
	pin_tile(w, slab_size);
}

/* A matrix of bf16 rows. */
static void add_matrix(struct walk *w, const struct config *c, enum role role, uint64_t tile_bytes)
{
	struct source_cut cut;
	uint32_t rows, cols, done = 0;

	role_shape(role, c, &rows, &cols);
	source_cut(role, c, 2ull * cols, tile_bytes, &cut);
	for (uint32_t i = 0; i < cut.n_tiles; i++) {
		uint32_t next = source_cut_end(&cut, i);

		add_tile(w, 2ull * (next - done) * cols);
		done = next;
	}
}

/* The small vectors of a layer, f32 at most, each in its own pages at worst. */
static void add_bundle(struct walk *w, const struct config *c, uint32_t layer, bool is_head)
{
	uint64_t size = 0;

	for (uint32_t role = 0; role < ROLE_N_; role++) {
		uint32_t rows, cols;
		bool here = is_head ? role_layer_kind(role) == LAYER_HEAD
				    : role_in_layer(role, c, layer);

		if (!here || !role_is_vector(role))
			continue;
		role_shape(role, c, &rows, &cols);
		size += round_to_page(4ull * rows * cols);
	}
	add_tile(w, size);
}

/* The vectors that the released checkpoint stores as f32; everything else is bf16. */
static bool is_released_as_f32(enum role role)
{
	switch (role) {
	case ROLE_KDA_Q_CONV:
	case ROLE_KDA_K_CONV:
	case ROLE_KDA_V_CONV:
	case ROLE_KDA_A_LOG:
	case ROLE_KDA_DT_BIAS:
	case ROLE_KDA_O_NORM:
	case ROLE_ROUTER_BIAS:
		return true;
	default:
		return false;
	}
}

static void add_data(struct k3_model_size *m, const struct config *c, enum role role, bool is_head)
{
	uint32_t rows, cols;
	uint64_t size;

	role_shape(role, c, &rows, &cols);
	size = (uint64_t)rows * cols * (is_released_as_f32(role) ? 4 : 2);
	*(is_head ? &m->head_data : &m->layers_data) += size;
	if (role == ROLE_SHARED_GATE || role == ROLE_SHARED_UP || role == ROLE_SHARED_DOWN)
		m->shared_data += size;
}

static void add_layer(struct walk *w, const struct config *c, uint32_t layer, bool is_head,
		      uint64_t tile_bytes)
{
	add_bundle(w, c, layer, is_head);
	for (uint32_t role = 0; role < ROLE_N_; role++) {
		bool here = is_head ? role_layer_kind(role) == LAYER_HEAD
				    : role_in_layer(role, c, layer);

		if (here)
			add_data(&w->size, c, role, is_head);
		if (here && !role_is_vector(role))
			add_matrix(w, c, role, tile_bytes);
	}
}

static void walk_tiles(struct walk *w, const struct config *c, uint32_t n_layers,
		       uint64_t tile_bytes)
{
	if (tile_bytes == 0)
		tile_bytes = CATALOG_TILE_BYTES;
	for (uint32_t layer = 0; layer < n_layers; layer++) {
		add_layer(w, c, layer, false, tile_bytes);
		if (config_layer_is_moe(c, layer))
			w->size.n_moe_layers++;
	}
	add_layer(w, c, n_layers, true, tile_bytes);
}

void k3_model_size(const struct config *c, uint32_t n_layers, uint64_t tile_bytes,
		   struct k3_model_size *ret)
{
	struct walk w = { 0 };
	struct k3_model_size *m = &w.size;
	uint64_t expert = 0;

	walk_tiles(&w, c, n_layers, tile_bytes);
	for (uint32_t part = 0; part < EXPERT_PARTS; part++) {
		uint32_t rows, cols;

		expert_part_shape(part, c, &rows, &cols);
		expert += (uint64_t)rows * cols;
	}
	m->expert_data = expert;
	m->embed_row = 2ull * c->hidden_size;
	m->n_experts = m->n_moe_layers * c->n_experts;
	m->expert_size = m->n_experts > 0 ? round_to_page(expert) + SLAB_PAGE : 0;
	*ret = *m;
}

uint64_t k3_model_pinned(const struct config *c, uint32_t n_layers, uint64_t tile_bytes,
			 const struct k3_model_size *size, uint64_t budget)
{
	struct walk w = { .budget = budget };

	if (budget >= size->trunk_size)
		return size->trunk_size;
	w.share = (double)budget / (double)size->trunk_size;
	walk_tiles(&w, c, n_layers, tile_bytes);
	return w.pinned;
}
