/*
 * source_open: from directories to a struct source. The order is: config, shards, headers and
 * binding, digest, tiles (from a trunk file or cut over the shards), experts, catalog. Files are
 * opened once and stay open; nothing but headers, index and config.json is read.
 */
#include "shared/source_build.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "shared/attr.h"
#include "shared/fd.h"

enum { TILE_BYTES_MIN = 4096, TILE_BYTES_MAX = 1 << 30 };

static void free_tables(struct source *s)
{
	free(s->catalog_bytes);
	free(s->segments);
	free(s->tile_segment);
	free(s->expert_base);
	free(s->experts);
	free(s->tile_checksum);
}

struct source *source_free(struct source *s)
{
	if (!s)
		return NULL;
	for (uint32_t i = 0; i < s->n_files; i++) {
		free(s->files[i].path);
		(void)fd_close(s->files[i].fd);
	}
	free(s->files);
	if (s->saved)
		(void)munmap(s->saved, s->saved_size);
	else
		free_tables(s);
	free(s);
	return NULL;
}

void source_freep(struct source **s)
{
	*s = source_free(*s);
}

const struct source_expert *source_expert(const struct source *s, uint32_t layer, uint32_t expert)
{
	if (layer >= s->catalog.header->n_layers || expert >= s->config.n_experts ||
	    s->expert_base[layer] == UINT32_MAX)
		return NULL;
	return &s->experts[s->expert_base[layer] + expert];
}

const struct source_segment *source_find_origin(const struct source *s, uint32_t first_segment,
						uint32_t n_segments, uint64_t slab_off,
						uint64_t *ret_file_off)
{
	for (uint32_t i = 0; i < n_segments; i++) {
		const struct source_segment *seg = &s->segments[first_segment + i];
		uint64_t start = seg->slab_off + seg->file_off % SOURCE_PAGE;

		if (slab_off < start || slab_off - start >= seg->size)
			continue;
		*ret_file_off = seg->file_off + (slab_off - start);
		return seg;
	}
	return NULL;
}

static void build_deinit(struct source_build *b)
{
	for (uint32_t i = 0; b->experts && i < b->n_layers; i++)
		free(b->experts[i]);
	free(b->experts);
	free(b->tensors);
	free(b->digests);
	free(b->tiles);
	free(b->parts);
	free(b->checksums);
	shards_deinit(&b->shards);
}

/* The named file, or config.json of the first directory that has one. Caller frees both. */
static int read_config(const struct source_want *want, char **ret_path, char **ret_text,
		       size_t *ret_size, struct err *err)
{
	int r = -ENOENT;

	for (uint32_t i = 0; i < (want->config_path ? 1 : want->n_model_dirs); i++) {
		CLEANUP(freep) char *path = NULL;
		bool ok = want->config_path
				  ? (path = strdup(want->config_path)) != NULL
				  : asprintf(&path, "%s/config.json", want->model_dirs[i]) >= 0;

		if (!ok)
			return err_set(err, ERR_NO_MEMORY, "out of memory");
		r = fd_read_file(AT_FDCWD, path, CONFIG_FILE_MAX, ret_text, ret_size);
		if (r == -ENOENT && !want->config_path)
			continue;
		if (r < 0)
			return err_set(err, ERR_CONFIG, "%s: %s", path, fd_why(r));
		*ret_path = TAKE(path);
		return 0;
	}
	return err_set(err, ERR_CONFIG, "%s: there is no config.json", want->model_dirs[0]);
}

int source_read_config(const char *config_path, const char *const *model_dirs,
		       uint32_t n_model_dirs, struct config *ret, struct err *err)
{
	struct source_want want = { .model_dirs = model_dirs,
				    .n_model_dirs = n_model_dirs,
				    .config_path = config_path };
	CLEANUP(freep) char *path = NULL;
	CLEANUP(freep) char *text = NULL;
	size_t size = 0;
	int r = read_config(&want, &path, &text, &size, err);

	return r < 0 ? r : config_parse(text, size, path, ret, err);
}

