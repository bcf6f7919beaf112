/*
 * k3-store pack: the trunk file holds the shards' bytes, survives kills and full disks, and is
 * refused when it is not whole or of another checkpoint.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "iod/store/pack.h"
#include "shared/trunk_format.h"
#include "tests/harness/test.h"
#include "tests/shared/files.h"

static struct err err;
static struct iod_pack_result result;

static int pack(const char *model, const char *out, uint64_t tile_bytes,
		void (*progress)(void *, const struct iod_pack_progress *), void *data)
{
	struct iod_pack_want want = { .model_dirs = &model,
				      .n_model_dirs = 1,
				      .outs = &out,
				      .n_outs = 1,
				      .tile_bytes = tile_bytes,
				      .progress = progress,
				      .data = data };

	err_clear(&err);
	return iod_pack(&want, &result, &err);
}

static struct source *open_with(const char *model, const char *trunk, uint32_t max_layers)
{
	struct source_want want = { .model_dirs = &model,
				    .n_model_dirs = 1,
				    .trunk_paths = &trunk,
				    .n_trunk_paths = trunk ? 1 : 0,
				    .max_layers = max_layers };
	struct source *s = NULL;

	err_clear(&err);
	(void)source_open(&want, &s, &err);
	return s;
}

static bool exists(const char *path)
{
	return access(path, F_OK) == 0;
}

static const char *partial_of(const char *out)
{
	static char path[8400];

	(void)snprintf(path, sizeof(path), "%s.partial", out);
	return path;
}

/* A trunk file as far as pack looks: it replaces nothing else. */
#define OLD "KTRUNK01 of before"

static void check_old(const char *path)
{
	size_t size;
	char *bytes = test_read_file(path, &size);

	CHECK_EQ(size, sizeof(OLD) - 1);
	CHECK_STR(bytes, OLD);
	free(bytes);
}

static void same_files(const char *a, const char *b)
{
	size_t a_size, b_size;
	char *x = test_read_file(a, &a_size), *y = test_read_file(b, &b_size);

	CHECK_EQ(a_size, b_size);
	CHECK(memcmp(x, y, a_size) == 0);
	free(x);
	free(y);
}

/* Every part of every tile, and the embedding, against the shards. */
static void check_bytes(const char *model, const struct source *s)
{
	json_t *headers = files_headers(model);
	char *slab = malloc(s->catalog.header->max_tile_size), *bytes;
	uint64_t end = 0;
	size_t size;

	for (uint32_t i = 0; i < s->catalog.header->n_tiles; i++) {
		const struct catalog_tile *t = &s->catalog.tiles[i];
		const struct source_segment *g = &s->segments[s->tile_segment[i]];
		uint64_t used = 0;

		CHECK_EQ(s->tile_segment[i + 1] - s->tile_segment[i], 1);
		CHECK(g->file_off % 4096 == 0 && g->slab_off == 0 && g->size == t->slab_size);
		CHECK(g->file_off >= end); /* execution order is file order */
		end = g->file_off + g->size;
		CHECK(pread(s->files[g->file].fd, slab, g->size, (off_t)g->file_off) ==
		      (ssize_t)g->size);
		CHECK(XXH3_64bits(slab, g->size) == s->tile_checksum[i]);
		for (uint32_t k = t->first_part; k < t->first_part + t->n_parts; k++) {
			const struct catalog_part *p = &s->catalog.parts[k];
			uint64_t begin = t->role == ROLE_BUNDLE
						 ? 0
						 : (uint64_t)t->first_row * (p->size / p->rows);
			char name[256];

			(void)names_format((enum role)p->role, t->layer, name, sizeof(name));
			bytes = files_tensor(headers, name, &size);
			CHECK(p->offset % 64 == 0 && begin + p->size <= size);
			CHECK_MSG(memcmp(slab + p->offset, bytes + begin, p->size) == 0, "%s",
				  name);
			for (; used < p->offset; used++)
				CHECK(slab[used] == 0);
			used = p->offset + p->size;
			free(bytes);
		}
		for (; used < g->size; used++)
			CHECK(slab[used] == 0);
	}
	bytes = files_tensor(headers, "language_model.model.embed_tokens.weight", &size);
	slab = realloc(slab, size);
	CHECK(s->embed_off >= end && s->embed_off % 4096 == 0);
	CHECK(pread(s->files[s->embed_file].fd, slab, size, (off_t)s->embed_off) == (ssize_t)size);
	CHECK(memcmp(slab, bytes, size) == 0);
	free(bytes);
	free(slab);
	json_decref(headers);
}

