/* See verify.h. Steps of a deep run, the numbers of which the journal counts: the shards by
 * SHA-256, then the pieces of units.h. */
#include "iod/store/verify.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <xxhash.h>

#include "iod/expert_check.h"
#include "iod/store/manifest.h"
#include "iod/store/units.h"
#include "iod/store/verify_journal.h"
#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/safetensors.h"
#include "shared/shards.h"
#include "shared/sums.h"

struct verify {
	const struct iod_verify_want *want;
	struct iod_verify_result *ret;
	struct err *err;
	struct shards shards;
	struct iod_manifest manifest;
	struct source *s;     /* tiles from the shards; NULL when it does not bind */
	struct source *trunk; /* tiles from the trunk file; may be NULL */
	struct sums *sums;    /* may be NULL */
	struct iod_units units;
	struct iod_unit_reader reader;
	struct iod_verify_journal journal;
	char *journal_path;
	uint64_t done, total; /* bytes, for the progress line */
};

static void verify_deinit(struct verify *v)
{
	shards_deinit(&v->shards);
	iod_manifest_deinit(&v->manifest);
	iod_units_deinit(&v->units);
	iod_unit_reader_deinit(&v->reader);
	iod_verify_journal_deinit(&v->journal);
	sums_free(v->sums);
	source_free(v->trunk);
	source_free(v->s);
	free(v->journal_path);
}

static int fault(struct verify *v, const char *sentence)
{
	v->ret->n_faults++;
	v->want->fault(v->want->data, sentence);
	return v->want->is_deep ? iod_verify_journal_add(&v->journal, sentence, v->err) : 0;
}

/* An error that is a finding, not the end. */
static void found(struct verify *v, const struct err *e)
{
	v->ret->n_faults++;
	v->want->fault(v->want->data, e->text);
}

/* ---- headers and sizes ------------------------------------------------------------------- */

static void check_file(struct verify *v, const char *path)
{
	CLEANUP(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	const struct iod_manifest_row *row = iod_manifest_find(&v->manifest, path);
	struct err e = { 0 };
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0) {
		(void)err_set(&e, ERR_IO, "%s: %s", path, fd_strerror(errno));
		found(v, &e);
		return;
	}
	v->ret->n_files++;
	v->ret->file_bytes += (uint64_t)st.st_size;
	if (row && row->size != (uint64_t)st.st_size)
		(void)err_set(&e, ERR_CHECKPOINT,
			      "%s has %" PRIu64 " bytes, the manifest says %" PRIu64
			      "; fetch it again",
			      path, (uint64_t)st.st_size, row->size);
	else
		(void)st_scan(fd, path, NULL, NULL, NULL, &e);
	if (!row && v->manifest.n && !e.code)
		(void)err_set(&e, ERR_CHECKPOINT, "%s is not in the manifest", path);
	if (e.code)
		found(v, &e);
}

/* What the manifest has and no directory. With --layers only what is there is looked at. */
static void check_absent(struct verify *v)
{
	for (uint32_t i = 0; v->want->max_layers == 0 && i < v->manifest.n; i++) {
		bool is_here = false;
		struct err e = { 0 };

		for (uint32_t k = 0; k < v->shards.n_paths; k++)
			is_here = is_here || iod_manifest_find(&v->manifest, v->shards.paths[k]) ==
						     &v->manifest.rows[i];
		if (is_here)
			continue;
		(void)err_set(&e, ERR_CHECKPOINT,
			      "%s, which the manifest names, is not there; fetch it",
			      v->manifest.rows[i].name);
		found(v, &e);
	}
}

static int open_source(struct verify *v, uint32_t n_trunk_paths, struct source **ret)
{
	const struct iod_verify_want *w = v->want;
	struct source_want want = { .model_dirs = w->model_dirs,
				    .n_model_dirs = w->n_model_dirs,
				    .config_path = w->config_path,
				    .trunk_paths = w->trunk_paths,
				    .n_trunk_paths = n_trunk_paths,
				    .max_layers = w->max_layers };
	struct err e = { 0 };
	int r = source_open(&want, ret, &e);

	if (r < 0 && (e.code == ERR_USAGE || e.code == ERR_CONFIG || e.code == ERR_NO_MEMORY))
		return err_set(v->err, e.code, "%s", e.text);
	if (r < 0)
		found(v, &e);
	return 0;
}

static void note_no_sums(const struct iod_verify_want *w)
{
	char text[4096];
	int at = snprintf(text, sizeof(text),
			  "there are no checksums of this checkpoint; write "
			  "them with: k3-store verify --write");

	for (uint32_t i = 0; i < w->n_model_dirs && at < (int)sizeof(text); i++)
		at += snprintf(text + at, sizeof(text) - (size_t)at, " %s", w->model_dirs[i]);
	w->note(w->data, text);
}

/* The sidecar: named and not usable is a fault, not found only a note. The journal stands beside
 * it, or where it would be written. */
