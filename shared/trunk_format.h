#pragma once
/*
 * The trunk file (k3-store pack): every text tensor outside the routed experts in execution order.
 *
 *   [trunk_header, 4 KiB][tile table][part table][pad to 4 KiB][tile data, each tile 4 KiB aligned
 * ...][embedding rows]
 *
 * Little-endian. An unknown incompat bit is refused. The tables are covered by table_checksum, each
 * tile by its own; data of a tile = its parts one after another, each part at a multiple of 64
 * bytes, zero bytes between and after up to the next multiple of 4096.
 *
 * A set of files (several OUT) has TRUNK_INCOMPAT_SET, and struct trunk_set after the header of
 * each. Their headers are the same but for file_size and header_checksum, their tables the same
 * altogether: those of the whole set. A tile lies in the file that its row names, the embedding in
 * one of them. Tiles go in their order to the file with the fewest bytes so far, so that a sweep
 * reads all of them at once.
 */
#include <assert.h>
#include <stdint.h>

#include "shared/catalog.h"

#define TRUNK_MAGIC 0x31304b4e5552544bULL
enum { TRUNK_VERSION = 1, TRUNK_SET_MAX = 32 };
enum { TRUNK_INCOMPAT_SET = 1 };

struct trunk_header {
	uint64_t magic;
	uint32_t version;
	uint32_t header_size;
	uint64_t compat, incompat;
	uint8_t model_digest[16]; /* as struct source: binds the file to config and shard headers */
	uint64_t file_size;
	uint32_t n_layers, n_tiles, n_parts, reserved0;
	uint64_t tiles_off,
		parts_off;       /* struct trunk_tile[n_tiles], struct catalog_part[n_parts] */
	uint64_t table_checksum; /* XXH3-64 over both tables */
	uint64_t tile_bytes;     /* the cut used */
	uint64_t embed_off, embed_size;
	uint64_t embed_checksum;
	uint32_t embed_dtype, embed_cols;
	uint64_t header_checksum; /* XXH3-64 over the header with this field 0 */
};
static_assert(sizeof(struct trunk_header) == 144, "trunk header layout");

/* At byte sizeof(struct trunk_header); zero in a file that is no part of a set. */
struct trunk_set {
	/* XXH3-128, canonical, over the header with file_size and header_checksum 0: the same in
	 * all files of the set, and in no other, as it covers the checksum of the tables */
	uint8_t digest[16];
	uint32_t index, n; /* this file, from 0, of so many */
	uint32_t embed;    /* the file with the embedding */
	uint32_t reserved;
	uint64_t checksum; /* XXH3-64 over this struct with this field 0 */
};
static_assert(sizeof(struct trunk_set) == 40, "trunk set layout");

struct trunk_tile {
	struct catalog_tile tile; /* reserved1: the file of the set; 0 when there is one only */
	uint64_t file_off;        /* multiple of 4096 */
	uint64_t checksum;        /* XXH3-64 over slab_size bytes at file_off */
};
static_assert(sizeof(struct trunk_tile) == 64, "trunk tile layout");

/* source_trunk.c: what all files of the set have in common, as trunk_set.digest. */
void source_trunk_set_digest(const struct trunk_header *h, uint8_t ret[16]);
