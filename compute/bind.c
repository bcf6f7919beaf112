#include "compute/bind.h"

#include <stdlib.h>

static int take_bundle(struct k3_layer_tiles *l, uint32_t tile, struct err *err)
{
	if (l->bundle != UINT32_MAX)
		return err_set(err, ERR_BIND,
			       "tile %u of the catalog is a second bundle of a layer", tile);
	l->bundle = tile;
	return 0;
}

static int take_matrix(struct k3_matrix *m, const struct catalog *cat, uint32_t tile,
		       struct err *err)
{
	const struct catalog_tile *t = &cat->tiles[tile];
	const struct catalog_part *p = &cat->parts[t->first_part];
	enum kern_format format = p->dtype == CATALOG_F32 ? KERN_F32 : KERN_BF16;

	if (p->dtype != CATALOG_F32 && p->dtype != CATALOG_BF16)
		return err_set(err, ERR_BIND, "%s of layer %u is neither BF16 nor F32",
			       role_name(t->role), t->layer);
	if (m->n_tiles == 0) {
		m->first_tile = tile;
		m->format = format;
		m->cols = p->cols;
	}
	if (tile != m->first_tile + m->n_tiles || t->first_row != m->rows || p->cols != m->cols ||
	    format != m->format)
		return err_set(err, ERR_BIND,
			       "the tiles of %s of layer %u do not follow each other",
			       role_name(t->role), t->layer);
	m->n_tiles++;
	m->rows += t->n_rows;
	return 0;
}

int k3_bind_init(struct k3_bind *b, const struct catalog *cat, struct err *err)
{
	int r;

	b->catalog = cat;
	b->n_layers = cat->header->n_layers;
	b->layers = calloc((size_t)b->n_layers + 1, sizeof(*b->layers));
	if (!b->layers)
		return err_set(err, ERR_NO_MEMORY, "no memory for the table of tiles");
	for (uint32_t l = 0; l <= b->n_layers; l++)
		b->layers[l].bundle = UINT32_MAX;
	for (uint32_t i = 0; i < cat->header->n_tiles; i++) {
		const struct catalog_tile *t = &cat->tiles[i];

		if (t->layer > b->n_layers || (t->role != ROLE_BUNDLE && t->role >= ROLE_N_))
			return err_set(err, ERR_BIND, "tile %u of the catalog belongs nowhere", i);
		if (t->role == ROLE_BUNDLE)
			r = take_bundle(&b->layers[t->layer], i, err);
		else
			r = take_matrix(&b->layers[t->layer].matrix[t->role], cat, i, err);
		if (r < 0)
			return r;
	}
	for (uint32_t l = 0; l <= b->n_layers; l++)
		if (b->layers[l].bundle == UINT32_MAX)
			return err_set(err, ERR_BIND,
				       "the catalog has no small vectors of layer %u", l);
	return 0;
}

void k3_bind_deinit(struct k3_bind *b)
{
	free(b->layers);
	b->layers = NULL;
}
