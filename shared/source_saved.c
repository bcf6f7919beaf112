/* See source_saved.h. Layout: the header, then its sections one after another, each padded to 8. */
#include "shared/source_saved.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/attr.h"
#include "shared/fd.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define SAVED_MAGIC 0x31474c5443334b21ULL
enum { SAVED_VERSION = 1, SAVED_MAX = 1 << 30, N_SECTIONS = 8, PAGE = 4096 };

struct saved_header {
	uint64_t magic;
	uint32_t version, header_size;
	uint64_t total_size, checksum; /* XXH3-64 over all that follows the header */
	uint8_t model_digest[16];
	uint64_t sections[N_SECTIONS]; /* bytes of each */
	uint32_t n_files, n_segments, n_experts, embed_file;
	uint64_t embed_off, embed_row_size, n_tensors;
	uint64_t n_trunk_files;
};

/* The sections, in their order. */
enum { WITNESS, PATHS, CATALOG, SEGMENTS, TILE_SEGMENT, EXPERT_BASE, EXPERTS, TILE_CHECKSUM };

/* ---- what it is made of ------------------------------------------------------------------- */

static bool put_stat(FILE *f, const char *what, const char *path, const struct stat *st,
		     time_t *latest)
{
	if (st->st_ctim.tv_sec > *latest)
		*latest = st->st_ctim.tv_sec;
	if (st->st_mtim.tv_sec > *latest)
		*latest = st->st_mtim.tv_sec;
	return fprintf(f, "%s %s %lu %lu %ld %ld.%09ld %ld.%09ld\n", what, path,
		       (unsigned long)st->st_dev, (unsigned long)st->st_ino, (long)st->st_size,
		       (long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec, (long)st->st_ctim.tv_sec,
		       st->st_ctim.tv_nsec) > 0;
}

/* Absent files count too: they may come. */
static bool put_path(FILE *f, const char *what, const char *path, time_t *latest)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return fprintf(f, "%s %s absent\n", what, path) > 0;
	return put_stat(f, what, path, &st, latest);
}

static bool put_all(FILE *f, const struct source_want *w, const struct source *s, time_t *latest)
{
	bool ok =
		fprintf(f, "layers %u tile %lu\n", w->max_layers, (unsigned long)w->tile_bytes) > 0;

	for (uint32_t i = 0; i < w->n_trunk_paths; i++)
		ok = ok && fprintf(f, "trunk %s\n", w->trunk_paths[i]) > 0;
	if (w->config_path)
		ok = ok && put_path(f, "config", w->config_path, latest);
	for (uint32_t i = 0; ok && i < w->n_model_dirs; i++) {
		char path[4096];

		ok = put_path(f, "directory", w->model_dirs[i], latest);
		(void)snprintf(path, sizeof(path), "%s/config.json", w->model_dirs[i]);
		ok = ok && put_path(f, "config", path, latest);
		(void)snprintf(path, sizeof(path), "%s/model.safetensors.index.json",
			       w->model_dirs[i]);
		ok = ok && put_path(f, "index", path, latest);
	}
	for (uint32_t i = 0; ok && i < s->n_files; i++) {
		struct stat st;

		ok = fstat(s->files[i].fd, &st) == 0 &&
		     put_stat(f, "file", s->files[i].path, &st, latest);
	}
	return ok;
}

/* Everything that a source depends on, as text; NULL without memory. *latest: the youngest time. */
static char *make_witness(const struct source_want *w, const struct source *s, size_t *ret_size,
			  time_t *latest)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, ret_size);
	bool ok;

	*latest = 0;
	if (!f)
		return NULL;
	ok = put_all(f, w, s, latest);
	if (fclose(f) != 0 || !ok) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- saving ------------------------------------------------------------------------------- */

