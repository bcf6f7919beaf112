#include "tests/engine/fake_iod.h"

#include <stdlib.h>
#include <string.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "tests/harness/test.h"

enum { PAGE = 4096, OUTSTANDING_MAX = 1024, GARBAGE = 0x5b };

struct k3_iod {
	struct source *source;
	struct fake_iod_knobs knobs;
	uint64_t random;
	uint8_t *tile; /* the tile that is held */
	bool holds_tile;
	bool *tile_was_stale; /* [n_tiles] in this sweep */
	uint32_t next_tile;   /* lowest that may be asked for */
	uint32_t end_tile;    /* of the sweep */
	uint8_t *slot;        /* the expert that is held */
	bool holds_expert;
	uint32_t layer;
	uint16_t waiting[OUTSTANDING_MAX];
	bool was_stale[OUTSTANDING_MAX]; /* by place in waiting */
	uint32_t n_waiting;
	bool stale_next; /* the held expert's end */
};

static uint64_t draw(struct k3_iod *c)
{
	c->random ^= c->random << 13;
	c->random ^= c->random >> 7;
	c->random ^= c->random << 17;
	return c->random;
}

void fake_iod_new(struct k3_iod **ret, const char *model_dir, const struct fake_iod_knobs *knobs)
{
	struct k3_iod *c = calloc(1, sizeof(*c));
	struct source_want want = {
		.model_dirs = &model_dir,
		.n_model_dirs = 1,
		.tile_bytes = knobs->tile_bytes,
		.max_layers = knobs->max_layers,
	};
	struct err err = { 0 };
	const struct catalog_header *h;

	CHECK(c);
	CHECK_MSG(source_open(&want, &c->source, &err) == 0, "%s: %s", model_dir, err.text);
	h = c->source->catalog.header;
	c->knobs = *knobs;
	c->random = 88172645463325252ULL;
	c->tile = malloc(h->max_tile_size);
	c->slot = malloc(h->expert_size);
	c->tile_was_stale = calloc(h->n_tiles, sizeof(bool));
	CHECK(c->tile && c->slot && c->tile_was_stale);
	*ret = c;
}

struct k3_iod *k3_iod_free(struct k3_iod *c)
{
	if (!c)
		return NULL;
	source_free(c->source);
	free(c->tile);
	free(c->slot);
	free(c->tile_was_stale);
	free(c);
	return NULL;
}

void k3_iod_freep(struct k3_iod **c)
{
	*c = k3_iod_free(*c);
}

const struct config *fake_iod_config(const struct k3_iod *c)
{
	return &c->source->config;
}

const struct catalog *k3_iod_catalog(const struct k3_iod *c)
{
	return &c->source->catalog;
}

static void read_segments(struct k3_iod *c, uint32_t first, uint32_t end, uint8_t *to)
{
	for (uint32_t i = first; i < end; i++) {
		const struct source_segment *s = &c->source->segments[i];

		CHECK(fd_pread_all(c->source->files[s->file].fd,
				   to + s->slab_off + s->file_off % PAGE, s->size,
				   s->file_off) == 0);
	}
}

int k3_iod_sweep(struct k3_iod *c, uint32_t n_layers, bool head, bool again, struct err *err)
{
	const struct catalog *cat = k3_iod_catalog(c);

	(void)again;
	(void)err;
	CHECK(!c->holds_tile && c->n_waiting == 0);
	memset(c->tile_was_stale, 0, cat->header->n_tiles * sizeof(bool));
	c->next_tile = 0;
	c->end_tile = 0;
	for (uint32_t i = 0; i < cat->header->n_tiles; i++)
		if (cat->tiles[i].layer < n_layers ||
		    (head && cat->tiles[i].layer == cat->header->n_layers))
			c->end_tile = i + 1;
	return 0;
}

int k3_iod_tile(struct k3_iod *c, uint32_t tile, struct k3_tile *ret, struct err *err)
{
	const struct catalog_tile *t = &k3_iod_catalog(c)->tiles[tile];

	(void)err;
	CHECK(!c->holds_tile && !c->holds_expert);
	CHECK_MSG(tile >= c->next_tile && tile < c->end_tile, "tile %u is asked for out of order",
		  tile);
	c->next_tile = tile;
	c->holds_tile = true;
	if (c->knobs.all_stale_once && !c->tile_was_stale[tile])
		memset(c->tile, GARBAGE, t->slab_size);
	else
		read_segments(c, c->source->tile_segment[tile], c->source->tile_segment[tile + 1],
			      c->tile);
	if (c->knobs.has_nan && t->layer == c->knobs.nan_layer && t->role != ROLE_BUNDLE)
		memset(c->tile + k3_iod_catalog(c)->parts[t->first_part].offset, 0xff, 4);
	*ret = (struct k3_tile){ .tile = tile, .base = c->tile };
	return 0;
}

