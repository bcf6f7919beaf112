/* k3-store bench: the grid as a table or JSON, and the profile that k3-iod loads. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "iod/store/bench.h"
#include "iod/store/options.h"
#include "shared/attr.h"
#include "shared/catalog.h"
#include "shared/fd.h"
#include "shared/log.h"

struct devices {
	struct iod_bench_device *rows;
	uint32_t n;
};

static void devices_deinit(struct devices *d)
{
	iod_bench_free(d->rows, d->n);
}

struct line {
	bool is_quiet, is_terminal;
	time_t shown;
};

/* Rewritten on a terminal; a line every ten seconds elsewhere. */
static void show_progress(void *data, const struct iod_bench_device *d, uint32_t n_done,
			  uint32_t n_all)
{
	struct line *l = data;
	time_t t = time(NULL);

	if (l->is_quiet || (!l->is_terminal && t - l->shown < 10))
		return;
	l->shown = t;
	(void)fprintf(stderr, "%sdevice %u:%u: %u of %u measurements%s", l->is_terminal ? "\r" : "",
		      d->major, d->minor, n_done, n_all, l->is_terminal ? "  " : "\n");
}

static double best_rate(const struct iod_bench_device *d, enum iod_bench_pattern p)
{
	return d->rate[p][d->best_depth][d->best_chunk];
}

/* ---- the table ----------------------------------------------------------------------------- */

static void print_grid(const struct iod_bench_device *d, enum iod_bench_pattern p)
{
	(void)printf("  %-10s GB/s", iod_bench_patterns[p]);
	for (int k = 0; k < IOD_BENCH_CHUNKS; k++)
		(void)printf(" %6uK", iod_bench_chunks[k] >> 10);
	(void)printf("\n");
	for (int i = 0; i < IOD_BENCH_DEPTHS; i++) {
		(void)printf("       depth %3u", iod_bench_depths[i]);
		for (int k = 0; k < IOD_BENCH_CHUNKS; k++)
			(void)printf(" %7.2f", d->rate[p][i][k]);
		(void)printf("\n");
	}
}

