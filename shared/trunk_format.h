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
 */
#include <assert.h>
#include <stdint.h>

#include "shared/catalog.h"

#define TRUNK_MAGIC 0x31304b4e5552544bULL
enum { TRUNK_VERSION = 1 };

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

struct trunk_tile {
	struct catalog_tile tile;
	uint64_t file_off; /* multiple of 4096 */
	uint64_t checksum; /* XXH3-64 over slab_size bytes at file_off */
};
static_assert(sizeof(struct trunk_tile) == 64, "trunk tile layout");
