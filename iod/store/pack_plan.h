#pragma once
/*
 * Inside of pack*.c: the finished file, planned before a byte is written. The same checkpoint and
 * tile size give the same plan, so a trunk file's bytes depend on nothing else.
 */
#include "shared/catalog.h"
#include "shared/trunk_format.h"

struct iod_pack_plan {
	const struct source *s;     /* borrowed */
	struct trunk_header header; /* checksums still 0 */
	struct trunk_tile *tiles;   /* owned; checksums still 0 */
	struct catalog_part *parts; /* owned; offsets as in the trunk file */
	uint64_t tables_size;       /* of tiles and parts together, adjacent in the file */
	uint64_t max_tile_size;
};

int iod_pack_plan_init(struct iod_pack_plan *p, const struct source *s, uint64_t tile_bytes,
		       struct err *err);
void iod_pack_plan_deinit(struct iod_pack_plan *p);

/* Read one tile's parts from the shards into buf (slab_size bytes, gaps zeroed). */
int iod_pack_read_tile(const struct iod_pack_plan *p, uint32_t tile, void *buf, struct err *err);
/* Read size bytes of the embedding, from its byte off on. */
int iod_pack_read_embedding(const struct iod_pack_plan *p, uint64_t off, void *buf, uint64_t size,
			    struct err *err);