static int open_files(struct source_build *b, uint32_t n_trunk_paths)
{
	struct source *s = b->s;

	/* Rows more for the trunk files. */
	s->files = calloc((size_t)b->shards.n_paths + n_trunk_paths, sizeof(*s->files));
	if (!s->files)
		return err_set(b->err, ERR_NO_MEMORY, "out of memory");
	for (uint32_t i = 0; i < b->shards.n_paths; i++) {
		struct source_file *f = &s->files[i];
		struct stat st;

		f->fd = open(b->shards.paths[i], O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
		if (f->fd < 0)
			return err_set(b->err, ERR_IO, "%s: %s", b->shards.paths[i],
				       fd_strerror(errno));
		s->n_files = i + 1;
		f->path = TAKE(b->shards.paths[i]);
		if (fstat(f->fd, &st) < 0)
			return err_set(b->err, ERR_IO, "%s: %s", f->path, strerror(errno));
		f->size = (uint64_t)st.st_size;
	}
	return 0;
}

static int compare_digests(const void *a, const void *b)
{
	return memcmp(a, b, 16);
}

/* Over config.json and the headers' digests in ascending order: neither names of files nor the
 * directories they lie in matter. Sorts b->digests. */
static void compute_digest(struct source_build *b, const char *config, size_t config_size)
{
	XXH128_canonical_t canonical;
	XXH128_hash_t parts[2];
	uint8_t bytes[32];

	qsort(b->digests, b->s->n_files, sizeof(*b->digests), compare_digests);
	parts[0] = XXH3_128bits(config, config_size);
	parts[1] = XXH3_128bits(b->digests, b->s->n_files * sizeof(*b->digests));
	for (unsigned i = 0; i < 2; i++) {
		XXH128_canonicalFromHash(&canonical, parts[i]);
		memcpy(bytes + 16 * (size_t)i, canonical.digest, 16);
	}
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, sizeof(bytes)));
	memcpy(b->s->model_digest, canonical.digest, 16);
}

/* Everything after the config is known. */
static int build(struct source_build *b, const struct source_want *want, const char *config,
		 size_t config_size)
{
	uint64_t tile_bytes = want->tile_bytes ? want->tile_bytes : CATALOG_TILE_BYTES;
	int r = shards_find(want->model_dirs, want->n_model_dirs, &b->shards, b->err);

	if (r == 0)
		r = open_files(b, want->n_trunk_paths);
	if (r == 0)
		r = source_bind(b);
	if (r < 0)
		return r;
	compute_digest(b, config, config_size);
	r = want->n_trunk_paths ? source_open_trunk(b, want) : source_cut_tiles(b, tile_bytes);
	if (r < 0)
		return r;
	b->s->tile_segment[b->n_tiles] = b->s->n_segments;
	b->s->tile_checksum = TAKE(b->checksums);
	r = source_lay_out_experts(b);
	if (r == 0)
		r = source_make_catalog(b);
	return r == 0 ? catalog_check(&b->s->catalog, &b->s->config, b->err) : r;
}

int source_open(const struct source_want *want, struct source **ret, struct err *err)
{
	CLEANUP(source_freep) struct source *s = calloc(1, sizeof(*s));
	CLEANUP(build_deinit) struct source_build b = { .s = s, .err = err };
	CLEANUP(freep) char *config_path = NULL;
	CLEANUP(freep) char *config = NULL;
	size_t config_size = 0;
	int r;

	if (!s)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	if (want->n_model_dirs == 0)
		return err_set(err, ERR_USAGE, "no model directory is given");
	if (want->tile_bytes &&
	    (want->tile_bytes < TILE_BYTES_MIN || want->tile_bytes > TILE_BYTES_MAX))
		return err_set(err, ERR_USAGE, "a tile must have %d to %d bytes",
			       (int)TILE_BYTES_MIN, (int)TILE_BYTES_MAX);
	r = read_config(want, &config_path, &config, &config_size, err);
	if (r == 0)
		r = config_parse(config, config_size, config_path, &s->config, err);
	if (r < 0)
		return r;
	b.n_layers = s->config.n_layers;
	if (want->max_layers > b.n_layers)
		return err_set(err, ERR_USAGE, "%u layers are asked for, the model has %u",
			       want->max_layers, b.n_layers);
	if (want->max_layers)
		b.n_layers = want->max_layers;
	r = build(&b, want, config, config_size);
	if (r < 0)
		return r;
	*ret = TAKE(s);
	return 0;
}
