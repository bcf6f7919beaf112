/*
 * Packing and going on with it. While a pack runs, OUT.partial has the final layout with one
 * difference: its header carries PARTIAL_MAGIC and no checksums. The row of a tile in the table is
 * written after the tile, with its checksum; so the table is the journal. A new run that finds a
 * partial file of the same plan reads the tiles with a row back and keeps those whose checksum is
 * right; everything else is written again. The header with the real magic comes last, then all is
 * synced, dropped from the page cache, read back and compared, and only then renamed.
 */
#include "iod/store/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "iod/store/pack_plan.h"
#include "shared/attr.h"
#include "shared/fd.h"

#define PARTIAL_MAGIC 0x315452504b4e5254ULL

enum { PAGE = 4096, PIECE_SIZE = 16 << 20, FLUSH_BYTES = 256 << 20 };

struct pack {
	const struct iod_pack_want *want;
	struct err *err;
	struct iod_pack_plan plan;
	char *partial; /* owned: OUT.partial */
	int fd;        /* owned: of the partial file, locked */
	char *buf;     /* owned: the largest tile or a piece, page aligned */
	uint64_t buf_size;
	uint64_t unflushed; /* bytes written since the kernel was asked to write them out */
	uint64_t resumed;
	bool is_bad; /* the partial file is nothing to go on from */
	struct iod_pack_progress progress;
};

static void pack_deinit(struct pack *k)
{
	iod_pack_plan_deinit(&k->plan);
	(void)fd_close(k->fd);
	free(k->partial);
	free(k->buf);
}

static void advance(struct pack *k, uint64_t bytes)
{
	k->progress.done += bytes;
	if (k->want->progress)
		k->want->progress(k->want->data, &k->progress);
}

static void start_phase(struct pack *k, enum iod_pack_phase phase, uint64_t total)
{
	k->progress = (struct iod_pack_progress){ .phase = phase, .total = total };
}

/* A failed write: a full disk (or quota, or file size limit) is told apart. */
static int fail_write(struct pack *k, int r)
{
	k->is_bad = r == -ENOSPC || r == -EDQUOT || r == -EFBIG;
	if (k->is_bad)
		return err_set(k->err, ERR_SPACE,
			       "%s: %s; %.3f GB are needed, the partial file is removed",
			       k->partial, strerror(-r), (double)k->plan.header.file_size / 1e9);
	return err_set(k->err, ERR_IO, "%s: writing failed: %s; the same command goes on from here",
		       k->partial, strerror(-r));
}

static int write_at(struct pack *k, const void *buf, uint64_t size, uint64_t off)
{
	int r = fd_pwrite_all(k->fd, buf, size, off);

	if (r < 0)
		return fail_write(k, r);
	k->unflushed += size;
	if (k->unflushed >= FLUSH_BYTES) {
		/* Bound the dirty pages, so that the last sync is short and others keep memory. */
		if (fdatasync(k->fd) < 0)
			return fail_write(k, -errno);
		(void)posix_fadvise(k->fd, 0, 0, POSIX_FADV_DONTNEED);
		k->unflushed = 0;
	}
	return 0;
}

/* ---- the partial file -------------------------------------------------------------------- */

static bool is_path_of(const char *dir, const char *name, const struct stat *st)
{
	CLEANUP(freep) char *path = NULL;
	struct stat other;

	if (asprintf(&path, "%s%s%s", dir, *name ? "/" : "", name) < 0) {
		path = NULL;
		return false;
	}
	return stat(path, &other) == 0 && other.st_ino == st->st_ino && other.st_dev == st->st_dev;
}

/* Is st a file that this pack reads, or that belongs to the model beside the shards? */
static bool is_of_model(const struct pack *k, const struct source *s, const struct stat *st)
{
	static const char *const names[] = { "config.json", "model.safetensors.index.json",
					     "tiktoken.model", "tokenizer_config.json" };

	for (uint32_t i = 0; i < s->n_files; i++)
		if (is_path_of(s->files[i].path, "", st))
			return true;
	for (uint32_t i = 0; i < k->want->n_model_dirs; i++)
		for (size_t j = 0; j < N_ELEMENTS(names); j++)
			if (is_path_of(k->want->model_dirs[i], names[j], st))
				return true;
	return k->want->config_path && is_path_of(k->want->config_path, "", st);
}