static void content(void)
{
	static const char *const models[] = { "oracle/tiny", "oracle/odd", "oracle/tiny13",
					      "oracle/range" };

	for (size_t i = 0; i < N_ELEMENTS(models); i++) {
		const char *model = test_data(models[i]), *out = files_tmp("trunk");
		struct source *plain = open_with(model, NULL, 0), *s;

		CHECK_MSG(pack(model, out, i * 10000, NULL, NULL) == 0, "%s", err.text);
		CHECK(!exists(partial_of(out)));
		s = open_with(model, out, 0);
		CHECK_MSG(s && s->n_trunk_files == 1, "%s", err.text);
		CHECK(memcmp(s->model_digest, plain->model_digest, 16) == 0);
		CHECK_EQ(s->n_experts, plain->n_experts);
		check_bytes(model, s);
		source_free(s);
		source_free(plain);
	}
}

/* With fewer layers the head moves up; its bytes are still the head's. */
static void fewer_layers(void)
{
	const char *model = test_data("oracle/tiny"), *out = files_tmp("trunk");
	struct source *s, *all;
	uint32_t last, all_last;

	CHECK_MSG(pack(model, out, 0, NULL, NULL) == 0, "%s", err.text);
	all = open_with(model, out, 0);
	s = open_with(model, out, 4);
	CHECK_MSG(s && all, "%s", err.text);
	last = s->catalog.header->n_tiles - 1;
	all_last = all->catalog.header->n_tiles - 1;
	CHECK(s->catalog.header->n_layers == 4 && last < all_last);
	CHECK(s->catalog.tiles[last].layer == 4 && s->catalog.tiles[last].role == ROLE_LM_HEAD);
	CHECK_EQ(s->segments[s->tile_segment[last]].file_off,
		 all->segments[all->tile_segment[all_last]].file_off);
	CHECK(s->tile_checksum[last] == all->tile_checksum[all_last]);
	source_free(s);
	source_free(all);
}

/* Countdown of progress calls of one phase; then the process dies. */
struct bomb {
	enum iod_pack_phase phase;
	int left;
};

static void explode(void *data, const struct iod_pack_progress *p)
{
	struct bomb *b = data;

	if (p->phase == b->phase && b->left-- == 0)
		(void)raise(SIGKILL);
}

/* Run a pack in a child that kills itself; true when it did. */
static bool pack_killed(const char *model, const char *out, struct bomb bomb)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0)
		_exit(pack(model, out, 8192, explode, &bomb) < 0 ? 1 : 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	if (WIFSIGNALED(status))
		return true;
	CHECK_EQ(WEXITSTATUS(status), 0);
	return false;
}

static void killed(void)
{
	const char *model = test_data("oracle/tiny"), *good = files_tmp("good");
	const char *out = files_tmp("trunk");
	unsigned n_kills = 0;

	CHECK_MSG(pack(model, good, 8192, NULL, NULL) == 0, "%s", err.text);
	/* Again and again, a little further each time, in every phase. */
	for (int left = 0; pack_killed(model, out, (struct bomb){ IOD_PACK_WRITE, left });
	     left += 40)
		n_kills++;
	CHECK(n_kills >= 3);
	same_files(good, out);
	CHECK(unlink(out) == 0);
	CHECK(pack_killed(model, out, (struct bomb){ IOD_PACK_WRITE, 150 }));
	CHECK(exists(partial_of(out)) && !exists(out));
	CHECK(pack_killed(model, out, (struct bomb){ IOD_PACK_RESUME, 20 }));
	CHECK(pack_killed(model, out, (struct bomb){ IOD_PACK_VERIFY, 20 }));
	CHECK(exists(partial_of(out)) && !exists(out));
	CHECK_MSG(pack(model, out, 8192, NULL, NULL) == 0, "%s", err.text);
	CHECK(result.resumed_bytes > 0);
	CHECK(!exists(partial_of(out)));
	same_files(good, out);
}