static void print_table(const struct devices *all)
{
	for (uint32_t i = 0; i < all->n; i++) {
		const struct iod_bench_device *d = &all->rows[i];

		(void)printf("device %u:%u, %u files, %.1f GB (%s ...); %s\n", d->major, d->minor,
			     d->n_files, (double)d->size / 1e9, d->path, d->reading);
		for (int p = 0; p < IOD_BENCH_PATTERN_N_; p++)
			print_grid(d, (enum iod_bench_pattern)p);
		(void)printf("  best: --queue-depth %u --chunk %uK, random %.2f GB/s, sequential "
			     "%.2f GB/s\n",
			     iod_bench_depths[d->best_depth], iod_bench_chunks[d->best_chunk] >> 10,
			     best_rate(d, IOD_BENCH_RANDOM), best_rate(d, IOD_BENCH_SEQUENTIAL));
	}
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static json_t *points_json(const struct iod_bench_device *d)
{
	json_t *points = json_array();

	for (int p = 0; p < IOD_BENCH_PATTERN_N_; p++)
		for (int i = 0; i < IOD_BENCH_DEPTHS; i++)
			for (int k = 0; k < IOD_BENCH_CHUNKS; k++)
				(void)json_array_append_new(
					points, json_pack("{s:s, s:i, s:i, s:f}", "pattern",
							  iod_bench_patterns[p], "depth",
							  (int)iod_bench_depths[i], "chunk",
							  (int)iod_bench_chunks[k], "gb_per_s",
							  d->rate[p][i][k]));
	return points;
}

static int print_json(const struct devices *all, const char *profile, struct err *err)
{
	json_t *devices = json_array(), *root;
	int r;

	for (uint32_t i = 0; i < all->n; i++) {
		const struct iod_bench_device *d = &all->rows[i];
		char name[32];

		(void)snprintf(name, sizeof(name), "%u:%u", d->major, d->minor);
		(void)json_array_append_new(
			devices,
			json_pack("{s:s, s:s, s:i, s:I, s:s, s:{s:i, s:i, s:f, s:f}, s:o}",
				  "device", name, "path", d->path, "files", (int)d->n_files,
				  "bytes", (json_int_t)d->size, "reading", d->reading, "best",
				  "depth", (int)iod_bench_depths[d->best_depth], "chunk",
				  (int)iod_bench_chunks[d->best_chunk], "random_gb_per_s",
				  best_rate(d, IOD_BENCH_RANDOM), "sequential_gb_per_s",
				  best_rate(d, IOD_BENCH_SEQUENTIAL), "points", points_json(d)));
	}
	root = json_pack("{s:o, s:s?}", "devices", devices, "profile", profile);
	r = root ? json_dumpf(root, stdout, JSON_INDENT(1)) : -1;
	json_decref(root);
	(void)printf("\n");
	return r < 0 ? err_set(err, ERR_NO_MEMORY, "no memory for the JSON") : 0;
}

/* ---- the profile --------------------------------------------------------------------------- */

static int write_profile(const struct devices *all, const char *path, struct err *err)
{
	CLEANUP(freep) char *text = NULL;
	struct fd_piece piece;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	int r;

	if (!f)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	(void)fprintf(f, "# Made by k3-store bench --write-profile; k3-iod --profile loads it.\n");
	for (uint32_t i = 0; i < all->n; i++) {
		const struct iod_bench_device *d = &all->rows[i];

		(void)fprintf(f,
			      "# device %u:%u, %s: random %.2f GB/s, sequential %.2f GB/s\n"
			      "queue-depth = %s=%u\nchunk = %s=%uK\nrate = %s=%.0f\n",
			      d->major, d->minor, d->reading, best_rate(d, IOD_BENCH_RANDOM),
			      best_rate(d, IOD_BENCH_SEQUENTIAL), d->path,
			      iod_bench_depths[d->best_depth], d->path,
			      iod_bench_chunks[d->best_chunk] >> 10, d->path,
			      best_rate(d, IOD_BENCH_SEQUENTIAL) * 1e9);
	}
	if (fclose(f) != 0)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	piece = (struct fd_piece){ text, size };
	r = fd_replace_file(path, &piece, 1);
	return r < 0 ? err_set(err, ERR_IO, "%s: %s", path, strerror(-r)) : 0;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static int run(const struct iod_store_line *line, struct err *err)
{
	CLEANUP(source_freep) struct source *files = NULL;
	CLEANUP(devices_deinit) struct devices all = { 0 };
	struct line progress = { .is_quiet = line->options.quiet,
				 .is_terminal = isatty(STDERR_FILENO) == 1 };
	struct iod_bench_want want = { .seconds = (double)line->options.seconds,
				       .progress = show_progress,
				       .data = &progress };
	int r = iod_bench_open(line->words.items, (uint32_t)line->words.n, &files, err);

	if (r < 0)
		return r;
	want.files = files;
	r = iod_bench(&want, &all.rows, &all.n, err);
	if (progress.is_terminal && progress.shown)
		(void)fputc('\n', stderr);
	if (r == 0 && line->options.write_profile)
		r = write_profile(&all, line->options.write_profile, err);
	if (r < 0)
		return r;
	if (line->options.json)
		return print_json(&all, line->options.write_profile, err);
	print_table(&all);
	return 0;
}

int iod_store_cmd_bench(const struct iod_store_line *line)
{
	struct err err = { 0 };

	if (line->words.n == 0) {
		log_error("bench takes files, directories or block devices: %s",
			  line->program->usage);
		return err_exit_code(ERR_USAGE);
	}
	if (run(line, &err) == 0)
		return 0;
	log_error("%s", err.text);
	return err_exit_code(err.code);
}
