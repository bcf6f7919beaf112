/*
 * Packing and going on with it. While a pack runs, OUT.partial has the final layout with one
 * difference: its header carries PACK_PARTIAL_MAGIC and no checksums. The row of a tile in the
 * table is written after the tile, with its checksum, to the file of the tile; so the table is the
 * journal. A new run that finds a partial file of the same plan reads the tiles with a row back and
 * keeps those whose checksum is right; everything else is written again. The headers with the real
 * magic come last, then all is synced, dropped from the page cache, read back and compared, and
 * only when that is true of every file are they renamed.
 */
#include "iod/store/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "iod/store/pack_work.h"
#include "shared/attr.h"
#include "shared/fd.h"

enum { FLUSH_BYTES = 256 << 20 };

static void work_deinit(struct iod_pack_work *k)
{
	iod_pack_plan_deinit(&k->plan);
	for (uint32_t i = 0; i < k->n_files; i++) {
		(void)fd_close(k->files[i].fd);
		free(k->files[i].partial);
	}
	free(k->buf);
}

void iod_pack_advance(struct iod_pack_work *k, uint64_t bytes)
{
	k->progress.done += bytes;
	if (k->want->progress)
		k->want->progress(k->want->data, &k->progress);
}

void iod_pack_start_phase(struct iod_pack_work *k, enum iod_pack_phase phase, uint64_t total)
{
	k->progress = (struct iod_pack_progress){ .phase = phase, .total = total };
}

int iod_pack_fail_write(struct iod_pack_work *k, struct iod_pack_file *f, int r)
{
	f->is_bad = r == -ENOSPC || r == -EDQUOT || r == -EFBIG;
	if (f->is_bad)
		return err_set(k->err, ERR_SPACE,
			       "%s: %s; %.3f GB are needed, the partial file is removed",
			       f->partial, strerror(-r),
			       (double)k->plan.file_sizes[f - k->files] / 1e9);
	return err_set(k->err, ERR_IO, "%s: writing failed: %s; the same command goes on from here",
		       f->partial, strerror(-r));
}

