/*
 * The real headers of all 96 shards as a hollow checkpoint of full size: counts and offsets against
 * the published figures, and the time it takes to index them (printed, not judged: machines
 * differ).
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shared/catalog.h"
#include "tests/harness/test.h"
#include "tests/shared/files.h"

static void run(char *const argv[])
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		(void)execvp(argv[0], argv);
		_exit(127);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* Headers unpacked, each file stretched to its published size. Returns the sum of the sizes. */
static uint64_t make_hollow(const char *dir)
{
	char archive[4096], to[4096], line[512];
	char *tar[] = { (char *)"tar", (char *)"xJf", archive, (char *)"-C", to, NULL };
	FILE *manifest = fopen(test_data("checkpoint/shard_manifest.tsv"), "r");
	uint64_t total = 0;

	(void)snprintf(archive, sizeof(archive), "%s",
		       test_data("checkpoint/headers_all96.tar.xz"));
	(void)snprintf(to, sizeof(to), "%s", dir);
	CHECK(mkdir(dir, 0755) == 0 && manifest);
	run(tar);
	while (fgets(line, sizeof(line), manifest)) {
		char name[64], from[4096];
		unsigned long long size;

		if (line[0] == '#')
			continue;
		CHECK(sscanf(line, "%63s %llu", name, &size) == 2);
		(void)snprintf(to, sizeof(to), "%s/%s", dir, name);
		(void)snprintf(from, sizeof(from), "%.*s.header",
			       (int)(strlen(to) - strlen(".safetensors")), to);
		CHECK_MSG(rename(from, to) == 0, "%s", from);
		if (truncate(to, (off_t)size) < 0)
			test_skip("no sparse files of 17 GB here");
		total += size;
	}
	(void)fclose(manifest);
	(void)snprintf(to, sizeof(to), "%s/config.json", dir);
	CHECK(symlink(test_data("checkpoint/config.json"), to) == 0);
	return total;
}

static struct source *open_timed(const char *dir, const char *what)
{
	struct source_want want = { .model_dirs = &dir, .n_model_dirs = 1 };
	struct source *s = NULL;
	struct timespec a, b;
	struct err err = { 0 };

	(void)clock_gettime(CLOCK_MONOTONIC, &a);
	CHECK_MSG(source_open(&want, &s, &err) == 0, "%s", err.text);
	(void)clock_gettime(CLOCK_MONOTONIC, &b);
	(void)printf("%s: %llu tensors in %.3f s\n", what, (unsigned long long)s->n_tensors,
		     (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9);
	return s;
}

/* Spot checks with the other header reader: one KDA layer, one MLA layer. */
static void check_offsets(const struct source *s, const char *dir)
{
	json_t *headers = files_headers(dir);

	for (uint32_t expert = 0; expert < 896; expert += 127) {
		static const uint32_t layers[] = { 1, 3, 92 };

		for (unsigned i = 0; i < N_ELEMENTS(layers); i++) {
			const struct source_expert *e = source_expert(s, layers[i], expert);
			const struct source_segment *g = &s->segments[e->first_segment];

			for (unsigned p = 0; p < EXPERT_PARTS; p++) {
				char name[256];
				json_t *h;

				(void)names_format_expert(layers[i], expert, (enum expert_part)p,
							  name, sizeof(name));
				h = json_object_get(headers, name);
				CHECK_EQ(g->file_off + e->part_off[p] - g->file_off % 4096,
					 json_integer_value(json_object_get(h, "off")));
			}
		}
	}
	json_decref(headers);
}

static void all_headers(void)
{
	const char *dir = files_tmp("k3");
	uint64_t total = make_hollow(dir), experts = 0, trunk = 0, head = 0;
	char command[4300], sh[] = "sh", dash_c[] = "-c";
	char *unzip[] = { sh, dash_c, command, NULL };
	const struct catalog_header *h;
	struct source *s;

	CHECK_EQ(total, 1560936091448ll);
	s = open_timed(dir, "first pass");
	source_free(s);
	s = open_timed(dir, "headers cached");
	h = s->catalog.header;
	CHECK_EQ(s->n_tensors, 497220);
	CHECK_EQ(s->n_files, 96);
	CHECK_EQ(h->n_layers, 93);
	CHECK_EQ(s->n_experts, 82432);
	CHECK_EQ(h->expert_size, 17547264 + 4096); /* contiguous, but not page aligned */
	for (uint32_t i = 0; i < s->n_experts; i++) {
		CHECK_EQ(s->experts[i].n_segments, 1);
		experts += s->segments[s->experts[i].first_segment].size;
	}
	CHECK_EQ(experts, 1446456066048ll);
	for (uint32_t i = 0; i < h->n_tiles; i++) {
		const struct catalog_tile *t = &s->catalog.tiles[i];

		*(t->layer == 93 ? &head : &trunk) += t->data_size;
		CHECK(t->role == ROLE_BUNDLE || t->data_size <= 32 << 20);
		CHECK(t->role == ROLE_BUNDLE || s->tile_segment[i + 1] - s->tile_segment[i] == 1);
	}
	/* 108.81 GB of layers, lm_head 2.35 GB with the three small vectors */
	CHECK(trunk > 108800000000ull && trunk < 108820000000ull);
	CHECK_EQ(head, 163840ll * 7168 * 2 + 3 * 7168 * 2);
	/* With the embedding, A_log's padding (69 x 32 floats) and the 168 vision tensors that is
	 * every byte of the index' total_size. */
	CHECK_EQ(experts + trunk + head + 163840ull * 7168 * 2 + 69 * 32 * 4 + 894717952,
		 1560860324864ll);
	check_offsets(s, dir);
	source_free(s);
	(void)snprintf(command, sizeof(command),
		       "gunzip -c '%s' > '%s/model.safetensors.index.json'",
		       test_data("checkpoint/model.safetensors.index.json.gz"), dir);
	run(unzip);
	s = open_timed(dir, "with the index");
	CHECK_EQ(s->n_tensors, 497220);
	source_free(s);
}

static const struct test_case cases[] = { { "all_headers", all_headers } };
TEST_MAIN(cases)
