/* See pack_work.h: the files while they are being written. pack.c says how they look. */
#include "iod/store/pack_work.h"

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

#include "iod/store/left_alone.h"
#include "shared/attr.h"
#include "shared/fd.h"

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
static bool is_of_model(const struct iod_pack_work *k, const struct source *s,
			const struct stat *st)
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

/* What is at the path is replaced in the end: an earlier trunk file, and no file of the model. */
static int check_out(const struct iod_pack_work *k, const struct source *s, const char *out)
{
	static const uint64_t magic = TRUNK_MAGIC;
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
	return iod_store_check_replaced(out, &magic, 1, "", "trunk file", k->err);
}

int iod_pack_check_outs(const struct iod_pack_work *k, const struct source *s)
{
	int r = 0;

	if (k->want->n_outs > TRUNK_SET_MAX)
		return err_set(k->err, ERR_USAGE, "a trunk has at most %d files",
			       (int)TRUNK_SET_MAX);
	for (uint32_t i = 0; r == 0 && i < k->want->n_outs; i++)
		r = check_out(k, s, k->want->outs[i]);
	return r;
}

/* The same file opened before, by inode, whatever the names are; or NULL. */
static struct iod_pack_file *find_open(struct iod_pack_work *k, const struct iod_pack_file *f)
{
	struct stat st, other;

	for (struct iod_pack_file *o = k->files; o < f; o++)
		if (fstat(f->fd, &st) == 0 && fstat(o->fd, &other) == 0 &&
		    st.st_ino == other.st_ino && st.st_dev == other.st_dev)
			return o;
	return NULL;
}

/* No file of somebody else's is at the name; 0 is one of ours that was killed in its first moment.
 */
static int check_partial(const struct iod_pack_work *k, const char *partial)
{
	static const uint64_t magics[] = { PACK_PARTIAL_MAGIC, TRUNK_MAGIC, 0 };

	return iod_store_check_replaced(partial, magics, N_ELEMENTS(magics), "",
					"trunk file that was begun", k->err);
}

