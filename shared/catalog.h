#pragma once
/*
 * The catalog: what the daemon tells a client about the model's bytes. One read-only memfd, built
 * once, mapped by every client. Fixed little-endian structs, no pointers. It speaks of tiles (the
 * unit of reading, pinning, waiting and computing) and of where inside a tile its tensors lie;
 * where the bytes come from on disk is the daemon's own affair (struct source, below).
 *
 * A tile is a run of rows of one matrix (role = that matrix), at most about CATALOG_TILE_BYTES, or
 * all small vectors of a layer (role = ROLE_BUNDLE). Tiles stand in execution order: layer by
 * layer, in a layer the bundle first and then the matrices in the order of roles.def; after the
 * last layer (layer = n_layers) the head's bundle and the tiles of lm_head. The embedding has no
 * tiles: its rows are asked for one by one. kv_b tiles end at head borders.
 */
#include <assert.h>
#include <stdint.h>

#include "shared/config.h"
#include "shared/names.h"

enum { CATALOG_TILE_BYTES = 32 << 20 };
enum { CATALOG_VERSION = 1 };
#define CATALOG_MAGIC 0x3130474c5441433bULL
enum catalog_dtype { CATALOG_F32 = 0, CATALOG_BF16 = 1, CATALOG_U8 = 2 };

struct catalog_header {
	uint64_t magic;
	uint32_t version;
	uint32_t header_size;      /* sizeof(struct catalog_header) */
	uint64_t compat, incompat; /* feature words; an unknown incompat bit is refused */
	uint8_t model_digest[16];  /* XXH3-128 over config.json and all shard headers */
	uint64_t total_size;       /* bytes of the catalog */
	uint32_t n_layers;         /* layers bound (--layers N), the head follows */
	uint32_t n_tiles;
	uint32_t n_parts;
	uint32_t n_experts;     /* per MoE layer */
	uint64_t tiles_off;     /* struct catalog_tile[n_tiles] */
	uint64_t parts_off;     /* struct catalog_part[n_parts] */
	uint64_t max_tile_size; /* largest slab_size of a tile */
	uint64_t trunk_size;    /* sum of slab_size over all tiles */
	uint64_t expert_size;   /* slab bytes of an expert slot, multiple of 4096 */
	uint32_t embed_dtype;   /* enum catalog_dtype */
	uint32_t embed_cols;
	uint64_t embed_rows;
	uint32_t expert_rows[6]; /* [expert_part], as shapes on disk (byte columns) */
	uint32_t expert_cols[6];
	uint64_t reserved[4]; /* zero */
};
static_assert(sizeof(struct catalog_header) == 208, "catalog header layout");

struct catalog_tile {
	uint32_t layer; /* n_layers for the head */
	uint16_t role;  /* enum role or ROLE_BUNDLE */
	uint16_t reserved0;
	uint32_t first_part, n_parts; /* a matrix tile has exactly one part */
	uint32_t first_row, n_rows;   /* of the matrix; 0, 0 for a bundle */
	uint64_t slab_size;           /* bytes it takes in the slab, multiple of 4096 */
	uint64_t data_size;           /* bytes of weights in it */
	uint64_t reserved1;
};
static_assert(sizeof(struct catalog_tile) == 48, "catalog tile layout");

struct catalog_part {
	uint16_t role;
	uint16_t dtype;      /* enum catalog_dtype */
	uint32_t rows, cols; /* of this part: a matrix tile's own rows; a vector has rows 1 (conv:
				width x taps) */
	uint32_t reserved;
	uint64_t offset; /* from the tile's start in the slab; any alignment */
	uint64_t size;   /* rows * cols * element size */
};
static_assert(sizeof(struct catalog_part) == 32, "catalog part layout");

/* A validated view of catalog bytes; borrowed pointers into them. */
struct catalog {
	const struct catalog_header *header;
	const struct catalog_tile *tiles;
	const struct catalog_part *parts;
};

/* Check every number of size bytes at bytes (from a peer or a file: nothing is trusted) and fill
 * the view. ERR_PROTOCOL naming the field. */
int catalog_open(const void *bytes, uint64_t size, struct catalog *ret, struct err *err);

/* Check that the tiles cover exactly the tensors config wants, with the right shapes, in order.
 * ERR_BIND lists everything missing. Run by both sides. */
int catalog_check(const struct catalog *cat, const struct config *c, struct err *err);

/*
 * How the rows of a matrix are cut into tiles of at most about tile_bytes: in units that are never
 * cut (kv_b: a head), spread evenly over the least number of tiles. row_size in bytes.
 */