static int save(const struct source_want *w, const struct source *s, const char *path,
		time_t before)
{
	static const char zeros[8];
	CLEANUP(freep) char *witness = NULL;
	CLEANUP(freep) char *paths = NULL;
	CLEANUP(freep) char *body = NULL;
	size_t sizes[N_SECTIONS] = { 0 }, body_size = 0;
	const struct catalog_header *c = s->catalog.header;
	const void *sections[N_SECTIONS];
	struct saved_header h = { .magic = SAVED_MAGIC,
				  .version = SAVED_VERSION,
				  .header_size = sizeof(h),
				  .n_files = s->n_files,
				  .n_segments = s->n_segments,
				  .n_experts = s->n_experts,
				  .embed_file = s->embed_file,
				  .embed_off = s->embed_off,
				  .embed_row_size = s->embed_row_size,
				  .n_tensors = s->n_tensors,
				  .n_trunk_files = s->n_trunk_files };
	struct fd_piece pieces[2];
	time_t latest;
	FILE *f;

	witness = make_witness(w, s, &sizes[WITNESS], &latest);
	/* what has changed while it was scanned may not be what was scanned */
	if (!witness || latest >= before)
		return witness ? 0 : -ENOMEM;
	f = open_memstream(&paths, &sizes[PATHS]);
	for (uint32_t i = 0; f && i < s->n_files; i++)
		(void)fwrite(s->files[i].path, 1, strlen(s->files[i].path) + 1, f);
	if (!f || fclose(f) != 0)
		return -ENOMEM;
	sections[WITNESS] = witness;
	sections[PATHS] = paths;
	sections[CATALOG] = s->catalog_bytes;
	sections[SEGMENTS] = s->segments;
	sections[TILE_SEGMENT] = s->tile_segment;
	sections[EXPERT_BASE] = s->expert_base;
	sections[EXPERTS] = s->experts;
	sections[TILE_CHECKSUM] = s->tile_checksum;
	sizes[CATALOG] = s->catalog_size;
	sizes[SEGMENTS] = s->n_segments * sizeof(*s->segments);
	sizes[TILE_SEGMENT] = (c->n_tiles + (size_t)1) * sizeof(*s->tile_segment);
	sizes[EXPERT_BASE] = c->n_layers * sizeof(*s->expert_base);
	sizes[EXPERTS] = s->n_experts * sizeof(*s->experts);
	sizes[TILE_CHECKSUM] = s->tile_checksum ? c->n_tiles * sizeof(*s->tile_checksum) : 0;
	f = open_memstream(&body, &body_size);
	for (unsigned i = 0; f && i < N_SECTIONS; i++) {
		h.sections[i] = sizes[i];
		if (sizes[i])
			(void)fwrite(sections[i], 1, sizes[i], f);
		(void)fwrite(zeros, 1, (8 - sizes[i] % 8) % 8, f);
	}
	if (!f || fclose(f) != 0)
		return -ENOMEM;
	memcpy(h.model_digest, s->model_digest, sizeof(h.model_digest));
	h.total_size = sizeof(h) + body_size;
	h.checksum = XXH3_64bits(body, body_size);
	pieces[0] = (struct fd_piece){ &h, sizeof(h) };
	pieces[1] = (struct fd_piece){ body, body_size };
	return fd_replace_file(path, pieces, 2);
}

/* ---- loading ------------------------------------------------------------------------------ */

/* size bytes of the file in memory of their own, which a source then keeps as it is: what was
 * checked cannot change any more. Copying the tables once more, and taking their pages one fault at
 * a time, was half of a start. MAP_FAILED when that does not work. */
static void *map_copy(int fd, size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return at;
	(void)madvise(at, size, MADV_POPULATE_WRITE);
	if (fd_pread_all(fd, at, size, 0) == 0)
		return at;
	(void)munmap(at, size);
	return MAP_FAILED;
}

/* The whole file, into s->saved. False and *why when it is not to be trusted or read. No file: *why
 * NULL. */
