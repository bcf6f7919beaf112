/*
 * Tiles from a trunk file, or from the files of a set (trunk_format.h). A file is trusted only
 * after its checksums, its digest against the checkpoint at hand and every number of its tables
 * were checked, a set when all of it is there; each refusal ends with what to do. With max_layers
 * the tiles of later layers are left out and the head's moved up.
 */
#include "shared/source_build.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/trunk_format.h"

enum { TRUNK_TILES_MAX = 1 << 24, TRUNK_PARTS_MAX = 1 << 24 };

struct trunk_file {
	const char *path;
	int fd; /* owned */
	uint64_t size;
	struct trunk_header h;
	struct trunk_set set; /* a file that is no part of a set: the first of 1 */
};

struct trunk {
	struct source_build *b;
	const struct source_want *want;
	struct trunk_file files[TRUNK_SET_MAX]; /* as given, then in the order of the set */
	uint32_t n_files;
	char *tables; /* owned: tiles, then parts */
	const struct trunk_tile *tiles;
	const struct catalog_part *parts;
};

static void trunk_deinit(struct trunk *t)
{
	for (uint32_t i = 0; i < t->n_files; i++)
		(void)fd_close(t->files[i].fd);
	free(t->tables);
}

static int refuse(const struct trunk *t, const struct trunk_file *f, const char *why)
{
	char paths[1200] = "";

	for (uint32_t i = 0; i < t->want->n_trunk_paths; i++)
		(void)snprintf(paths + strlen(paths), sizeof(paths) - strlen(paths), " %s",
			       t->want->trunk_paths[i]);
	return err_set(t->b->err, ERR_TRUNK, "%s: %s; make it anew with: k3-store pack %s%s",
		       f->path, why, t->want->model_dirs[0], paths);
}

void source_trunk_set_digest(const struct trunk_header *h, uint8_t ret[16])
{
	struct trunk_header common = *h;
	XXH128_canonical_t canonical;

	common.file_size = common.header_checksum = 0;
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(&common, sizeof(common)));
	memcpy(ret, canonical.digest, 16);
}

static int read_set(struct trunk *t, struct trunk_file *f)
{
	struct trunk_set *set = &f->set;
	uint64_t checksum;
	uint8_t digest[16];
	int r = fd_pread_all(f->fd, set, sizeof(*set), sizeof(f->h));

	if (r == -ENODATA)
		return refuse(t, f, "it is too short for a trunk file");
	if (r < 0)
		return err_set(t->b->err, ERR_IO, "%s: %s", f->path, strerror(-r));
	checksum = set->checksum;
	set->checksum = 0;
	source_trunk_set_digest(&f->h, digest);
	if (XXH3_64bits(set, sizeof(*set)) != checksum ||
	    memcmp(set->digest, digest, sizeof(digest)) != 0 || set->n < 2 ||
	    set->n > TRUNK_SET_MAX || set->index >= set->n || set->embed >= set->n)
		return refuse(t, f, "its header is damaged");
	return 0;
}

static int read_header(struct trunk *t, struct trunk_file *f)
{
	struct trunk_header *h = &f->h;
	struct stat st;
	uint64_t checksum;
	int r;

	f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (f->fd < 0)
		return refuse(t, f, strerror(errno));
	if (fstat(f->fd, &st) < 0 || !S_ISREG(st.st_mode))
		return refuse(t, f, "it is not a regular file");
	f->size = (uint64_t)st.st_size;
	r = fd_pread_all(f->fd, h, sizeof(*h), 0);
	if (r == -ENODATA)
		return refuse(t, f, "it is too short for a trunk file");
	if (r < 0)
		return err_set(t->b->err, ERR_IO, "%s: %s", f->path, strerror(-r));
	if (h->magic != TRUNK_MAGIC)
		return refuse(t, f, "it is not a trunk file");
	if (h->version != TRUNK_VERSION || h->header_size != sizeof(*h) ||
	    (h->incompat & ~(uint64_t)TRUNK_INCOMPAT_SET) != 0)
		return refuse(t, f, "it has a version or features this program does not know");
	checksum = h->header_checksum;
	h->header_checksum = 0;
	if (XXH3_64bits(h, sizeof(*h)) != checksum)
		return refuse(t, f, "its header is damaged");
	if (h->file_size != f->size)
		return refuse(t, f, "it is cut short or was only half written");
	if (memcmp(h->model_digest, t->b->s->model_digest, sizeof(h->model_digest)) != 0)
		return refuse(t, f, "it was made from another checkpoint or config.json");
	f->set.n = 1;
	return h->incompat & TRUNK_INCOMPAT_SET ? read_set(t, f) : 0;
}

