/* See pack_plan.h. */
#include "iod/store/pack_plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/must.h"

enum { PAGE = 4096, PART_ALIGN = 64 };

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* Parts one after another at multiples of 64, then the tile's size to a page. */
static void place_parts(struct iod_pack_plan *p, struct trunk_tile *t)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < t->tile.n_parts; i++) {
		struct catalog_part *part = &p->parts[t->tile.first_part + i];

		part->offset = at;
		at = round_up(at + part->size, PART_ALIGN);
	}
	t->tile.slab_size = round_up(at, PAGE);
	if (t->tile.slab_size > p->max_tile_size)
		p->max_tile_size = t->tile.slab_size;
}

static uint32_t shortest(const struct iod_pack_plan *p)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < p->n_files; i++)
		if (p->file_sizes[i] < p->file_sizes[best])
			best = i;
	return best;
}

/* Tiles in their order, the embedding last, each to the file with the fewest bytes so far. */
static void place_tiles(struct iod_pack_plan *p)
{
	struct trunk_header *h = &p->header;

	for (uint32_t i = 0; i < p->n_files; i++)
		p->file_sizes[i] = round_up(h->tiles_off + p->tables_size, PAGE);
	for (uint32_t i = 0; i < h->n_tiles; i++) {
		struct trunk_tile *t = &p->tiles[i];
		uint32_t file = shortest(p);

		t->tile.reserved1 = file;
		place_parts(p, t);
		t->file_off = p->file_sizes[file];
		p->file_sizes[file] += t->tile.slab_size;
	}
	p->embed = shortest(p);
	h->embed_off = p->file_sizes[p->embed];
	p->file_sizes[p->embed] = round_up(h->embed_off + h->embed_size, PAGE);
	for (uint32_t i = 0; i < p->n_files; i++)
		p->size += p->file_sizes[i];
}

void iod_pack_plan_header(const struct iod_pack_plan *p, uint32_t file, struct trunk_header *ret,
			  struct trunk_set *ret_set)
{
	*ret = p->header;
	ret->file_size = p->file_sizes[file];
	memset(ret_set, 0, sizeof(*ret_set));
	if (p->n_files > 1)
		*ret_set = (struct trunk_set){ .index = file, .n = p->n_files, .embed = p->embed };
}

void iod_pack_seal(struct trunk_header *h, struct trunk_set *set)
{
	if (set->n) {
		source_trunk_set_digest(h, set->digest);
		set->checksum = XXH3_64bits(set, sizeof(*set));
	}
	h->header_checksum = XXH3_64bits(h, sizeof(*h));
}

int iod_pack_plan_init(struct iod_pack_plan *p, const struct source *s, uint64_t tile_bytes,
		       uint32_t n_files, struct err *err)
{
	const struct catalog_header *c = s->catalog.header;
	uint64_t tiles_size = c->n_tiles * sizeof(struct trunk_tile);
	uint64_t parts_size = c->n_parts * sizeof(struct catalog_part);
	struct trunk_header *h = &p->header;

	memset(p, 0, sizeof(*p));
	if (n_files > c->n_tiles)
		return err_set(err, ERR_USAGE, "%u files are too many for %u tiles", n_files,
			       c->n_tiles);
	p->s = s;
	p->n_files = n_files;
	p->tables_size = tiles_size + parts_size;
	p->tiles = calloc(c->n_tiles, sizeof(*p->tiles));
	p->parts = malloc(parts_size);
	if (!p->tiles || !p->parts)
		return err_set(err, ERR_NO_MEMORY, "no memory for the tables of %u tiles",
			       c->n_tiles);
	memcpy(p->parts, s->catalog.parts, parts_size);
	for (uint32_t i = 0; i < c->n_tiles; i++)
		p->tiles[i].tile = s->catalog.tiles[i];
	*h = (struct trunk_header){
		.magic = TRUNK_MAGIC,
		.version = TRUNK_VERSION,
		.header_size = sizeof(*h),
		.incompat = n_files > 1 ? TRUNK_INCOMPAT_SET : 0,
		.n_layers = c->n_layers,
		.n_tiles = c->n_tiles,
		.n_parts = c->n_parts,
		.tiles_off = PAGE,
		.parts_off = PAGE + tiles_size,
		.tile_bytes = tile_bytes,
		.embed_size = s->embed_row_size * c->embed_rows,
		.embed_dtype = c->embed_dtype,
		.embed_cols = c->embed_cols,
	};
	memcpy(h->model_digest, s->model_digest, sizeof(h->model_digest));
	place_tiles(p);
	return 0;
}

void iod_pack_plan_deinit(struct iod_pack_plan *p)
{
	free(p->tiles);
	free(p->parts);
}

static int read_file(const struct iod_pack_plan *p, uint32_t file, void *buf, uint64_t size,
		     uint64_t off, struct err *err)
{
	const struct source_file *f = &p->s->files[file];
	int r = fd_pread_all(f->fd, buf, size, off);

	if (r == -ENODATA)
		return err_set(err, ERR_CHECKPOINT, "%s ends before byte %llu", f->path,
			       (unsigned long long)off + size);
	if (r < 0)
		return err_set(err, ERR_IO, "%s: reading at byte %llu failed: %s", f->path,
			       (unsigned long long)off, strerror(-r));
	/* Hundreds of gigabytes pass through here once: leave the page cache to others. */
	(void)posix_fadvise(f->fd, (off_t)off, (off_t)size, POSIX_FADV_DONTNEED);
	return 0;
}

int iod_pack_read_tile(const struct iod_pack_plan *p, uint32_t tile, void *buf, struct err *err)
{
	const struct trunk_tile *t = &p->tiles[tile];

	memset(buf, 0, t->tile.slab_size);
	for (uint32_t i = t->tile.first_part; i < t->tile.first_part + t->tile.n_parts; i++) {
		const struct catalog_part *from = &p->s->catalog.parts[i], *to = &p->parts[i];
		uint64_t file_off = 0;
		const struct source_segment *g =
			source_find_origin(p->s, p->s->tile_segment[tile],
					   p->s->tile_segment[tile + 1] - p->s->tile_segment[tile],
					   from->offset, &file_off);
		int r;

		must(g);
		r = read_file(p, g->file, (char *)buf + to->offset, to->size, file_off, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int iod_pack_read_embedding(const struct iod_pack_plan *p, uint64_t off, void *buf, uint64_t size,
			    struct err *err)
{
	return read_file(p, p->s->embed_file, buf, size, p->s->embed_off + off, err);
}
