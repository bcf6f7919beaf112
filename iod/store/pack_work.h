#pragma once
/*
 * Inside of pack*.c: a pack at work. pack.c has the order of things and writes, pack_partial.c the
 * partial files and what can be used of them again, pack_verify.c reads back.
 */
#include "iod/store/pack.h"
#include "iod/store/pack_plan.h"

#define PACK_PARTIAL_MAGIC 0x315452504b4e5254ULL

enum { PACK_PAGE = 4096, PACK_PIECE_SIZE = 16 << 20 };

struct iod_pack_file {
	const char *out;
	char *partial;      /* owned: OUT.partial */
	int fd;             /* owned: of the partial file, locked */
	uint64_t unflushed; /* bytes written since the kernel was asked to write them out */
	bool is_same_plan;  /* what an earlier run has left fits */
	bool is_bad;        /* the partial file is nothing to go on from */
};

struct iod_pack_work {
	const struct iod_pack_want *want;
	struct err *err;
	struct iod_pack_plan plan;
	struct iod_pack_file files[TRUNK_SET_MAX];
	uint32_t n_files;
	char *buf; /* owned: the largest tile or a piece, page aligned */
	uint64_t buf_size;
	uint64_t resumed;
	struct iod_pack_progress progress;
};

static inline struct iod_pack_file *iod_pack_tile_file(struct iod_pack_work *k,
						       const struct trunk_tile *t)
{
	return &k->files[t->tile.reserved1];
}

/* pack.c */
void iod_pack_start_phase(struct iod_pack_work *k, enum iod_pack_phase phase, uint64_t total);
void iod_pack_advance(struct iod_pack_work *k, uint64_t bytes);
/* A failed write: a full disk (or quota, or file size limit) is told apart. */
int iod_pack_fail_write(struct iod_pack_work *k, struct iod_pack_file *f, int r);
int iod_pack_write_at(struct iod_pack_work *k, struct iod_pack_file *f, const void *buf,
		      uint64_t size, uint64_t off);
/* pack_partial.c: all that must be refused before a byte is written */
int iod_pack_check_outs(const struct iod_pack_work *k, const struct source *s);
/* Open the partial files and lock them; they are begun, or what is done in them is found: tiles
 * with a checksum in the plan. */
int iod_pack_open_partials(struct iod_pack_work *k);
/* pack_verify.c: all files, from the disk where it can be. */
int iod_pack_verify(struct iod_pack_work *k, bool *ret_is_direct);