static bool read_file(struct source *s, const char *path, const char **why)
{
	CLEANUP(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;
	void *at;

	*why = NULL;
	if (fd < 0 && errno == ENOENT)
		return false;
	*why = "it cannot be read";
	if (fd < 0 || fstat(fd, &st) < 0)
		return false;
	*why = "others than its owner may write to it";
	if ((st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & 022) != 0)
		return false;
	*why = "it is no saved catalog";
	if (!S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(struct saved_header) ||
	    st.st_size > SAVED_MAX)
		return false;
	*why = "it cannot be read";
	at = map_copy(fd, (size_t)st.st_size);
	if (at == MAP_FAILED)
		return false;
	s->saved = at;
	s->saved_size = (uint64_t)st.st_size;
	*why = NULL;
	return true;
}

static const char *check_header(char *bytes, size_t size, char *sections[N_SECTIONS])
{
	const struct saved_header *h = (const void *)bytes;
	size_t at = sizeof(*h);

	if (h->magic != SAVED_MAGIC)
		return "it is no saved catalog";
	if (h->version != SAVED_VERSION || h->header_size != sizeof(*h))
		return "it is of another version";
	if (h->total_size != size || XXH3_64bits(bytes + at, size - at) != h->checksum)
		return "it is damaged";
	for (unsigned i = 0; i < N_SECTIONS; i++) {
		if (h->sections[i] > size - at)
			return "it is damaged";
		sections[i] = bytes + at;
		at += (h->sections[i] + 7) / 8 * 8;
		if (at > size)
			return "it is damaged";
	}
	return NULL;
}

static bool open_files(struct source *s, const struct saved_header *h, const char *paths)
{
	const char *at = paths, *end = paths + h->sections[PATHS];

	s->files = calloc(h->n_files + (size_t)1, sizeof(*s->files));
	for (uint32_t i = 0; s->files && i < h->n_files; i++) {
		struct source_file *f = &s->files[i];
		struct stat st;

		if (at >= end || !memchr(at, '\0', (size_t)(end - at)))
			return false;
		f->fd = open(at, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
		s->n_files = i + 1;
		f->path = strdup(at);
		if (f->fd < 0 || !f->path || fstat(f->fd, &st) < 0)
			return false;
		f->size = (uint64_t)st.st_size;
		at += strlen(at) + 1;
	}
	return s->files && h->n_files > 0;
}

static bool is_segment_sound(const struct source *s, uint32_t index, uint64_t room)
{
	const struct source_segment *g = &s->segments[index];

	return g->file < s->n_files && g->size <= s->files[g->file].size &&
	       g->file_off <= s->files[g->file].size - g->size && g->slab_off % PAGE == 0 &&
	       g->slab_off <= room && g->file_off % PAGE + g->size <= room - g->slab_off;
}

/* No number of it leads outside a file, tile or slot. */
static bool is_sound(const struct source *s)
{
	const struct catalog_header *c = s->catalog.header;
	uint32_t n_experts = 0;

	for (uint32_t i = 0; i < c->n_tiles; i++) {
		uint32_t k = s->tile_segment[i], end = s->tile_segment[i + 1];

		if (k >= end || end > s->n_segments)
			return false;
		for (; k < end; k++)
			if (!is_segment_sound(s, k, s->catalog.tiles[i].slab_size))
				return false;
	}
	for (uint32_t i = 0; i < s->n_experts; i++) {
		const struct source_expert *e = &s->experts[i];

		if (e->n_segments == 0 || e->first_segment > s->n_segments ||
		    e->n_segments > s->n_segments - e->first_segment)
			return false;
		for (uint32_t k = 0; k < e->n_segments; k++)
			if (!is_segment_sound(s, e->first_segment + k, c->expert_size))
				return false;
		for (unsigned p = 0; p < EXPERT_PARTS; p++)
			if (e->part_off[p] + (uint64_t)c->expert_rows[p] * c->expert_cols[p] >
			    c->expert_size)
				return false;
	}
	for (uint32_t i = 0; i < c->n_layers; i++) {
		bool is_moe = config_layer_is_moe(&s->config, i);

		if (s->expert_base[i] != (is_moe ? n_experts : UINT32_MAX))
			return false;
		n_experts += is_moe ? c->n_experts : 0;
	}
	return n_experts == s->n_experts && s->embed_file < s->n_files &&
	       s->embed_row_size >= 2ull * c->embed_cols &&
	       s->embed_row_size <= 4ull * c->embed_cols &&
	       s->embed_row_size * c->embed_rows <= s->files[s->embed_file].size &&
	       s->embed_off <= s->files[s->embed_file].size - s->embed_row_size * c->embed_rows;
}

static bool take_tables(struct source *s, const struct saved_header *h, char *sections[N_SECTIONS])
{
	const struct catalog_header *c;
	struct err e = { 0 };

	s->catalog_bytes = sections[CATALOG];
	s->catalog_size = h->sections[CATALOG];
	if (catalog_open(s->catalog_bytes, s->catalog_size, &s->catalog, &e) < 0 ||
	    catalog_check(&s->catalog, &s->config, &e) < 0)
		return false;
	c = s->catalog.header;
	if (h->sections[SEGMENTS] != h->n_segments * sizeof(*s->segments) ||
	    h->sections[TILE_SEGMENT] != (c->n_tiles + 1ull) * sizeof(*s->tile_segment) ||
	    h->sections[EXPERT_BASE] != c->n_layers * sizeof(*s->expert_base) ||
	    h->sections[EXPERTS] != h->n_experts * sizeof(*s->experts) ||
	    h->sections[TILE_CHECKSUM] !=
		    (h->n_trunk_files ? c->n_tiles * sizeof(*s->tile_checksum) : 0) ||
	    h->n_trunk_files > h->n_files)
		return false;
	s->segments = (void *)sections[SEGMENTS];
	s->tile_segment = (void *)sections[TILE_SEGMENT];
	s->expert_base = (void *)sections[EXPERT_BASE];
	s->experts = (void *)sections[EXPERTS];
	s->tile_checksum = h->n_trunk_files ? (void *)sections[TILE_CHECKSUM] : NULL;
	s->n_segments = h->n_segments;
	s->n_experts = h->n_experts;
	s->embed_file = h->embed_file;
	s->embed_off = h->embed_off;
	s->embed_row_size = h->embed_row_size;
	s->n_tensors = h->n_tensors;
	s->n_trunk_files = (uint32_t)h->n_trunk_files;
	memcpy(s->model_digest, h->model_digest, sizeof(s->model_digest));
	return is_sound(s);
}

/* 0, or why the saved file is not used (NULL: there is none). */
static int load(const struct source_want *w, const char *path, struct source **ret,
		const char **why)
{
	CLEANUP(source_freep) struct source *s = calloc(1, sizeof(*s));
	CLEANUP(freep) char *witness = NULL;
	char *sections[N_SECTIONS];
	size_t witness_size = 0;
	const struct saved_header *h;
	struct err e = { 0 };
	time_t latest;

	if (!s || !read_file(s, path, why))
		return -1;
	*why = check_header(s->saved, s->saved_size, sections);
	if (*why)
		return -1;
	h = s->saved;
	*why = "the model has changed since, or the options";
	if (!open_files(s, h, sections[PATHS]))
		return -1;
	witness = make_witness(w, s, &witness_size, &latest);
	if (!witness || witness_size != h->sections[WITNESS] ||
	    memcmp(witness, sections[WITNESS], witness_size) != 0 ||
	    source_read_config(w->config_path, w->model_dirs, w->n_model_dirs, &s->config, &e) < 0)
		return -1;
	*why = "it is damaged";
	if (!take_tables(s, h, sections))
		return -1;
	*ret = TAKE(s);
	return 0;
}

int source_open_saved(const struct source_want *want, const char *dir, struct source **ret,
		      char ret_note[400], struct err *err)
{
	time_t before = time(NULL);
	const char *why = NULL;
	char path[4096];
	int r;

	ret_note[0] = '\0';
	(void)snprintf(path, sizeof(path), "%s/catalog", dir);
	if (load(want, path, ret, &why) == 0)
		return 0;
	if (why)
		(void)snprintf(ret_note, 400, "%.200s is not used: %s", path, why);
	r = source_open(want, ret, err);
	if (r < 0)
		return r;
	r = save(want, *ret, path, before);
	if (r < 0)
		(void)snprintf(ret_note, 400, "%.200s cannot be written: %s", path, strerror(-r));
	return 0;
}
