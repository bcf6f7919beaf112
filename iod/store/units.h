#pragma once
/*
 * All weights of a checkpoint as a list of pieces in the order in which they lie in the files: the
 * tiles, the experts, the embedding some rows at a time. k3-store verify reads them one after
 * another, from the disk and not from the page cache where that can be had. Never logs.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/catalog.h"

enum iod_unit_kind { IOD_UNIT_TILE, IOD_UNIT_EXPERT, IOD_UNIT_ROWS };

struct iod_unit {
	const struct source *s; /* borrowed */
	enum iod_unit_kind kind;
	uint32_t index;         /* of the tile; of the first row */
	uint32_t layer, expert; /* of an expert */
	uint32_t n_rows;
	uint32_t file;
	uint64_t off, size; /* where it begins, for the order; bytes of weights */
};

struct iod_units {
	struct iod_unit *items; /* owned */
	uint32_t n, n_allocated;
	uint64_t size;     /* sum */
	uint64_t max_room; /* bytes that reading any of them takes */
};

/* Add the tiles and embedding of s, and its experts when with_experts; then sort. */
int iod_units_add(struct iod_units *u, const struct source *s, bool with_experts, struct err *err);
void iod_units_deinit(struct iod_units *u);

struct iod_unit_reader {
	uint8_t *buf;      /* owned */
	uint64_t rate;     /* bytes a second at most; 0: no bound */
	uint64_t began_ns; /* for the rate */
	uint64_t bytes;
	const struct source *s; /* of the descriptor */
	uint32_t file;
	int fd;         /* owned: the file's O_DIRECT twin; -1: buffered */
	bool is_direct; /* all files so far */
};

int iod_unit_reader_init(struct iod_unit_reader *r, const struct iod_units *u, uint64_t rate,
			 struct err *err);
void iod_unit_reader_deinit(struct iod_unit_reader *r);
/* Read one: *ret_bytes as it would lie in the slab (rows: one after another), until the next call.
 * ERR_IO naming file and offset. */
int iod_unit_read(struct iod_unit_reader *r, const struct iod_unit *unit, const uint8_t **ret_bytes,
		  struct err *err);
/* So many bytes were read otherwise: wait as the rate wants it. */
void iod_unit_reader_hold(struct iod_unit_reader *r, uint64_t bytes);
