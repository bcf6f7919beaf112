#pragma once
/*
 * The sidecar of checksums, written by k3-store pack and k3-store verify --write: XXH3-64 of every
 * piece of the weights that a run reads, bound to the checkpoint by its digest.
 *
 *   [sums_header, 4 KiB][blocks][experts][rows]      three tables of uint64_t, little-endian
 *
 * blocks   a run of SUMS_BLOCK_ROWS rows of a matrix (kv_b: the rows of one head; the last run may
 *          be shorter), or a whole small vector; the layers in order, in each its tensors in the
 *          order of roles.def, then those of the head
 * experts  six for each routed expert, in the order of enum expert_part; layers and experts
 *          ascending
 * rows     one for each row of the embedding
 *
 * The hashed bytes are those of the tensor and nothing else. So a sidecar does not depend on how
 * matrices are cut into tiles, nor on whether tiles come from shards or from a trunk file, as long
 * as tiles begin at block borders; and a wrong byte is told within a block. An unknown incompat
 * bit is refused.
 */
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/catalog.h"

#define SUMS_MAGIC         0x31304d555353334bULL
#define SUMS_PARTIAL_MAGIC 0x3130545241503353ULL /* while it is being written */
enum { SUMS_VERSION = 1, SUMS_BLOCK_ROWS = 16 };

struct sums_header {
	uint64_t magic;
	uint32_t version;
	uint32_t header_size;
	uint64_t compat, incompat;
	uint8_t model_digest[16]; /* as struct source */
	uint64_t file_size;
	uint32_t n_layers;
	uint32_t reserved;
	uint64_t n_blocks, n_experts, n_rows; /* numbers in the three tables */
	uint64_t n_done;          /* in a partial file: pieces read so far, in the order of files */
	uint64_t table_checksum;  /* XXH3-64 over the three tables */
	uint64_t header_checksum; /* XXH3-64 over the header with this field 0 */
};
static_assert(sizeof(struct sums_header) == 112, "sums header layout");

struct sums {
	struct sums_header header;
	uint32_t *first_block; /* owned: [(n_layers + 1) * ROLE_N_]; UINT32_MAX: no such tensor */
	uint64_t *tables;      /* owned */
	uint64_t *blocks, *experts, *rows; /* into tables */
};

/* A place that does not have its checksum. */
struct sums_fault {
	uint32_t nth;               /* set by the caller: which one of the piece, from 0; is
				       counted down */
	char name[160];             /* of the tensor */
	uint32_t first_row, n_rows; /* n_rows 0: all of it */
	uint32_t file;              /* in source->files */
	uint64_t file_off, size;    /* of the bytes that were hashed */
};

/* Empty tables for this source. ERR_NO_MEMORY, ERR_UNSUPPORTED. */
int sums_new(const struct source *s, struct sums **ret, struct err *err);
struct sums *sums_free(struct sums *m);
void sums_freep(struct sums **m);

/*
 * Read a finished sidecar for s, which may have fewer layers bound. ERR_CHECKPOINT when it is of
 * another checkpoint, damaged or unfinished, with the command that writes it anew; ERR_IO.
 */
int sums_load(const struct source *s, const char *path, struct sums **ret, struct err *err);
/* The same for a partial file: 0, or -ENODATA when there is nothing to go on from. */
int sums_load_partial(const struct source *s, const char *path, struct sums **ret);
/* Replace path atomically. n_done pieces: a partial file; UINT64_MAX: finished. -errno. */
int sums_save(struct sums *m, const char *path, uint64_t n_done);
/* TRUNK.sums beside the first trunk file that has one, or k3.sums in the first such directory;
 * NULL: none. Caller frees. */
char *sums_find(const char *const *trunks, uint32_t n_trunks, const char *const *dirs,
		uint32_t n_dirs);

/*
 * bytes: a tile, or a slot, as it lies in the slab; rows: n rows of the embedding from row first
 * on, one after another. Checks return 0, or 1 with the nth place that does not have its
 * checksum. A tile that begins inside a block has none here and passes: sums_can_check.
 */
int sums_check_tile(const struct sums *m, const struct source *s, uint32_t tile,
		    const uint8_t *bytes, struct sums_fault *ret);
int sums_check_expert(const struct sums *m, const struct source *s, uint32_t layer, uint32_t expert,
		      const uint8_t *bytes, struct sums_fault *ret);
int sums_check_rows(const struct sums *m, const struct source *s, uint32_t first, uint32_t n,
		    const uint8_t *rows, struct sums_fault *ret);
bool sums_can_check(const struct source *s);
/* Fill the tables. */
void sums_set_tile(struct sums *m, const struct source *s, uint32_t tile, const uint8_t *bytes);
void sums_set_expert(struct sums *m, const struct source *s, uint32_t layer, uint32_t expert,
		     const uint8_t *bytes);
void sums_set_rows(struct sums *m, const struct source *s, uint32_t first, uint32_t n,
		   const uint8_t *rows);

/* ERR_CHECKPOINT, or ERR_TRUNK when the bytes are those of a trunk file: file, tensor, bytes. */
int sums_fail(const struct source *s, const struct sums_fault *f, struct err *err);
