#pragma once
/*
 * Inside of source*.c only: what is known while a struct source is being built. Where each wanted
 * tensor lies (filled by source_bind.c from the shard headers), then catalog rows and segments
 * (source_tiles.c from the shards, source_trunk.c from a trunk file).
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/catalog.h"
#include "shared/shards.h"

enum { SOURCE_PAGE = 4096, SOURCE_PART_ALIGN = 64 };

/* One tensor in a shard; file UINT32_MAX: not found (yet). */
struct source_tensor {
	uint64_t off, size;
	uint32_t file;
	enum catalog_dtype dtype;
};

/* One part of an expert; file_plus_1 is 0 while it is not found, so that zeroed memory is right. */
struct source_expert_part {
	uint64_t off;
	uint32_t file_plus_1;
	uint32_t reserved;
};

struct source_build {
	struct source *s; /* being filled; owned by source_open */
	struct err *err;
	uint32_t n_layers; /* bound; the head is layer n_layers */
	struct shards shards;
	uint8_t (*digests)[16];        /* [n_files] of the headers */
	struct source_tensor *tensors; /* [(n_layers + 1) * ROLE_N_]; globals in the last row */
	struct source_expert_part **experts; /* [n_layers]: NULL or [n_experts * EXPERT_PARTS] */
	/* Growing tables, moved into the source at the end. */
	struct catalog_tile *tiles;
	struct catalog_part *parts;
	uint64_t *checksums; /* [n_tiles]; trunk file only */
	uint32_t n_tiles, n_tiles_allocated;
	uint32_t n_parts, n_parts_allocated;
	uint32_t n_firsts_allocated, n_segments_allocated;
	uint64_t expert_size;
};

static inline struct source_tensor *source_tensor_at(const struct source_build *b, uint32_t layer,
						     enum role role)
{
	return &b->tensors[(uint64_t)layer * ROLE_N_ + (uint32_t)role];
}

static inline uint64_t source_round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static inline uint32_t source_dtype_size(enum catalog_dtype t)
{
	return t == CATALOG_F32 ? 4 : t == CATALOG_BF16 ? 2 : 1;
}

/* source_bind.c: scan the headers of all shards and check that nothing wanted is missing. */
int source_bind(struct source_build *b);

/* source_tiles.c: cut the trunk into tiles over the shards; lay out the expert slots; add rows to
 * the growing tables; make the catalog's bytes of them. */
int source_cut_tiles(struct source_build *b, uint64_t tile_bytes);
int source_lay_out_experts(struct source_build *b);
int source_add_tile(struct source_build *b, const struct catalog_tile *tile);
int source_add_part(struct source_build *b, const struct catalog_part *part);
int source_add_segment(struct source_build *b, const struct source_segment *segment);
int source_make_catalog(struct source_build *b);

/* source_trunk.c: tiles, checksums and the embedding from the trunk files of want. */
int source_open_trunk(struct source_build *b, const struct source_want *want);