static int open_partial(struct iod_pack_work *k, struct iod_pack_file *f)
{
	struct iod_pack_file *other;
	struct stat st, mine;

	if (asprintf(&f->partial, "%s.partial", f->out) < 0) {
		f->partial = NULL;
		return err_set(k->err, ERR_NO_MEMORY, "out of memory");
	}
	if (check_partial(k, f->partial) < 0)
		return -EINVAL;
	f->fd = open(f->partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (f->fd < 0 && errno == ENOSPC)
		return iod_pack_fail_write(k, f, -errno);
	if (f->fd < 0)
		return err_set(k->err, ERR_IO, "%s: %s", f->partial, strerror(errno));
	other = find_open(k, f);
	if (other) {
		/* empty: made a moment ago, for nothing */
		other->is_bad = fstat(other->fd, &st) == 0 && st.st_size == 0;
		return err_set(k->err, ERR_USAGE,
			       "%s is given twice; the files of a set have different names",
			       f->out);
	}
	/* A file that was renamed between open and lock belongs to the pack that finished it. */
	if (flock(f->fd, LOCK_EX | LOCK_NB) < 0 || fstat(f->fd, &mine) < 0 ||
	    stat(f->partial, &st) < 0 || st.st_ino != mine.st_ino || st.st_dev != mine.st_dev)
		return err_set(k->err, ERR_BUSY, "%s: another k3-store works on this file",
			       f->partial);
	return 0;
}

/* Is the partial file one of this plan? Checksums and magic aside its header must be ours. */
static bool is_same_plan(const struct iod_pack_work *k, uint32_t file)
{
	int fd = k->files[file].fd;
	struct trunk_header h, mine;
	struct trunk_set set, my_set;
	struct stat st;

	iod_pack_plan_header(&k->plan, file, &mine, &my_set);
	if (fstat(fd, &st) < 0 || (uint64_t)st.st_size != mine.file_size ||
	    fd_pread_all(fd, &h, sizeof(h), 0) < 0 ||
	    fd_pread_all(fd, &set, sizeof(set), sizeof(h)) < 0)
		return false;
	if (h.magic != PACK_PARTIAL_MAGIC && h.magic != TRUNK_MAGIC)
		return false;
	mine.magic = h.magic;
	h.table_checksum = h.embed_checksum = h.header_checksum = 0;
	memset(set.digest, 0, sizeof(set.digest));
	set.checksum = 0;
	return memcmp(&h, &mine, sizeof(h)) == 0 && memcmp(&set, &my_set, sizeof(set)) == 0;
}

/* Does the file hold this tile as its row says? Leaves the checksum in the plan when so. */
static bool is_tile_done(struct iod_pack_work *k, uint32_t tile, const struct trunk_tile *row)
{
	struct trunk_tile *mine = &k->plan.tiles[tile];
	int fd = iod_pack_tile_file(k, mine)->fd;
	uint64_t checksum;

	if (row->checksum == 0 || memcmp(&row->tile, &mine->tile, sizeof(mine->tile)) != 0 ||
	    row->file_off != mine->file_off ||
	    fd_pread_all(fd, k->buf, mine->tile.slab_size, mine->file_off) < 0)
		return false;
	checksum = XXH3_64bits(k->buf, mine->tile.slab_size);
	(void)posix_fadvise(fd, (off_t)mine->file_off, (off_t)mine->tile.slab_size,
			    POSIX_FADV_DONTNEED);
	if (checksum != row->checksum)
		return false;
	mine->checksum = checksum;
	return true;
}

/* A row of an earlier run, in the file that has the tile. */
static bool has_row(struct iod_pack_work *k, uint32_t file, uint32_t tile,
		    const struct trunk_tile *row)
{
	return row->checksum != 0 && k->plan.tiles[tile].tile.reserved1 == file;
}

/* Go through the rows of an earlier run. Tiles found finished have their checksum set. */
static int resume(struct iod_pack_work *k, uint32_t file)
{
	const struct trunk_header *h = &k->plan.header;
	CLEANUP(freep) struct trunk_tile *rows = calloc(h->n_tiles, sizeof(*rows));
	uint64_t total = 0;

	if (!rows)
		return err_set(k->err, ERR_NO_MEMORY, "no memory for %u tiles", h->n_tiles);
	if (fd_pread_all(k->files[file].fd, rows, h->n_tiles * sizeof(*rows), h->tiles_off) < 0)
		return 0; /* nothing to go on from */
	for (uint32_t i = 0; i < h->n_tiles; i++)
		total += has_row(k, file, i, &rows[i]) ? k->plan.tiles[i].tile.slab_size : 0;
	iod_pack_start_phase(k, IOD_PACK_RESUME, total);
	for (uint32_t i = 0; i < h->n_tiles; i++) {
		if (!has_row(k, file, i, &rows[i]))
			continue;
		if (is_tile_done(k, i, &rows[i]))
			k->resumed += k->plan.tiles[i].tile.slab_size;
		iod_pack_advance(k, k->plan.tiles[i].tile.slab_size);
	}
	return 0;
}

/* What a partial file of before takes can be used again. Where the disk does not say, nothing is
 * refused. */
static int check_room(struct iod_pack_work *k, const struct iod_pack_file *f)
{
	uint64_t size = k->plan.file_sizes[f - k->files], room;
	struct statvfs fs;
	struct stat st;

	if (fstatvfs(f->fd, &fs) < 0 || fstat(f->fd, &st) < 0)
		return 0;
	room = (uint64_t)fs.f_bavail * fs.f_frsize + (uint64_t)st.st_blocks * 512;
	if (room >= size)
		return 0;
	/* what an earlier run has left on other disks stays, to go on from */
	for (uint32_t i = 0; i < k->n_files; i++)
		k->files[i].is_bad = !k->files[i].is_same_plan;
	return err_set(k->err, ERR_ROOM,
		       "%s: no space: %.6f GB are needed, but only %.6f GB are free on its disk; "
		       "nothing was written",
		       f->partial, (double)size / 1e9, (double)room / 1e9);
}

/* A fresh partial file: empty tables, all space reserved where the filesystem can. */
static int start_afresh(struct iod_pack_work *k, uint32_t file)
{
	struct iod_pack_file *f = &k->files[file];
	struct trunk_header h;
	struct trunk_set set;
	int r;

	iod_pack_plan_header(&k->plan, file, &h, &set);
	h.magic = PACK_PARTIAL_MAGIC;
	if (ftruncate(f->fd, 0) < 0)
		return iod_pack_fail_write(k, f, -errno);
	if (fallocate(f->fd, 0, 0, (off_t)h.file_size) < 0) {
		if (errno != EOPNOTSUPP && errno != ENOSYS)
			return iod_pack_fail_write(k, f, -errno);
		if (ftruncate(f->fd, (off_t)h.file_size) < 0)
			return iod_pack_fail_write(k, f, -errno);
	}
	r = set.n ? iod_pack_write_at(k, f, &set, sizeof(set), sizeof(h)) : 0;
	return r == 0 ? iod_pack_write_at(k, f, &h, sizeof(h), 0) : r;
}

int iod_pack_open_partials(struct iod_pack_work *k)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < k->want->n_outs; i++) {
		k->files[i] = (struct iod_pack_file){ .out = k->want->outs[i], .fd = -1 };
		k->n_files = i + 1;
		r = open_partial(k, &k->files[i]);
		if (r == 0)
			k->files[i].is_same_plan = is_same_plan(k, i);
	}
	for (uint32_t i = 0; r == 0 && i < k->n_files; i++)
		if (!k->files[i].is_same_plan)
			r = check_room(k, &k->files[i]);
	for (uint32_t i = 0; r == 0 && i < k->n_files; i++)
		r = k->files[i].is_same_plan ? resume(k, i) : start_afresh(k, i);
	return r;
}