/* What an earlier run left is believed only as far as it can be checked. */
static void bad_partial(void)
{
	const char *model = test_data("oracle/tiny"), *good = files_tmp("good");
	const char *out = files_tmp("trunk");
	size_t size;
	char *bytes;

	CHECK_MSG(pack(model, good, 8192, NULL, NULL) == 0, "%s", err.text);
	CHECK(pack_killed(model, out, (struct bomb){ IOD_PACK_WRITE, 150 }));
	bytes = test_read_file(partial_of(out), &size);
	for (size_t i = 4096; i < size; i += 50000)
		bytes[i] = (char)(bytes[i] + 1);
	files_write(partial_of(out), bytes, size);
	CHECK_MSG(pack(model, out, 8192, NULL, NULL) == 0, "%s", err.text);
	same_files(good, out);
	/* Of another tile size, another model, or no pack at all. */
	CHECK(pack_killed(model, out, (struct bomb){ IOD_PACK_WRITE, 150 }));
	CHECK_MSG(pack(model, out, 16384, NULL, NULL) == 0, "%s", err.text);
	CHECK_EQ(result.resumed_bytes, 0);
	CHECK(pack_killed(test_data("oracle/odd"), out, (struct bomb){ IOD_PACK_WRITE, 150 }));
	CHECK_MSG(pack(model, out, 8192, NULL, NULL) == 0, "%s", err.text);
	CHECK_EQ(result.resumed_bytes, 0);
	same_files(good, out);
	files_write(partial_of(out), bytes, 100);
	CHECK_MSG(pack(model, out, 8192, NULL, NULL) == 0, "%s", err.text);
	same_files(good, out);
	free(bytes);
}

/* While it is read back, a byte in the file changes. */
static void corrupt(void *data, const struct iod_pack_progress *p)
{
	static bool is_done;
	int fd;

	if (p->phase != IOD_PACK_VERIFY || is_done)
		return;
	is_done = true;
	fd = open(data, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && pwrite(fd, "x", 1, (off_t)p->total / 2) == 1 && fsync(fd) == 0);
	(void)close(fd);
}

static void verified(void)
{
	const char *model = test_data("oracle/tiny"), *out = files_tmp("trunk");
	char path[8400];

	files_write(out, OLD, sizeof(OLD) - 1);
	(void)snprintf(path, sizeof(path), "%s", partial_of(out));
	CHECK(pack(model, out, 8192, corrupt, path) < 0);
	CHECK_MSG(err.code == ERR_IO && strstr(err.text, "reads back differently"), "%s", err.text);
	CHECK(!exists(path));
	check_old(out);
}

static void no_space_limit(void)
{
	const char *model = test_data("oracle/tiny"), *out = files_tmp("trunk");
	struct rlimit limit = { 1 << 20, 1 << 20 };
	struct sigaction ignore = { .sa_handler = SIG_IGN };

	files_write(out, OLD, sizeof(OLD) - 1);
	CHECK(sigaction(SIGXFSZ, &ignore, NULL) == 0);
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	CHECK(pack(model, out, 0, NULL, NULL) < 0);
	CHECK_MSG(err.code == ERR_SPACE && strstr(err.text, "GB are needed"), "%s", err.text);
	CHECK(!exists(partial_of(out)));
	check_old(out);
}

static void no_space_tmpfs(void)
{
	const char *model = test_data("oracle/tiny"), *dir = files_tmp("small");
	char out[4200];

	CHECK(mkdir(dir, 0755) == 0);
	if (mount("tmpfs", dir, "tmpfs", 0, "size=1m") < 0)
		test_skip("a tmpfs cannot be mounted here");
	(void)snprintf(out, sizeof(out), "%s/trunk", dir);
	files_write(out, OLD, sizeof(OLD) - 1);
	CHECK(pack(model, out, 0, NULL, NULL) < 0);
	/* seen before anything is written */
	CHECK_MSG(err.code == ERR_ROOM && strstr(err.text, "GB are needed"), "%s", err.text);
	CHECK(!exists(partial_of(out)));
	check_old(out);
	CHECK(umount(dir) == 0);
}

