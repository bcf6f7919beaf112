/* k3-store verify: options to iod_verify or iod_sums_write; findings to standard error, the summary
 * to standard output. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "iod/store/left_alone.h"
#include "iod/store/options.h"
#include "iod/store/progress.h"
#include "iod/store/sums_write.h"
#include "iod/store/verify.h"
#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/log.h"
#include "shared/sums.h"

static void show_progress(void *data, const char *what, uint64_t done, uint64_t total)
{
	iod_progress_show(data, what, done, total);
}

static void show_reading(void *data, uint64_t done, uint64_t total)
{
	static const char what[] = "checksums";

	iod_progress_show(data, what, done, total);
}

static void show_fault(void *data, const char *sentence)
{
	iod_progress_end(data);
	log_error("%s", sentence);
}

static void show_note(void *data, const char *sentence)
{
	iod_progress_end(data);
	log_info("%s", sentence);
}

static int fail(const struct err *err)
{
	log_error("%s", err->text);
	return err_exit_code(err->code);
}

static void print_summary(const struct iod_verify_want *want, const struct iod_verify_result *r)
{
	(void)printf("%" PRIu64 " shards, %" PRIu64 " bytes: headers and sizes checked%s\n",
		     r->n_files, r->file_bytes,
		     want->manifest_path ? ", sizes against the manifest" : "");
	if (want->is_deep)
		(void)printf("%" PRIu64 " bytes of weights have been compared with checksums, "
			     "%" PRIu64 " have none%s\n",
			     r->checked_bytes, r->unchecked_bytes,
			     want->manifest_path ? "; each shard with its SHA-256" : "");
	if (r->n_faults)
		(void)printf("%" PRIu64 " fault%s\n", r->n_faults, r->n_faults == 1 ? "" : "s");
	else
		(void)printf("no fault\n");
}

static int verify(const struct iod_store_line *line)
{
	struct iod_progress progress;
	struct iod_verify_want want = { .model_dirs = line->words.items,
					.n_model_dirs = (uint32_t)line->words.n,
					.config_path = line->options.config,
					.trunk_paths = line->options.trunk.items,
					.n_trunk_paths = (uint32_t)line->options.trunk.n,
					.sums_path = line->options.sums,
					.manifest_path = line->options.manifest,
					.journal_path = line->options.journal,
					.max_layers = (uint32_t)line->options.layers,
					.rate = line->options.rate,
					.is_deep = line->options.deep,
					.progress = show_progress,
					.fault = show_fault,
					.note = show_note,
					.data = &progress };
	struct iod_verify_result result;
	struct err err = { 0 };
	int r;

	iod_progress_init(&progress, line->options.quiet);
	r = iod_verify(&want, &result, &err);
	iod_progress_end(&progress);
	if (r < 0)
		return fail(&err);
	print_summary(&want, &result);
	return result.n_faults ? err_exit_code(ERR_CHECKPOINT) : 0;
}

/* The name may be a slip that would cost a shard: only checksums are replaced. */
static int check_replaced(const char *path, struct err *err)
{
	static const uint64_t magics[] = { SUMS_MAGIC, SUMS_PARTIAL_MAGIC };

	return iod_store_check_replaced(path, magics, N_ELEMENTS(magics), "--sums ", "checksums",
					err);
}

static int write_sums(const struct iod_store_line *line)
{
	CLEANUP(freep) char *path = NULL;
	struct iod_progress progress;
	struct iod_sums_want want = { .model = { .model_dirs = line->words.items,
						 .n_model_dirs = (uint32_t)line->words.n,
						 .config_path = line->options.config,
						 .max_layers = (uint32_t)line->options.layers },
				      .rate = line->options.rate,
				      .progress = show_reading,
				      .data = &progress };
	struct iod_sums_result result = { 0 };
	struct err err = { 0 };
	int r;

	if (line->options.sums)
		path = strdup(line->options.sums);
	else if (asprintf(&path, "%s/k3.sums", line->words.items[0]) < 0)
		path = NULL;
	if (!path)
		return err_exit_code(ERR_NO_MEMORY);
	if (line->options.sums && check_replaced(path, &err) < 0)
		return fail(&err);
	want.out = path;
	iod_progress_init(&progress, line->options.quiet);
	r = iod_sums_write(&want, &result, &err);
	iod_progress_end(&progress);
	if (r < 0)
		return fail(&err);
	if (result.resumed_size)
		log_info("%.3f GB had been read by an earlier run",
			 (double)result.resumed_size / 1e9);
	log_info("%s: checksums of %.3f GB of weights", path, (double)result.size / 1e9);
	return 0;
}

int iod_store_cmd_verify(const struct iod_store_line *line)
{
	const struct iod_store_options *o = &line->options;

	if (line->words.n == 0) {
		log_error("verify takes a model directory; 'k3-store verify --help' says more");
		return err_exit_code(ERR_USAGE);
	}
	if (o->write && (o->deep || o->manifest || o->trunk.n > 0 || o->journal)) {
		log_error("--write makes checksums of what is there; --deep, --manifest, --trunk "
			  "and --journal are for checking: give one or the other");
		return err_exit_code(ERR_USAGE);
	}
	if (!o->deep && !o->write && (o->rate || o->journal)) {
		log_error("--rate and --journal are used with --deep");
		return err_exit_code(ERR_USAGE);
	}
	return o->write ? write_sums(line) : verify(line);
}