static bool is_inside(const struct trunk_file *f, uint64_t off, uint64_t size)
{
	return off <= f->size && size <= f->size - off;
}

/* The tables of this file, in place of those of the one before: a set has the same in all. */
static int read_tables(struct trunk *t, const struct trunk_file *f)
{
	const struct trunk_header *h = &f->h;
	uint64_t tiles_size = h->n_tiles * sizeof(struct trunk_tile);
	uint64_t parts_size = h->n_parts * sizeof(struct catalog_part);
	int r;

	if (h->n_tiles == 0 || h->n_tiles > TRUNK_TILES_MAX || h->n_parts > TRUNK_PARTS_MAX ||
	    !is_inside(f, h->tiles_off, tiles_size) || !is_inside(f, h->parts_off, parts_size) ||
	    h->parts_off != h->tiles_off + tiles_size)
		return refuse(t, f, "its tables lie outside the file");
	free(t->tables);
	t->tables = malloc(tiles_size + parts_size);
	if (!t->tables)
		return err_set(t->b->err, ERR_NO_MEMORY, "%s: no memory for its tables", f->path);
	r = fd_pread_all(f->fd, t->tables, tiles_size + parts_size, h->tiles_off);
	if (r < 0)
		return err_set(t->b->err, ERR_IO, "%s: %s", f->path, strerror(-r));
	if (XXH3_64bits(t->tables, tiles_size + parts_size) != h->table_checksum)
		return refuse(t, f, "its tables are damaged");
	t->tiles = (const void *)t->tables;
	t->parts = (const void *)(t->tables + tiles_size);
	return 0;
}

/* ---- are the files one set? -------------------------------------------------------------- */

/* Two files that do not go together. */
static int check_pair(const struct trunk *t, const struct trunk_file *a, const struct trunk_file *b)
{
	if (a->set.n == 1 || b->set.n == 1)
		return err_set(t->b->err, ERR_TRUNK,
			       "%s: it is a whole trunk file and no part of a set, so it cannot be "
			       "used together with %s; give --trunk with one of them only",
			       a->set.n == 1 ? a->path : b->path,
			       a->set.n == 1 ? b->path : a->path);
	if (memcmp(a->set.digest, b->set.digest, sizeof(a->set.digest)) != 0 ||
	    a->set.n != b->set.n || a->set.embed != b->set.embed)
		return err_set(t->b->err, ERR_TRUNK,
			       "%s: it belongs to another set than %s; give --trunk with the files "
			       "that one k3-store pack wrote",
			       b->path, a->path);
	if (a->set.index == b->set.index)
		return err_set(t->b->err, ERR_TRUNK,
			       "%s: it is part %u of %u, and so is %s; give --trunk once with each "
			       "part",
			       b->path, b->set.index + 1, b->set.n, a->path);
	return 0;
}

static int compare_index(const void *a, const void *b)
{
	const struct trunk_file *x = a, *y = b;

	return x->set.index < y->set.index ? -1 : x->set.index > y->set.index;
}

/* All of one set, each once; brings them into its order. */
static int check_set(struct trunk *t)
{
	const struct trunk_file *first = &t->files[0];
	uint32_t absent = 0;

	for (uint32_t i = 1; i < t->n_files; i++)
		for (uint32_t k = 0; k < i; k++) {
			int r = check_pair(t, &t->files[k], &t->files[i]);

			if (r < 0)
				return r;
		}
	qsort(t->files, t->n_files, sizeof(t->files[0]), compare_index);
	if (t->n_files == first->set.n)
		return 0;
	while (absent < t->n_files && t->files[absent].set.index == absent)
		absent++;
	return err_set(t->b->err, ERR_TRUNK,
		       "%s: it is part %u of %u, and part %u is not given; give --trunk FILE for "
		       "each part",
		       first->path, first->set.index + 1, first->set.n, absent + 1);
}

static int open_set(struct trunk *t)
{
	int r = 0;

	if (t->want->n_trunk_paths > TRUNK_SET_MAX)
		return err_set(t->b->err, ERR_USAGE, "a trunk has at most %d files",
			       (int)TRUNK_SET_MAX);
	for (uint32_t i = 0; r == 0 && i < t->want->n_trunk_paths; i++) {
		struct trunk_file *f = &t->files[t->n_files++];

		*f = (struct trunk_file){ .path = t->want->trunk_paths[i], .fd = -1 };
		r = read_header(t, f);
		if (r == 0)
			r = read_tables(t, f);
	}
	return r == 0 ? check_set(t) : r;
}

