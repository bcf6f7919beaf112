/* See pack_work.h: what was written is read back and compared. */
#include "iod/store/pack_work.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/attr.h"
#include "shared/fd.h"

static int fail_verify(struct iod_pack_work *k, struct iod_pack_file *f, const char *what)
{
	f->is_bad = true;
	return err_set(k->err, ERR_IO,
		       "%s: %s reads back differently than it was written; the file is removed: "
		       "check the disk",
		       f->partial, what);
}

/* Read a range that is page aligned at both ends. */
static int read_back(struct iod_pack_work *k, const struct iod_pack_file *f, int fd, uint64_t size,
		     uint64_t off)
{
	int r = fd_pread_all(fd, k->buf, size, off);

	if (r < 0)
		return err_set(k->err, ERR_IO, "%s: reading back failed: %s", f->partial,
			       strerror(-r));
	iod_pack_advance(k, size);
	return 0;
}

static int verify_embedding(struct iod_pack_work *k, struct iod_pack_file *f, int fd)
{
	const struct trunk_header *h = &k->plan.header;
	uint64_t end = k->plan.file_sizes[f - k->files];
	XXH3_state_t *state = XXH3_createState();
	int r = state ? 0 : err_set(k->err, ERR_NO_MEMORY, "out of memory");

	if (r == 0)
		(void)XXH3_64bits_reset(state);
	for (uint64_t at = 0; r == 0 && at < h->embed_size; at += PACK_PIECE_SIZE) {
		uint64_t left = end - h->embed_off - at, useful = h->embed_size - at;

		r = read_back(k, f, fd, left < PACK_PIECE_SIZE ? left : PACK_PIECE_SIZE,
			      h->embed_off + at);
		if (r == 0)
			(void)XXH3_64bits_update(
				state, k->buf, useful < PACK_PIECE_SIZE ? useful : PACK_PIECE_SIZE);
	}
	if (r == 0 && XXH3_64bits_digest(state) != h->embed_checksum)
		r = fail_verify(k, f, "the embedding");
	(void)XXH3_freeState(state);
	return r;
}

static int verify_tiles(struct iod_pack_work *k, struct iod_pack_file *f, int fd)
{
	for (uint32_t i = 0; i < k->plan.header.n_tiles; i++) {
		const struct trunk_tile *t = &k->plan.tiles[i];
		int r;

		if (iod_pack_tile_file(k, t) != f)
			continue;
		r = read_back(k, f, fd, t->tile.slab_size, t->file_off);
		if (r < 0)
			return r;
		if (XXH3_64bits(k->buf, t->tile.slab_size) != t->checksum)
			return fail_verify(k, f, "a tile");
	}
	return 0;
}

/* The first page, which k->buf has: header and set as they should be. */
static bool is_header_right(const struct iod_pack_work *k, uint32_t file)
{
	struct trunk_header h;
	struct trunk_set set;

	iod_pack_plan_header(&k->plan, file, &h, &set);
	iod_pack_seal(&h, &set);
	return memcmp(k->buf, &h, sizeof(h)) == 0 &&
	       memcmp(k->buf + sizeof(h), &set, sizeof(set)) == 0;
}

static int verify_tables(struct iod_pack_work *k, struct iod_pack_file *f, int fd)
{
	const struct trunk_header *h = &k->plan.header;
	uint64_t size = h->tiles_off + k->plan.tables_size;
	XXH3_state_t *state = XXH3_createState();
	int r = state ? 0 : err_set(k->err, ERR_NO_MEMORY, "out of memory");

	if (r == 0)
		(void)XXH3_64bits_reset(state);
	size = (size + PACK_PAGE - 1) / PACK_PAGE * PACK_PAGE;
	for (uint64_t at = 0; r == 0 && at < size; at += PACK_PIECE_SIZE) {
		uint64_t n = size - at < PACK_PIECE_SIZE ? size - at : PACK_PIECE_SIZE;
		uint64_t skip = at == 0 ? h->tiles_off : 0;
		uint64_t end = h->tiles_off + k->plan.tables_size - at;

		r = read_back(k, f, fd, n, at);
		if (r == 0 && at == 0 && !is_header_right(k, (uint32_t)(f - k->files)))
			r = fail_verify(k, f, "the header");
		if (r == 0)
			(void)XXH3_64bits_update(state, k->buf + skip, (end < n ? end : n) - skip);
	}
	if (r == 0 && XXH3_64bits_digest(state) != h->table_checksum)
		r = fail_verify(k, f, "a table");
	(void)XXH3_freeState(state);
	return r;
}

/* From the disk, not from the page cache: direct where it works, else after dropping the cache. */
static int verify_file(struct iod_pack_work *k, struct iod_pack_file *f, bool *ret_is_direct)
{
	CLEANUP(fd_closep) int direct_fd = open(f->partial, O_RDONLY | O_CLOEXEC | O_DIRECT);
	int fd = direct_fd, r;

	(void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
	if (direct_fd < 0 || pread(direct_fd, k->buf, PACK_PAGE, 0) != PACK_PAGE)
		fd = f->fd;
	*ret_is_direct = *ret_is_direct && fd == direct_fd;
	r = verify_tables(k, f, fd);
	if (r == 0)
		r = verify_tiles(k, f, fd);
	if (r == 0 && f == &k->files[k->plan.embed])
		r = verify_embedding(k, f, fd);
	return r;
}

int iod_pack_verify(struct iod_pack_work *k, bool *ret_is_direct)
{
	int r = 0;

	*ret_is_direct = true;
	iod_pack_start_phase(k, IOD_PACK_VERIFY, k->plan.size);
	for (uint32_t i = 0; r == 0 && i < k->n_files; i++)
		r = verify_file(k, &k->files[i], ret_is_direct);
	return r;
}