/* What is at the path is replaced in the end: that must be no file of the model. */
static int check_out(const struct pack *k, const struct source *s)
{
	const char *out = k->want->out;
	struct stat st;

	if (*out == '\0')
		return err_set(k->err, ERR_USAGE, "the name of the file to write is empty");
	if (stat(out, &st) < 0)
		return 0;
	if (!S_ISREG(st.st_mode))
		return err_set(k->err, ERR_USAGE, "%s is not a regular file", out);
	if (is_of_model(k, s, &st))
		return err_set(k->err, ERR_USAGE,
			       "%s is a file of the model itself and would be lost; give the trunk "
			       "file another name",
			       out);
	return 0;
}

static int open_partial(struct pack *k)
{
	struct stat st, mine;

	if (asprintf(&k->partial, "%s.partial", k->want->out) < 0) {
		k->partial = NULL;
		return err_set(k->err, ERR_NO_MEMORY, "out of memory");
	}
	k->fd = open(k->partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (k->fd < 0 && errno == ENOSPC)
		return fail_write(k, -errno);
	if (k->fd < 0)
		return err_set(k->err, ERR_IO, "%s: %s", k->partial, strerror(errno));
	/* A file that was renamed between open and lock belongs to the pack that finished it. */
	if (flock(k->fd, LOCK_EX | LOCK_NB) < 0 || fstat(k->fd, &mine) < 0 ||
	    stat(k->partial, &st) < 0 || st.st_ino != mine.st_ino || st.st_dev != mine.st_dev)
		return err_set(k->err, ERR_BUSY, "%s: another k3-store works on this file",
			       k->partial);
	return 0;
}

/* Is the partial file one of this plan? Checksums and magic aside its header must be ours. */
static bool is_same_plan(const struct pack *k)
{
	struct trunk_header h, mine = k->plan.header;
	struct stat st;

	if (fstat(k->fd, &st) < 0 || (uint64_t)st.st_size != mine.file_size ||
	    fd_pread_all(k->fd, &h, sizeof(h), 0) < 0)
		return false;
	if (h.magic != PARTIAL_MAGIC && h.magic != TRUNK_MAGIC)
		return false;
	mine.magic = h.magic;
	h.table_checksum = h.embed_checksum = h.header_checksum = 0;
	return memcmp(&h, &mine, sizeof(h)) == 0;
}

/* Does the file hold this tile as its row says? Leaves the checksum in the plan when so. */
static bool is_tile_done(struct pack *k, uint32_t tile, const struct trunk_tile *row)
{
	struct trunk_tile *mine = &k->plan.tiles[tile];
	uint64_t checksum;

	if (row->checksum == 0 || memcmp(&row->tile, &mine->tile, sizeof(mine->tile)) != 0 ||
	    row->file_off != mine->file_off ||
	    fd_pread_all(k->fd, k->buf, mine->tile.slab_size, mine->file_off) < 0)
		return false;
	checksum = XXH3_64bits(k->buf, mine->tile.slab_size);
	(void)posix_fadvise(k->fd, (off_t)mine->file_off, (off_t)mine->tile.slab_size,
			    POSIX_FADV_DONTNEED);
	if (checksum != row->checksum)
		return false;
	mine->checksum = checksum;
	return true;
}

/* Go through the rows of an earlier run. Tiles found finished have their checksum set. */
static int resume(struct pack *k)
{
	const struct trunk_header *h = &k->plan.header;
	CLEANUP(freep) struct trunk_tile *rows = calloc(h->n_tiles, sizeof(*rows));
	uint64_t total = 0;

	if (!rows)
		return err_set(k->err, ERR_NO_MEMORY, "no memory for %u tiles", h->n_tiles);
	if (fd_pread_all(k->fd, rows, h->n_tiles * sizeof(*rows), h->tiles_off) < 0)
		return 0; /* nothing to go on from */
	for (uint32_t i = 0; i < h->n_tiles; i++)
		total += rows[i].checksum ? k->plan.tiles[i].tile.slab_size : 0;
	start_phase(k, IOD_PACK_RESUME, total);
	for (uint32_t i = 0; i < h->n_tiles; i++) {
		if (!rows[i].checksum)
			continue;
		if (is_tile_done(k, i, &rows[i]))
			k->resumed += k->plan.tiles[i].tile.slab_size;
		advance(k, k->plan.tiles[i].tile.slab_size);
	}
	return 0;
}

/* What a partial file of before takes can be used again. Where the disk does not say, nothing is
 * refused. */
static int check_room(struct pack *k)
{
	struct statvfs fs;
	struct stat st;
	uint64_t size = k->plan.header.file_size, room;

	if (fstatvfs(k->fd, &fs) < 0 || fstat(k->fd, &st) < 0)
		return 0;
	room = (uint64_t)fs.f_bavail * fs.f_frsize + (uint64_t)st.st_blocks * 512;
	if (room >= size)
		return 0;
	k->is_bad = true;
	return err_set(k->err, ERR_ROOM,
		       "%s: no space: %.6f GB are needed, but only %.6f GB are free on its disk; "
		       "nothing was written",
		       k->partial, (double)size / 1e9, (double)room / 1e9);
}

/* A fresh partial file: empty tables, all space reserved where the filesystem can. */
static int start_afresh(struct pack *k)
{
	struct trunk_header h = k->plan.header;

	int r = check_room(k);

	h.magic = PARTIAL_MAGIC;
	if (r < 0)
		return r;
	if (ftruncate(k->fd, 0) < 0)
		return fail_write(k, -errno);
	if (fallocate(k->fd, 0, 0, (off_t)h.file_size) < 0) {
		if (errno != EOPNOTSUPP && errno != ENOSYS)
			return fail_write(k, -errno);
		if (ftruncate(k->fd, (off_t)h.file_size) < 0)
			return fail_write(k, -errno);
	}
	return write_at(k, &h, sizeof(h), 0);
}

/* ---- copying ----------------------------------------------------------------------------- */

static int write_tiles(struct pack *k)
{
	for (uint32_t i = 0; i < k->plan.header.n_tiles; i++) {
		struct trunk_tile *t = &k->plan.tiles[i];
		int r;

		if (t->checksum)
			continue;
		r = iod_pack_read_tile(&k->plan, i, k->buf, k->err);
		if (r < 0)
			return r;
		t->checksum = XXH3_64bits(k->buf, t->tile.slab_size);
		r = write_at(k, k->buf, t->tile.slab_size, t->file_off);
		if (r == 0)
			r = write_at(k, t, sizeof(*t), k->plan.header.tiles_off + i * sizeof(*t));
		if (r < 0)
			return r;
		advance(k, t->tile.slab_size);
	}
	return 0;
}

static int write_embedding(struct pack *k)
{
	struct trunk_header *h = &k->plan.header;
	XXH3_state_t *state = XXH3_createState();
	int r = state ? 0 : err_set(k->err, ERR_NO_MEMORY, "out of memory");

	if (r == 0)
		(void)XXH3_64bits_reset(state);
	for (uint64_t at = 0; r == 0 && at < h->embed_size;) {
		uint64_t n = h->embed_size - at < PIECE_SIZE ? h->embed_size - at : PIECE_SIZE;

		r = iod_pack_read_embedding(&k->plan, at, k->buf, n, k->err);
		if (r < 0)
			break;
		(void)XXH3_64bits_update(state, k->buf, n);
		r = write_at(k, k->buf, n, h->embed_off + at);
		at += n;
		advance(k, n);
	}
	if (r == 0)
		h->embed_checksum = XXH3_64bits_digest(state);
	(void)XXH3_freeState(state);
	return r;
}

/* Tables, padding and the header that makes it a trunk file; then everything to the disk. */
static int write_header(struct pack *k)
{
	struct trunk_header *h = &k->plan.header;
	uint64_t tiles_size = h->n_tiles * sizeof(struct trunk_tile);
	uint64_t end = h->embed_off + h->embed_size;
	CLEANUP(freep) char *tables = malloc(k->plan.tables_size);
	static const char zeros[PAGE];
	int r;

	if (!tables)
		return err_set(k->err, ERR_NO_MEMORY, "no memory for the tables");
	memcpy(tables, k->plan.tiles, tiles_size);
	memcpy(tables + tiles_size, k->plan.parts, k->plan.tables_size - tiles_size);
	h->table_checksum = XXH3_64bits(tables, k->plan.tables_size);
	h->header_checksum = XXH3_64bits(h, sizeof(*h));
	r = write_at(k, zeros, h->file_size - end, end);
	if (r == 0)
		r = write_at(k, tables, k->plan.tables_size, h->tiles_off);
	if (r == 0)
		r = write_at(k, h, sizeof(*h), 0);
	if (r < 0)
		return r;
	return fsync(k->fd) < 0 ? fail_write(k, -errno) : 0;
}

/* ---- verifying --------------------------------------------------------------------------- */

static int fail_verify(struct pack *k, const char *what)
{
	k->is_bad = true;
	return err_set(k->err, ERR_IO,
		       "%s: %s reads back differently than it was written; the file is removed: "
		       "check the disk",
		       k->partial, what);
}

/* Read a range that is page aligned at both ends. */
static int read_back(struct pack *k, int fd, uint64_t size, uint64_t off)
{
	int r = fd_pread_all(fd, k->buf, size, off);

	if (r < 0)
		return err_set(k->err, ERR_IO, "%s: reading back failed: %s", k->partial,
			       strerror(-r));
	advance(k, size);
	return 0;
}

static int verify_embedding(struct pack *k, int fd)
{
	const struct trunk_header *h = &k->plan.header;
	XXH3_state_t *state = XXH3_createState();
	int r = state ? 0 : err_set(k->err, ERR_NO_MEMORY, "out of memory");

	if (r == 0)
		(void)XXH3_64bits_reset(state);
	for (uint64_t at = 0; r == 0 && at < h->embed_size; at += PIECE_SIZE) {
		uint64_t left = h->file_size - h->embed_off - at, useful = h->embed_size - at;

		r = read_back(k, fd, left < PIECE_SIZE ? left : PIECE_SIZE, h->embed_off + at);
		if (r == 0)
			(void)XXH3_64bits_update(state, k->buf,
						 useful < PIECE_SIZE ? useful : PIECE_SIZE);
	}
	if (r == 0 && XXH3_64bits_digest(state) != h->embed_checksum)
		r = fail_verify(k, "the embedding");
	(void)XXH3_freeState(state);
	return r;
}

static int verify_tiles(struct pack *k, int fd)
{
	const struct trunk_header *h = &k->plan.header;

	for (uint32_t i = 0; i < h->n_tiles; i++) {
		const struct trunk_tile *t = &k->plan.tiles[i];
		int r = read_back(k, fd, t->tile.slab_size, t->file_off);

		if (r < 0)
			return r;
		if (XXH3_64bits(k->buf, t->tile.slab_size) != t->checksum)
			return fail_verify(k, "a tile");
	}
	return 0;
}

static int verify_tables(struct pack *k, int fd)
{
	const struct trunk_header *h = &k->plan.header;
	uint64_t size = h->tiles_off + k->plan.tables_size;
	XXH3_state_t *state = XXH3_createState();
	int r = state ? 0 : err_set(k->err, ERR_NO_MEMORY, "out of memory");

	if (r == 0)
		(void)XXH3_64bits_reset(state);
	size = (size + PAGE - 1) / PAGE * PAGE;
	for (uint64_t at = 0; r == 0 && at < size; at += PIECE_SIZE) {
		uint64_t n = size - at < PIECE_SIZE ? size - at : PIECE_SIZE;
		uint64_t skip = at == 0 ? h->tiles_off : 0;
		uint64_t end = h->tiles_off + k->plan.tables_size - at;

		r = read_back(k, fd, n, at);
		if (r == 0 && at == 0 && memcmp(k->buf, h, sizeof(*h)) != 0)
			r = fail_verify(k, "the header");
		if (r == 0)
			(void)XXH3_64bits_update(state, k->buf + skip, (end < n ? end : n) - skip);
	}
	if (r == 0 && XXH3_64bits_digest(state) != h->table_checksum)
		r = fail_verify(k, "a table");
	(void)XXH3_freeState(state);
	return r;
}

/* From the disk, not from the page cache: direct where it works, else after dropping the cache. */
static int verify(struct pack *k, bool *ret_is_direct)
{
	CLEANUP(fd_closep) int direct_fd = open(k->partial, O_RDONLY | O_CLOEXEC | O_DIRECT);
	int fd = direct_fd, r;

	(void)posix_fadvise(k->fd, 0, 0, POSIX_FADV_DONTNEED);
	if (direct_fd < 0 || pread(direct_fd, k->buf, PAGE, 0) != PAGE)
		fd = k->fd;
	*ret_is_direct = fd == direct_fd;
	start_phase(k, IOD_PACK_VERIFY, k->plan.header.file_size);
	r = verify_tables(k, fd);
	if (r == 0)
		r = verify_tiles(k, fd);
	return r == 0 ? verify_embedding(k, fd) : r;
}

/* ---- all of it --------------------------------------------------------------------------- */

static int publish(struct pack *k)
{
	int r;

	if (rename(k->partial, k->want->out) < 0)
		return err_set(k->err, ERR_IO, "%s: renaming to %s failed: %s", k->partial,
			       k->want->out, strerror(errno));
	r = fd_sync_directory_of(k->want->out);
	return r < 0 ? err_set(k->err, ERR_IO, "%s: syncing its directory failed: %s", k->want->out,
			       strerror(-r))
		     : 0;
}

static int run(struct pack *k, struct iod_pack_result *ret)
{
	const struct trunk_header *h = &k->plan.header;
	int r = open_partial(k);

	if (r == 0)
		r = is_same_plan(k) ? resume(k) : start_afresh(k);
	start_phase(k, IOD_PACK_WRITE, h->file_size);
	k->progress.done = k->resumed;
	if (r == 0)
		r = write_tiles(k);
	if (r == 0)
		r = write_embedding(k);
	if (r == 0)
		r = write_header(k);
	if (r == 0)
		r = verify(k, &ret->is_direct);
	if (r == 0 && k->want->before_rename)
		r = k->want->before_rename(k->want->data, k->err);
	if (r == 0)
		r = publish(k);
	if (r < 0 && k->is_bad)
		(void)unlink(k->partial);
	return r;
}

int iod_pack(const struct iod_pack_want *want, struct iod_pack_result *ret, struct err *err)
{
	CLEANUP(source_freep) struct source *s = NULL;
	CLEANUP(pack_deinit) struct pack k = { .want = want, .err = err, .fd = -1 };
	uint64_t tile_bytes = want->tile_bytes ? want->tile_bytes : CATALOG_TILE_BYTES;
	struct source_want source_want = { .model_dirs = want->model_dirs,
					   .n_model_dirs = want->n_model_dirs,
					   .config_path = want->config_path,
					   .max_layers = want->max_layers,
					   .tile_bytes = tile_bytes };
	struct iod_pack_result result = { 0 };
	int r = source_open(&source_want, &s, err);

	if (r == 0)
		r = check_out(&k, s);
	if (r == 0)
		r = iod_pack_plan_init(&k.plan, s, tile_bytes, err);
	if (r < 0)
		return r;
	k.buf_size = k.plan.max_tile_size > PIECE_SIZE ? k.plan.max_tile_size : PIECE_SIZE;
	k.buf = aligned_alloc(PAGE, k.buf_size);
	if (!k.buf)
		return err_set(err, ERR_NO_MEMORY, "no memory for a tile of %llu bytes",
			       (unsigned long long)k.buf_size);
	r = run(&k, &result);
	if (r < 0)
		return r;
	result.file_size = k.plan.header.file_size;
	result.resumed_bytes = k.resumed;
	result.n_tiles = k.plan.header.n_tiles;
	*ret = result;
	return 0;
}
