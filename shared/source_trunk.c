/*
 * Tiles from a trunk file (trunk_format.h). The file is trusted only after its checksums, its
 * digest against the checkpoint at hand and every number of its tables were checked; each refusal
 * ends with the command that makes the file anew. With max_layers the tiles of later layers are
 * left out and the head's moved up.
 */
#include "shared/source_build.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/trunk_format.h"

enum { TRUNK_TILES_MAX = 1 << 24, TRUNK_PARTS_MAX = 1 << 24 };

struct trunk {
	struct source_build *b;
	const char *path, *model;
	int fd; /* owned */
	uint64_t size;
	struct trunk_header h;
	char *tables; /* owned: tiles, then parts */
	const struct trunk_tile *tiles;
	const struct catalog_part *parts;
};

static void trunk_deinit(struct trunk *t)
{
	(void)fd_close(t->fd);
	free(t->tables);
}

static int refuse(const struct trunk *t, const char *why)
{
	return err_set(t->b->err, ERR_TRUNK, "%s: %s; make it anew with: k3-store pack %s %s",
		       t->path, why, t->model, t->path);
}

static int read_header(struct trunk *t)
{
	struct trunk_header *h = &t->h;
	struct stat st;
	uint64_t checksum;
	int r;

	t->fd = open(t->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (t->fd < 0)
		return refuse(t, strerror(errno));
	if (fstat(t->fd, &st) < 0 || !S_ISREG(st.st_mode))
		return refuse(t, "it is not a regular file");
	t->size = (uint64_t)st.st_size;
	r = fd_pread_all(t->fd, h, sizeof(*h), 0);
	if (r == -ENODATA)
		return refuse(t, "it is too short for a trunk file");
	if (r < 0)
		return err_set(t->b->err, ERR_IO, "%s: %s", t->path, strerror(-r));
	if (h->magic != TRUNK_MAGIC)
		return refuse(t, "it is not a trunk file");
	if (h->version != TRUNK_VERSION || h->header_size != sizeof(*h) || h->incompat)
		return refuse(t, "it has a version or features this program does not know");
	checksum = h->header_checksum;
	h->header_checksum = 0;
	if (XXH3_64bits(h, sizeof(*h)) != checksum)
		return refuse(t, "its header is damaged");
	if (h->file_size != t->size)
		return refuse(t, "it is cut short or was only half written");
	if (memcmp(h->model_digest, t->b->s->model_digest, sizeof(h->model_digest)) != 0)
		return refuse(t, "it was made from another checkpoint or config.json");
	return 0;
}

static bool is_inside(const struct trunk *t, uint64_t off, uint64_t size)
{
	return off <= t->size && size <= t->size - off;
}

static int read_tables(struct trunk *t)
{
	const struct trunk_header *h = &t->h;
	uint64_t tiles_size = h->n_tiles * sizeof(struct trunk_tile);
	uint64_t parts_size = h->n_parts * sizeof(struct catalog_part);
	int r;

	if (h->n_tiles == 0 || h->n_tiles > TRUNK_TILES_MAX || h->n_parts > TRUNK_PARTS_MAX ||
	    !is_inside(t, h->tiles_off, tiles_size) || !is_inside(t, h->parts_off, parts_size) ||
	    h->parts_off != h->tiles_off + tiles_size)
		return refuse(t, "its tables lie outside the file");
	t->tables = malloc(tiles_size + parts_size);
	if (!t->tables)
		return err_set(t->b->err, ERR_NO_MEMORY, "%s: no memory for its tables", t->path);
	r = fd_pread_all(t->fd, t->tables, tiles_size + parts_size, h->tiles_off);
	if (r < 0)
		return err_set(t->b->err, ERR_IO, "%s: %s", t->path, strerror(-r));
	if (XXH3_64bits(t->tables, tiles_size + parts_size) != h->table_checksum)
		return refuse(t, "its tables are damaged");
	t->tiles = (const void *)t->tables;
	t->parts = (const void *)(t->tables + tiles_size);
	return 0;
}

static int add_tile(struct trunk *t, const struct trunk_tile *row, uint32_t file)
{
	struct source_build *b = t->b;
	struct catalog_tile tile = row->tile;
	struct source_segment seg = { .file_off = row->file_off,
				      .size = tile.slab_size,
				      .file = file };
	int r;

	if (tile.layer == t->h.n_layers)
		tile.layer = b->n_layers;
	if (row->file_off % SOURCE_PAGE != 0 || tile.slab_size % SOURCE_PAGE != 0 ||
	    !is_inside(t, row->file_off, tile.slab_size) || tile.first_part > t->h.n_parts ||
	    tile.n_parts > t->h.n_parts - tile.first_part)
		return refuse(t, "a tile lies outside the file");
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

static int take_embedding(struct trunk *t, uint32_t file)
{
	struct source *s = t->b->s;
	const struct trunk_header *h = &t->h;

	if (h->embed_dtype > CATALOG_BF16 || h->embed_cols != s->config.hidden_size)
		return refuse(t, "its embedding has another width than the config says");
	s->embed_file = file;
	s->embed_off = h->embed_off;
	s->embed_row_size =
		(uint64_t)h->embed_cols * source_dtype_size((enum catalog_dtype)h->embed_dtype);
	if (h->embed_size != s->embed_row_size * s->config.vocab_size ||
	    !is_inside(t, h->embed_off, h->embed_size))
		return refuse(t, "its embedding lies outside the file");
	return 0;
}

int source_open_trunk(struct source_build *b, const char *path, const char *model)
{
	CLEANUP(trunk_deinit) struct trunk t = { .b = b, .path = path, .model = model, .fd = -1 };
	struct source *s = b->s;
	uint32_t file = s->n_files;
	int r = read_header(&t);

	if (r == 0)
		r = read_tables(&t);
	if (r < 0)
		return r;
	if (t.h.n_layers > s->config.n_layers || t.h.n_layers < b->n_layers)
		return refuse(&t, "it has not the layers that are asked for");
	b->checksums = calloc(t.h.n_tiles, sizeof(*b->checksums));
	s->files[file].path = strdup(path); /* open_files left a row for us */
	if (!b->checksums || !s->files[file].path)
		return err_set(b->err, ERR_NO_MEMORY, "%s: out of memory", path);
	for (uint32_t i = 0; i < t.h.n_tiles; i++) {
		const struct trunk_tile *row = &t.tiles[i];

		if (row->tile.layer >= b->n_layers && row->tile.layer < t.h.n_layers)
			continue; /* beyond --layers */
		r = add_tile(&t, row, file);
		if (r < 0)
			break;
	}
	if (r == 0 && b->n_tiles == 0)
		r = refuse(&t, "it has no tile of the layers that are bound");
	if (r == 0)
		r = take_embedding(&t, file);
	if (r < 0) {
		free(TAKE(s->files[file].path));
		return r;
	}
	s->files[file].size = t.size;
	s->files[file].fd = TAKE_FD(t.fd);
	s->n_files++;
	s->from_trunk_file = true;
	return 0;
}