int iod_pack_write_at(struct iod_pack_work *k, struct iod_pack_file *f, const void *buf,
		      uint64_t size, uint64_t off)
{
	int r = fd_pwrite_all(f->fd, buf, size, off);

	if (r < 0)
		return iod_pack_fail_write(k, f, r);
	f->unflushed += size;
	if (f->unflushed >= FLUSH_BYTES) {
		/* Bound the dirty pages, so that the last sync is short and others keep memory. */
		if (fdatasync(f->fd) < 0)
			return iod_pack_fail_write(k, f, -errno);
		(void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
		f->unflushed = 0;
	}
	return 0;
}

/* ---- copying ----------------------------------------------------------------------------- */

static int write_tiles(struct iod_pack_work *k)
{
	for (uint32_t i = 0; i < k->plan.header.n_tiles; i++) {
		struct trunk_tile *t = &k->plan.tiles[i];
		struct iod_pack_file *f = iod_pack_tile_file(k, t);
		int r;

		if (t->checksum)
			continue;
		r = iod_pack_read_tile(&k->plan, i, k->buf, k->err);
		if (r < 0)
			return r;
		t->checksum = XXH3_64bits(k->buf, t->tile.slab_size);
		r = iod_pack_write_at(k, f, k->buf, t->tile.slab_size, t->file_off);
		if (r == 0)
			r = iod_pack_write_at(k, f, t, sizeof(*t),
					      k->plan.header.tiles_off + i * sizeof(*t));
		if (r < 0)
			return r;
		iod_pack_advance(k, t->tile.slab_size);
	}
	return 0;
}

static int write_embedding(struct iod_pack_work *k)
{
	static const char zeros[PACK_PAGE];
	struct iod_pack_file *f = &k->files[k->plan.embed];
	struct trunk_header *h = &k->plan.header;
	uint64_t end = h->embed_off + h->embed_size;
	XXH3_state_t *state = XXH3_createState();
	int r = state ? 0 : err_set(k->err, ERR_NO_MEMORY, "out of memory");

	if (r == 0)
		(void)XXH3_64bits_reset(state);
	for (uint64_t at = 0; r == 0 && at < h->embed_size;) {
		uint64_t left = h->embed_size - at;
		uint64_t n = left < PACK_PIECE_SIZE ? left : PACK_PIECE_SIZE;

		r = iod_pack_read_embedding(&k->plan, at, k->buf, n, k->err);
		if (r < 0)
			break;
		(void)XXH3_64bits_update(state, k->buf, n);
		r = iod_pack_write_at(k, f, k->buf, n, h->embed_off + at);
		at += n;
		iod_pack_advance(k, n);
	}
	if (r == 0)
		h->embed_checksum = XXH3_64bits_digest(state);
	(void)XXH3_freeState(state);
	return r < 0 ? r
		     : iod_pack_write_at(k, f, zeros, k->plan.file_sizes[k->plan.embed] - end, end);
}

/* The header that makes it a trunk file, of a set where it is one; then the file to the disk. */
static int write_header(struct iod_pack_work *k, uint32_t file)
{
	struct iod_pack_file *f = &k->files[file];
	struct trunk_header h;
	struct trunk_set set;
	int r = 0;

	iod_pack_plan_header(&k->plan, file, &h, &set);
	iod_pack_seal(&h, &set);
	if (set.n)
		r = iod_pack_write_at(k, f, &set, sizeof(set), sizeof(h));
	if (r == 0)
		r = iod_pack_write_at(k, f, &h, sizeof(h), 0);
	if (r < 0)
		return r;
	return fsync(f->fd) < 0 ? iod_pack_fail_write(k, f, -errno) : 0;
}

/* Tables and header of every file. */
static int finish(struct iod_pack_work *k)
{
	struct trunk_header *h = &k->plan.header;
	uint64_t tiles_size = h->n_tiles * sizeof(struct trunk_tile);
	CLEANUP(freep) char *tables = malloc(k->plan.tables_size);
	int r = 0;

	if (!tables)
		return err_set(k->err, ERR_NO_MEMORY, "no memory for the tables");
	memcpy(tables, k->plan.tiles, tiles_size);
	memcpy(tables + tiles_size, k->plan.parts, k->plan.tables_size - tiles_size);
	h->table_checksum = XXH3_64bits(tables, k->plan.tables_size);
	for (uint32_t i = 0; r == 0 && i < k->n_files; i++) {
		r = iod_pack_write_at(k, &k->files[i], tables, k->plan.tables_size, h->tiles_off);
		if (r == 0)
			r = write_header(k, i);
	}
	return r;
}

/* ---- all of it --------------------------------------------------------------------------- */

static int publish(struct iod_pack_work *k, const struct iod_pack_file *f)
{
	int r;

	if (rename(f->partial, f->out) < 0)
		return err_set(k->err, ERR_IO, "%s: renaming to %s failed: %s", f->partial, f->out,
			       strerror(errno));
	r = fd_sync_directory_of(f->out);
	return r < 0 ? err_set(k->err, ERR_IO, "%s: syncing its directory failed: %s", f->out,
			       strerror(-r))
		     : 0;
}

static int run(struct iod_pack_work *k, struct iod_pack_result *ret)
{
	int r = iod_pack_open_partials(k);

	iod_pack_start_phase(k, IOD_PACK_WRITE, k->plan.size);
	k->progress.done = k->resumed;
	if (r == 0)
		r = write_tiles(k);
	if (r == 0)
		r = write_embedding(k);
	if (r == 0)
		r = finish(k);
	if (r == 0)
		r = iod_pack_verify(k, &ret->is_direct);
	if (r == 0 && k->want->before_rename)
		r = k->want->before_rename(k->want->data, k->err);
	for (uint32_t i = 0; r == 0 && i < k->n_files; i++)
		r = publish(k, &k->files[i]);
	for (uint32_t i = 0; r < 0 && i < k->n_files; i++)
		if (k->files[i].is_bad)
			(void)unlink(k->files[i].partial);
	return r;
}

int iod_pack(const struct iod_pack_want *want, struct iod_pack_result *ret, struct err *err)
{
	CLEANUP(source_freep) struct source *s = NULL;
	CLEANUP(work_deinit) struct iod_pack_work k = { .want = want, .err = err };
	uint64_t tile_bytes = want->tile_bytes ? want->tile_bytes : CATALOG_TILE_BYTES;
	struct source_want source_want = { .model_dirs = want->model_dirs,
					   .n_model_dirs = want->n_model_dirs,
					   .config_path = want->config_path,
					   .max_layers = want->max_layers,
					   .tile_bytes = tile_bytes };
	struct iod_pack_result result = { 0 };
	int r = source_open(&source_want, &s, err);

	if (r == 0)
		r = iod_pack_check_outs(&k, s);
	if (r == 0)
		r = iod_pack_plan_init(&k.plan, s, tile_bytes, want->n_outs, err);
	if (r < 0)
		return r;
	k.buf_size =
		k.plan.max_tile_size > PACK_PIECE_SIZE ? k.plan.max_tile_size : PACK_PIECE_SIZE;
	k.buf = aligned_alloc(PACK_PAGE, k.buf_size);
	if (!k.buf)
		return err_set(err, ERR_NO_MEMORY, "no memory for a tile of %llu bytes",
			       (unsigned long long)k.buf_size);
	r = run(&k, &result);
	if (r < 0)
		return r;
	result.size = k.plan.size;
	result.resumed_bytes = k.resumed;
	result.n_tiles = k.plan.header.n_tiles;
	*ret = result;
	return 0;
}