static void open_sums(struct verify *v)
{
	const struct iod_verify_want *w = v->want;
	CLEANUP(freep)
	char *path = w->sums_path ? strdup(w->sums_path)
				  : sums_find(w->trunk_paths, w->n_trunk_paths, w->model_dirs,
					      w->n_model_dirs);
	struct err e = { 0 };
	int len;

	if (!path)
		note_no_sums(w);
	else if (sums_load(v->s, path, &v->sums, &e) < 0)
		found(v, &e);
	len = path ? asprintf(&v->journal_path, "%s.verify", path)
		   : asprintf(&v->journal_path, "%s/k3.sums.verify", w->model_dirs[0]);
	if (len < 0)
		v->journal_path = NULL;
}

static int check_shallow(struct verify *v)
{
	const struct iod_verify_want *w = v->want;
	int r = shards_find(w->model_dirs, w->n_model_dirs, &v->shards, v->err);

	if (r == 0 && w->manifest_path)
		r = iod_manifest_read(w->manifest_path, &v->manifest, v->err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < v->shards.n_paths; i++)
		check_file(v, v->shards.paths[i]);
	check_absent(v);
	if (v->ret->n_faults > 0)
		return 0; /* binding would only say the first of it again */
	r = open_source(v, 0, &v->s);
	if (r == 0 && v->s && w->n_trunk_paths)
		r = open_source(v, w->n_trunk_paths, &v->trunk);
	if (r == 0 && v->s)
		open_sums(v);
	return r;
}

/* ---- every byte -------------------------------------------------------------------------- */

static void show(struct verify *v, const char *what, uint64_t bytes)
{
	v->done += bytes;
	if (v->want->progress)
		v->want->progress(v->want->data, what, v->done, v->total);
}

static void hashed(void *data, uint64_t bytes)
{
	struct verify *v = data;

	iod_unit_reader_hold(&v->reader, bytes);
	show(v, "sha256", bytes);
}

static int check_sha256(struct verify *v, uint32_t file)
{
	const struct source_file *f = &v->s->files[file];
	const struct iod_manifest_row *row = iod_manifest_find(&v->manifest, f->path);
	uint8_t digest[32];
	char text[600];
	int r = iod_manifest_hash(f->fd, hashed, v, digest);

	if (r < 0)
		(void)snprintf(text, sizeof(text), "%.400s: reading failed: %s; check the disk",
			       f->path, strerror(-r));
	else if (row && memcmp(digest, row->sha256, sizeof(digest)) != 0)
		(void)snprintf(text, sizeof(text),
			       "%.400s: SHA-256 is not what the manifest says: the file is "
			       "damaged, fetch it again",
			       f->path);
	else
		return 0;
	return fault(v, text);
}

/* The nth fault of a tile. */
static int check_tile(struct verify *v, const struct iod_unit *u, const uint8_t *bytes,
		      uint32_t nth, struct err *e)
{
	const struct source *s = u->s;
	const struct catalog_tile *t = &s->catalog.tiles[u->index];
	const struct source_segment *seg = &s->segments[s->tile_segment[u->index]];
	struct sums_fault f = { .nth = nth };

	if (v->sums && sums_check_tile(v->sums, s, u->index, bytes, &f) != 0)
		return sums_fail(s, &f, e);
	if (nth == 0 && s->tile_checksum &&
	    XXH3_64bits(bytes, t->slab_size) != s->tile_checksum[u->index])
		return err_set(e, ERR_TRUNK,
			       "%s: tile %u (%s of layer %u), bytes %" PRIu64 " to %" PRIu64
			       " of the file, does not have its checksum: the file is damaged, "
			       "make it again with k3-store pack",
			       s->files[seg->file].path, u->index, role_name(t->role), t->layer,
			       seg->file_off, seg->file_off + t->slab_size - 1);
	return 0;
}

static int check_unit(struct verify *v, const struct iod_unit *u, const uint8_t *bytes,
		      uint32_t nth, struct err *e)
{
	struct sums_fault f = { .nth = nth };
	int r = 0;

	switch (u->kind) {
	case IOD_UNIT_TILE:
		return check_tile(v, u, bytes, nth, e);
	case IOD_UNIT_EXPERT:
		if (v->sums)
			r = sums_check_expert(v->sums, u->s, u->layer, u->expert, bytes, &f);
		if (r == 0 && nth == 0)
			return iod_expert_check(u->s, u->layer, u->expert, bytes, e);
		break;
	case IOD_UNIT_ROWS:
		if (v->sums)
			r = sums_check_rows(v->sums, u->s, u->index, u->n_rows, bytes, &f);
		break;
	}
	return r ? sums_fail(u->s, &f, e) : 0;
}