/* ---- what the source takes from it ------------------------------------------------------- */

static int add_tile(struct trunk *t, const struct trunk_tile *row)
{
	struct source_build *b = t->b;
	struct catalog_tile tile = row->tile;
	const struct trunk_file *f = &t->files[0];
	struct source_segment seg = { .file_off = row->file_off, .size = tile.slab_size };
	int r;

	if (tile.layer == f->h.n_layers)
		tile.layer = b->n_layers;
	if (tile.reserved1 >= t->n_files)
		return refuse(t, f, "a tile lies in a file that does not exist");
	f = &t->files[tile.reserved1];
	seg.file = b->s->n_files + (uint32_t)tile.reserved1;
	tile.reserved1 = 0;
	if (row->file_off % SOURCE_PAGE != 0 || tile.slab_size % SOURCE_PAGE != 0 ||
	    !is_inside(f, row->file_off, tile.slab_size) || tile.first_part > f->h.n_parts ||
	    tile.n_parts > f->h.n_parts - tile.first_part)
		return refuse(t, f, "a tile lies outside the file");
	tile.first_part = b->n_parts;
	r = source_add_tile(b, &tile);
	for (uint32_t i = 0; r == 0 && i < tile.n_parts; i++)
		r = source_add_part(b, &t->parts[row->tile.first_part + i]);
	if (r == 0)
		r = source_add_segment(b, &seg);
	if (r == 0)
		b->checksums[b->n_tiles - 1] = row->checksum;
	return r;
}

static int take_tiles(struct trunk *t)
{
	const struct trunk_header *h = &t->files[0].h;
	struct source_build *b = t->b;
	int r = 0;

	if (h->n_layers > b->s->config.n_layers || h->n_layers < b->n_layers)
		return refuse(t, &t->files[0], "it has not the layers that are asked for");
	b->checksums = calloc(h->n_tiles, sizeof(*b->checksums));
	if (!b->checksums)
		return err_set(b->err, ERR_NO_MEMORY, "%s: out of memory", t->files[0].path);
	for (uint32_t i = 0; r == 0 && i < h->n_tiles; i++) {
		uint32_t layer = t->tiles[i].tile.layer;

		if (layer < b->n_layers || layer >= h->n_layers) /* else beyond --layers */
			r = add_tile(t, &t->tiles[i]);
	}
	if (r == 0 && b->n_tiles == 0)
		r = refuse(t, &t->files[0], "it has no tile of the layers that are bound");
	return r;
}

static int take_embedding(struct trunk *t)
{
	struct source *s = t->b->s;
	const struct trunk_file *f = &t->files[t->files[0].set.embed];
	const struct trunk_header *h = &f->h;

	if (h->embed_dtype > CATALOG_BF16 || h->embed_cols != s->config.hidden_size)
		return refuse(t, f, "its embedding has another width than the config says");
	s->embed_file = s->n_files + t->files[0].set.embed;
	s->embed_off = h->embed_off;
	s->embed_row_size =
		(uint64_t)h->embed_cols * source_dtype_size((enum catalog_dtype)h->embed_dtype);
	if (h->embed_size != s->embed_row_size * s->config.vocab_size ||
	    !is_inside(f, h->embed_off, h->embed_size))
		return refuse(t, f, "its embedding lies outside the file");
	return 0;
}

/* open_files left rows for them. */
static int take_files(struct trunk *t)
{
	struct source *s = t->b->s;

	for (uint32_t i = 0; i < t->n_files; i++) {
		struct source_file *f = &s->files[s->n_files];

		f->path = strdup(t->files[i].path);
		if (!f->path)
			return err_set(t->b->err, ERR_NO_MEMORY, "out of memory");
		f->size = t->files[i].size;
		f->fd = TAKE_FD(t->files[i].fd);
		s->n_files++;
	}
	s->n_trunk_files = t->n_files;
	return 0;
}

int source_open_trunk(struct source_build *b, const struct source_want *want)
{
	CLEANUP(trunk_deinit) struct trunk t = { .b = b, .want = want };
	int r = open_set(&t);

	if (r == 0)
		r = take_tiles(&t);
	if (r == 0)
		r = take_embedding(&t);
	return r == 0 ? take_files(&t) : r;
}