static void refusals(void)
{
	const char *model = test_data("oracle/tiny"), *out = files_tmp("trunk"),
		   *dir = files_tmp("d");
	char shard[4200];
	int fd;

	CHECK(pack("/nonexistent", out, 0, NULL, NULL) < 0 && !exists(partial_of(out)));
	CHECK(pack(model, test_tmpdir(), 0, NULL, NULL) < 0);
	CHECK_EQ(err.code, ERR_USAGE);
	CHECK(pack(model, "/nonexistent/trunk", 0, NULL, NULL) < 0);
	CHECK_EQ(err.code, ERR_IO);
	/* A gap in the checkpoint. */
	files_link_all(model, dir);
	(void)snprintf(shard, sizeof(shard), "%s/model-00005-of-000010.safetensors", dir);
	CHECK(unlink(shard) == 0);
	CHECK(pack(dir, out, 0, NULL, NULL) < 0);
	CHECK_MSG(err.code == ERR_BIND && strstr(err.text, "layers 4"), "%s", err.text);
	CHECK(!exists(out) && !exists(partial_of(out)));
	/* Another pack at work. */
	fd = open(partial_of(out), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
	CHECK(pack(model, out, 0, NULL, NULL) < 0);
	CHECK_EQ(err.code, ERR_BUSY);
	CHECK(exists(partial_of(out)));
	(void)close(fd);
}

static void must_refuse(const char *model, const char *trunk, const char *says)
{
	char command[9000];

	CHECK_MSG(!open_with(model, trunk, 0), "accepted instead of: %s", says);
	CHECK_MSG(err.code == ERR_TRUNK && strstr(err.text, says), "\"%s\" does not say \"%s\"",
		  err.text, says);
	(void)snprintf(command, sizeof(command), "k3-store pack %s %s", model, trunk);
	CHECK_MSG(strstr(err.text, command), "no remedy: %s", err.text);
}

static void flip(const char *path, size_t offset)
{
	size_t size;
	char *bytes = test_read_file(path, &size);

	bytes[offset] = (char)(bytes[offset] ^ 1);
	files_write(path, bytes, size);
	free(bytes);
}

/* Every bit of header and tables is covered by a check. */
static void damaged(void)
{
	const char *model = test_data("oracle/tiny"), *out = files_tmp("trunk");
	struct source *s;
	size_t size;
	char *bytes;

	CHECK_MSG(pack(model, out, 0, NULL, NULL) == 0, "%s", err.text);
	must_refuse(test_data("oracle/odd"), out, "another checkpoint");
	for (size_t i = 0; i < sizeof(struct trunk_header); i++) {
		flip(out, i);
		must_refuse(model, out, "");
		flip(out, i);
	}
	for (size_t i = 4096; i < 4096 + 128 * sizeof(struct trunk_tile); i += 61) {
		flip(out, i);
		must_refuse(model, out, "tables are damaged");
		flip(out, i);
	}
	bytes = test_read_file(out, &size);
	s = open_with(model, out, 0);
	CHECK_MSG(s, "%s", err.text);
	source_free(s);
	files_write(out, bytes, size - 4096);
	must_refuse(model, out, "cut short");
	files_write(out, bytes, 100);
	must_refuse(model, out, "too short");
	files_write(out, "", 0);
	must_refuse(model, out, "too short");
	must_refuse(model, "/nonexistent/trunk", "No such file");
	CHECK(pack_killed(model, out, (struct bomb){ IOD_PACK_WRITE, 150 }));
	must_refuse(model, partial_of(out), "not a trunk file");
	free(bytes);
}

/* Checksums as they should be, over tables that are not: every tile in the last layer, so that none
 * is left with fewer layers. */
static void forged(void)
{
	const char *model = test_data("oracle/tiny"), *out = files_tmp("trunk");
	struct trunk_header h;
	struct trunk_tile *tiles;
	size_t size;
	char *bytes;

	CHECK_MSG(pack(model, out, 0, NULL, NULL) == 0, "%s", err.text);
	bytes = test_read_file(out, &size);
	memcpy(&h, bytes, sizeof(h));
	tiles = (struct trunk_tile *)(void *)(bytes + h.tiles_off);
	for (uint32_t i = 0; i < h.n_tiles; i++)
		tiles[i].tile.layer = h.n_layers - 1;
	h.table_checksum =
		XXH3_64bits(bytes + h.tiles_off, h.n_tiles * sizeof(struct trunk_tile) +
							 h.n_parts * sizeof(struct catalog_part));
	h.header_checksum = 0;
	h.header_checksum = XXH3_64bits(&h, sizeof(h));
	memcpy(bytes, &h, sizeof(h));
	files_write(out, bytes, size);
	CHECK(!open_with(model, out, 4));
	CHECK_MSG(err.code == ERR_TRUNK && strstr(err.text, "no tile"), "%s", err.text);
	CHECK(!open_with(model, out, 0));
	free(bytes);
}

static const struct test_case cases[] = {
	{ "content", content },
	{ "fewer_layers", fewer_layers },
	{ "killed", killed },
	{ "bad_partial", bad_partial },
	{ "verified", verified },
	{ "no_space_limit", no_space_limit },
	{ "no_space_tmpfs", no_space_tmpfs },
	{ "refusals", refusals },
	{ "damaged", damaged },
	{ "forged", forged },
};
TEST_MAIN(cases)