bool k3_iod_tile_is_ready(struct k3_iod *c, uint32_t tile)
{
	CHECK(tile >= c->next_tile && tile < c->end_tile);
	return c->knobs.order != FAKE_SHUFFLED || draw(c) % 2;
}

int k3_iod_wait_tile_or_expert(struct k3_iod *c, uint32_t tile, struct err *err)
{
	(void)err;
	(void)tile;
	CHECK(c->n_waiting > 0 && !c->holds_tile && !c->holds_expert);
	return 0;
}

int k3_iod_tile_done(struct k3_iod *c, const struct k3_tile *t, struct err *err)
{
	(void)err;
	CHECK(c->holds_tile && t->tile == c->next_tile);
	c->holds_tile = false;
	memset(c->tile, 0xff, k3_iod_catalog(c)->tiles[t->tile].slab_size);
	if (c->knobs.all_stale_once && !c->tile_was_stale[t->tile]) {
		c->tile_was_stale[t->tile] = true;
		return K3_IOD_STALE;
	}
	c->next_tile++;
	return 0;
}

int k3_iod_rows(struct k3_iod *c, const uint32_t *ids, size_t n, float *out, struct err *err)
{
	const struct source *s = c->source;
	uint32_t cols = s->catalog.header->embed_cols;
	uint8_t *row = malloc(s->embed_row_size);

	(void)err;
	CHECK(row);
	for (size_t i = 0; i < n; i++) {
		CHECK(ids[i] < s->catalog.header->embed_rows);
		CHECK(fd_pread_all(s->files[s->embed_file].fd, row, s->embed_row_size,
				   s->embed_off + ids[i] * s->embed_row_size) == 0);
		if (s->catalog.header->embed_dtype == CATALOG_F32) {
			memcpy(out + i * cols, row, cols * sizeof(*out));
			continue;
		}
		for (uint32_t j = 0; j < cols; j++) {
			uint32_t bits = (uint32_t)row[2 * j] << 16 | (uint32_t)row[2 * j + 1] << 24;

			memcpy(&out[i * cols + j], &bits, sizeof(bits));
		}
	}
	free(row);
	return 0;
}

int k3_iod_experts(struct k3_iod *c, uint32_t layer, const uint16_t *ids, size_t n, struct err *err)
{
	(void)err;
	CHECK(c->n_waiting == 0 && n > 0 && n <= OUTSTANDING_MAX && !c->holds_tile);
	for (size_t i = 1; i < n; i++)
		CHECK(ids[i - 1] < ids[i]);
	c->layer = layer;
	memcpy(c->waiting, ids, n * sizeof(*ids));
	memset(c->was_stale, 0, sizeof(c->was_stale));
	c->n_waiting = (uint32_t)n;
	return 0;
}

int k3_iod_expert_next(struct k3_iod *c, bool wait, struct k3_expert *ret, struct err *err)
{
	const struct source_expert *x;
	uint32_t at = 0;

	(void)err;
	CHECK(!c->holds_expert && !c->holds_tile);
	if (c->n_waiting == 0 || (!wait && c->knobs.experts_are_late))
		return K3_IOD_NONE;
	if (c->knobs.order == FAKE_DESCENDING)
		at = c->n_waiting - 1;
	if (c->knobs.order == FAKE_SHUFFLED) {
		at = (uint32_t)(draw(c) % c->n_waiting);
		if (!wait && draw(c) % 2)
			return K3_IOD_NONE;
	}
	*ret = (struct k3_expert){ .layer = c->layer, .expert = c->waiting[at], .slot = at };
	x = source_expert(c->source, c->layer, c->waiting[at]);
	CHECK(x);
	c->stale_next = c->knobs.all_stale_once && !c->was_stale[at];
	if (c->stale_next)
		memset(c->slot, GARBAGE, k3_iod_catalog(c)->header->expert_size);
	else
		read_segments(c, x->first_segment, x->first_segment + x->n_segments, c->slot);
	for (unsigned i = 0; i < EXPERT_PARTS; i++)
		ret->part[i] = c->slot + x->part_off[i];
	c->holds_expert = true;
	return 0;
}

int k3_iod_expert_done(struct k3_iod *c, const struct k3_expert *e, struct err *err)
{
	(void)err;
	CHECK(c->holds_expert && e->expert == c->waiting[e->slot]);
	c->holds_expert = false;
	memset(c->slot, 0xff, k3_iod_catalog(c)->header->expert_size);
	if (c->stale_next) {
		c->was_stale[e->slot] = true;
		return K3_IOD_STALE;
	}
	c->n_waiting--;
	memmove(c->waiting + e->slot, c->waiting + e->slot + 1,
		(c->n_waiting - e->slot) * sizeof(*c->waiting));
	memmove(c->was_stale + e->slot, c->was_stale + e->slot + 1,
		(c->n_waiting - e->slot) * sizeof(*c->was_stale));
	return 0;
}