struct source_cut {
	uint32_t rows, unit, n_units, n_tiles;
};
void source_cut(enum role role, const struct config *c, uint64_t row_size, uint64_t tile_bytes,
		struct source_cut *ret);
/* First row after tile i. */
uint32_t source_cut_end(const struct source_cut *cut, uint32_t i);

/*
 * ---- the daemon's side: where bytes come from -------------------------------------------------
 * A segment is one contiguous run in one file. It is read as the 4 KiB pages around it (for
 * O_DIRECT) to slab_off in the tile or slot; the first useful byte is then at
 * slab_off + file_off % 4096.
 */
struct source_segment {
	uint64_t file_off; /* first useful byte */
	uint64_t size;     /* useful bytes */
	uint64_t slab_off; /* multiple of 4096, from the start of the tile or slot */
	uint32_t file;     /* index into source.files */
	uint32_t reserved;
};

struct source_file {
	char *path; /* owned */
	int fd;     /* owned; opened O_RDONLY, buffered (the reader opens its own O_DIRECT twin) */
	uint64_t size;
};

struct source_expert {                   /* one per (MoE layer, expert) */
	uint32_t n_segments;             /* 1 when the six tensors are contiguous, else up to 6 */
	uint32_t first_segment;          /* into source.segments */
	uint32_t part_off[EXPERT_PARTS]; /* from the slot's start */
};

/* Everything known about the model's files. Owned by the daemon (or k3-store). */
struct source {
	struct config config;
	uint8_t model_digest[16];
	struct source_file *files;
	uint32_t n_files;
	void *catalog_bytes; /* owned; catalog points into it */
	uint64_t catalog_size;
	struct catalog catalog;
	struct source_segment *segments; /* of all tiles and experts */
	uint32_t n_segments;
	uint32_t *tile_segment; /* [n_tiles + 1]: first segment of each tile */
	uint32_t *expert_base;  /* [n_layers]: index of the layer's expert 0 in experts, UINT32_MAX
				   for dense layers */
	struct source_expert *experts;
	uint32_t n_experts;
	uint32_t embed_file;
	uint64_t embed_off; /* first byte of row 0 */
	uint64_t embed_row_size;
	uint64_t *tile_checksum; /* [n_tiles] XXH3-64 over the data bytes; NULL without a trunk file
				  */
	uint32_t n_trunk_files;  /* the last ones of files; 0: the tiles come from the shards */
	void *saved; /* owned mapping; the tables above lie in it: as an earlier start found them,
			source_saved.h. NULL: each is an allocation of its own */
	uint64_t saved_size;
	uint64_t n_tensors; /* indexed in all headers, for the log line */
};

struct source_want {
	const char *const *model_dirs; /* one or more; shards may be spread over them */
	uint32_t n_model_dirs;
	const char *config_path;        /* NULL: config.json of the first directory that has one */
	const char *const *trunk_paths; /* the files of one set, in any order */
	uint32_t n_trunk_paths;         /* 0: tiles straight from the shards */
	uint32_t max_layers;            /* 0: all; else bind only the first N (and the head) */
	uint64_t tile_bytes;            /* 0: CATALOG_TILE_BYTES; ignored with a trunk file */
};

/*
 * Scan all shards (every *.safetensors in the directories, headers only), bind what config wants,
 * cut tiles, build catalog and segments. Errors: ERR_CONFIG, ERR_CHECKPOINT, ERR_BIND (every
 * missing tensor class with its first name and count), ERR_TRUNK (with the command that repacks
 * it), ERR_IO. Nothing is read but headers and config.json. Caller frees with source_free.
 */
int source_open(const struct source_want *want, struct source **ret, struct err *err);
/* The named config.json (NULL: that of the first directory that has one), parsed. ERR_CONFIG. */
int source_read_config(const char *config_path, const char *const *model_dirs,
		       uint32_t n_model_dirs, struct config *ret, struct err *err);
struct source *source_free(struct source *s);
void source_freep(struct source **s);
/* NULL when the layer has no routed experts or the numbers are out of range. */
const struct source_expert *source_expert(const struct source *s, uint32_t layer, uint32_t expert);
/* Which segment of a tile or slot byte slab_off of it comes from, and which byte of the file that
 * is; NULL: padding. */
const struct source_segment *source_find_origin(const struct source *s, uint32_t first_segment,
						uint32_t n_segments, uint64_t slab_off,
						uint64_t *ret_file_off);
