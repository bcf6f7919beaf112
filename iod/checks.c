#include "iod/checks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "iod/daemon.h"
#include "shared/attr.h"
#include "shared/fd.h"

int iod_checks_open(struct iod_checks *c, struct iod_daemon *d, struct err *err)
{
	const struct iod_options *o = d->options;
	CLEANUP(freep) char *path = NULL;
	int r;

	c->daemon = d;
	c->source = d->source;
	if (!o->verify_reads)
		return 0;
	path = o->sums ? strdup(o->sums)
		       : sums_find(o->trunk.items, (uint32_t)o->trunk.n, o->model.items,
				   (uint32_t)o->model.n);
	if (!path)
		return err_set(err, ERR_USAGE,
			       "--verify-reads needs the checksums of the experts, and there are "
			       "none; write them with: k3-store verify --write %s",
			       o->model.items[0]);
	r = sums_load(d->source, path, &c->sums, err);
	if (r < 0)
		return r;
	if (!d->source->tile_checksum && !sums_can_check(d->source))
		return err_set(err, ERR_USAGE,
			       "--verify-reads needs larger tiles: some begin inside the %d rows "
			       "that have one checksum",
			       SUMS_BLOCK_ROWS);
	return 0;
}

void iod_checks_close(struct iod_checks *c)
{
	c->sums = sums_free(c->sums);
}

int iod_checks_tile(const struct iod_checks *c, uint32_t tile, const uint8_t *bytes,
		    struct err *err)
{
	const struct source *s = c->source;
	const struct catalog_tile *t = &s->catalog.tiles[tile];
	const struct source_segment *seg = &s->segments[s->tile_segment[tile]];
	struct sums_fault f = { 0 };

	if (!c->sums)
		return 0;
	if (s->tile_checksum && XXH3_64bits(bytes, t->slab_size) == s->tile_checksum[tile])
		return 0;
	if (sums_check_tile(c->sums, s, tile, bytes, &f) != 0)
		return sums_fail(s, &f, err);
	if (!s->tile_checksum)
		return 0;
	return err_set(err, ERR_TRUNK,
		       "%s: tile %u (%s of layer %u), bytes %" PRIu64 " to %" PRIu64
		       " of the file, does not have its checksum: the file is damaged, make it "
		       "again with k3-store pack",
		       s->files[seg->file].path, tile, role_name(t->role), t->layer, seg->file_off,
		       seg->file_off + t->slab_size - 1);
}

int iod_checks_expert(const struct iod_checks *c, uint32_t layer, uint32_t expert,
		      const uint8_t *bytes, struct err *err)
{
	struct sums_fault f = { 0 };
	struct err e = { 0 };

	if (!c->sums || sums_check_expert(c->sums, c->source, layer, expert, bytes, &f) == 0)
		return 0;
	(void)sums_fail(c->source, &f, &e);
	return err_set(err, ERR_EXPERT, "%s", e.text);
}

int iod_checks_row(const struct iod_checks *c, uint32_t row, const uint8_t *bytes, struct err *err)
{
	struct sums_fault f = { 0 };

	if (!c->sums || sums_check_rows(c->sums, c->source, row, 1, bytes, &f) == 0)
		return 0;
	return sums_fail(c->source, &f, err);
}

void iod_checks_tell_again(const struct iod_checks *c, const struct err *err)
{
	iod_daemon_complain(c->daemon, "%s; reading it once more", err->text);
}