/* One step: read, compare; all that is wrong is noted and the work goes on. */
static int check_piece(struct verify *v, const struct iod_unit *u)
{
	bool has_sum = v->sums || (u->kind == IOD_UNIT_TILE && u->s->tile_checksum);
	const uint8_t *bytes;
	struct err e = { 0 };
	int r = iod_unit_read(&v->reader, u, &bytes, &e);

	if (r < 0) {
		r = fault(v, e.text);
	} else {
		for (uint32_t nth = 0; r == 0 && check_unit(v, u, bytes, nth, &e) < 0; nth++) {
			r = fault(v, e.text);
			err_clear(&e);
		}
	}
	*(has_sum ? &v->ret->checked_bytes : &v->ret->unchecked_bytes) += u->size;
	show(v, u->s->n_trunk_files ? "trunk file" : "weights", u->size);
	return r;
}

/* What is verified, as one number: another size, time or checksum of any file changes it, and so
 * does another list of steps (--layers). */
static uint64_t make_key(const struct verify *v)
{
	const struct source *sources[] = { v->s, v->trunk };
	const uint64_t steps[] = { v->units.n, v->units.size };
	XXH3_state_t *state = XXH3_createState();
	uint64_t key;

	if (!state)
		return 0;
	(void)XXH3_64bits_reset(state);
	(void)XXH3_64bits_update(state, v->s->model_digest, sizeof(v->s->model_digest));
	(void)XXH3_64bits_update(state, steps, sizeof(steps));
	if (v->sums)
		(void)XXH3_64bits_update(state, &v->sums->header, sizeof(v->sums->header));
	for (unsigned k = 0; k < N_ELEMENTS(sources); k++)
		for (uint32_t i = 0; sources[k] && i < sources[k]->n_files; i++) {
			struct stat st = { 0 };
			uint64_t facts[4];

			(void)fstat(sources[k]->files[i].fd, &st);
			facts[0] = (uint64_t)st.st_ino;
			facts[1] = (uint64_t)st.st_size;
			facts[2] = (uint64_t)st.st_mtim.tv_sec;
			facts[3] = (uint64_t)st.st_mtim.tv_nsec;
			(void)XXH3_64bits_update(state, facts, sizeof(facts));
		}
	for (uint32_t i = 0; i < v->manifest.n; i++)
		(void)XXH3_64bits_update(state, v->manifest.rows[i].sha256, 32);
	key = XXH3_64bits_digest(state);
	(void)XXH3_freeState(state);
	return key;
}

static int prepare_deep(struct verify *v, uint32_t *ret_n_hashed)
{
	const char *path = v->want->journal_path ? v->want->journal_path : v->journal_path;
	int r = iod_units_add(&v->units, v->s, true, v->err);

	if (r == 0 && v->trunk)
		r = iod_units_add(&v->units, v->trunk, false, v->err);
	if (r == 0)
		r = iod_unit_reader_init(&v->reader, &v->units, v->want->rate, v->err);
	if (r == 0)
		r = iod_verify_journal_open(&v->journal, path, make_key(v), v->err);
	*ret_n_hashed = v->manifest.n ? v->s->n_files : 0;
	v->total = v->units.size;
	for (uint32_t i = 0; i < *ret_n_hashed; i++)
		v->total += v->s->files[i].size;
	return r;
}

/* Faults that an earlier run has found count, and are told again. */
static void take_up(struct verify *v)
{
	char text[128];

	v->ret->n_faults += v->journal.n_bad;
	for (char *line = v->journal.bad; line && *line; line = strchr(line, '\n') + 1) {
		CLEANUP(freep) char *one = strndup(line, strcspn(line, "\n"));

		v->want->fault(v->want->data, one ? one : "");
	}
	if (v->journal.done == 0)
		return;
	(void)snprintf(text, sizeof(text), "going on after %" PRIu64 " of %u steps (journal %.60s)",
		       v->journal.done, v->units.n + (v->manifest.n ? v->s->n_files : 0),
		       v->journal.path);
	v->want->note(v->want->data, text);
}

static int check_deep(struct verify *v)
{
	uint32_t n_hashed = 0, n;
	int r = prepare_deep(v, &n_hashed);

	if (r < 0)
		return r;
	n = n_hashed + v->units.n;
	take_up(v);
	for (uint32_t i = 0; r == 0 && i < n; i++) {
		if (i < v->journal.done) {
			v->done += i < n_hashed ? v->s->files[i].size
						: v->units.items[i - n_hashed].size;
			continue;
		}
		r = i < n_hashed ? check_sha256(v, i)
				 : check_piece(v, &v->units.items[i - n_hashed]);
		v->journal.done = i + 1;
		if (r == 0 && iod_verify_journal_save(&v->journal, 0) < 0)
			v->want->note(v->want->data, "the journal cannot be written: a run that is "
						     "stopped begins again");
	}
	if (r == 0)
		iod_verify_journal_remove(&v->journal);
	return r;
}

int iod_verify(const struct iod_verify_want *want, struct iod_verify_result *ret, struct err *err)
{
	CLEANUP(verify_deinit) struct verify v = { .want = want, .ret = ret, .err = err };
	int r;

	v.reader.fd = -1;
	memset(ret, 0, sizeof(*ret));
	r = check_shallow(&v);
	return r == 0 && want->is_deep && v.s ? check_deep(&v) : r;
}
