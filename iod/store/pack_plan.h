#pragma once
/*
 * Inside of pack*.c: the finished file, planned before a byte is written. The same checkpoint and
 * tile size give the same plan, so a trunk file's bytes depend on nothing else.
 */
#include "shared/catalog.h"
#include "shared/trunk_format.h"

struct iod_pack_plan {
	const struct source *s;     /* borrowed */
	struct trunk_header header; /* checksums still 0; file_size: see iod_pack_plan_header */
	struct trunk_tile *tiles;   /* owned; checksums still 0 */
	uint32_t n_files, embed;    /* embed: the file with the embedding */
	uint64_t file_sizes[TRUNK_SET_MAX];
	uint64_t size;              /* of all files together */
	struct catalog_part *parts; /* owned; offsets as in the trunk file */
	uint64_t tables_size;       /* of tiles and parts together, adjacent in the file */
	uint64_t max_tile_size;
};

/* ERR_USAGE when there are more files than tiles. */
int iod_pack_plan_init(struct iod_pack_plan *p, const struct source *s, uint64_t tile_bytes,
		       uint32_t n_files, struct err *err);
/* The header of a file, and in a set what follows it, else zero; checksums and digest as far as
 * they are in the plan's header. */
void iod_pack_plan_header(const struct iod_pack_plan *p, uint32_t file, struct trunk_header *ret,
			  struct trunk_set *ret_set);
void iod_pack_plan_deinit(struct iod_pack_plan *p);

/* Their digest and checksums, when those of tables and embedding are there. */
void iod_pack_seal(struct trunk_header *h, struct trunk_set *set);

/* Read one tile's parts from the shards into buf (slab_size bytes, gaps zeroed). */
int iod_pack_read_tile(const struct iod_pack_plan *p, uint32_t tile, void *buf, struct err *err);
/* Read size bytes of the embedding, from its byte off on. */
int iod_pack_read_embedding(const struct iod_pack_plan *p, uint64_t off, void *buf, uint64_t size,
			    struct err *err);
