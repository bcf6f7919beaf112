/* k3-store pack: options to iod_pack, progress to standard error. */
#include <stdio.h>
#include <sys/stat.h>

#include "iod/store/left_alone.h"
#include "iod/store/options.h"
#include "iod/store/pack.h"
#include "iod/store/progress.h"
#include "iod/store/sums_write.h"
#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/log.h"
#include "shared/sums.h"

struct packing {
	struct iod_progress progress;
	const struct iod_pack_want *want;
};

static void show_progress(void *data, const struct iod_pack_progress *progress)
{
	struct packing *p = data;
	static const char *const phases[] = {
		[IOD_PACK_RESUME] = "checking what is there",
		[IOD_PACK_WRITE] = "writing",
		[IOD_PACK_VERIFY] = "reading back",
	};

	iod_progress_show(&p->progress, phases[progress->phase], progress->done, progress->total);
}

static void show_sums(void *data, uint64_t done, uint64_t total)
{
	static const char what[] = "checksums of all weights";
	struct packing *p = data;

	iod_progress_show(&p->progress, what, done, total);
}

/* OUT.sums, of a set beside its first file. Before OUT has its name, so that a pack that is stopped
 * here goes on here. */
static int write_sums(void *data, struct err *err)
{
	struct packing *p = data;
	CLEANUP(freep) char *path = NULL;
	struct iod_sums_want want = { .model = { .model_dirs = p->want->model_dirs,
						 .n_model_dirs = p->want->n_model_dirs,
						 .config_path = p->want->config_path,
						 .max_layers = p->want->max_layers },
				      .progress = show_sums,
				      .data = p };
	struct iod_sums_result result;

	if (asprintf(&path, "%s.sums", p->want->outs[0]) < 0) {
		path = NULL;
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	}
	want.out = path;
	return iod_sums_write(&want, &result, err);
}

static int check_sums(const struct iod_pack_want *want, struct err *err)
{
	static const uint64_t magics[] = { SUMS_MAGIC, SUMS_PARTIAL_MAGIC };
	CLEANUP(freep) char *path = NULL;

	if (asprintf(&path, "%s.sums", want->outs[0]) < 0) {
		path = NULL;
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	}
	return iod_store_check_replaced(path, magics, N_ELEMENTS(magics), "", "checksums", err);
}

/* The first word is a model; so is each directory that follows it, and the last word never is. */
static uint32_t count_models(const struct option_list *words)
{
	uint32_t n = 1;
	struct stat st;

	while (n + 1 < words->n && stat(words->items[n], &st) == 0 && S_ISDIR(st.st_mode))
		n++;
	return n;
}

static void say_result(const struct iod_pack_want *want, const struct iod_pack_result *r)
{
	char more[32] = "";

	if (want->n_outs > 1)
		(void)snprintf(more, sizeof(more), " and %u more", want->n_outs - 1);
	if (r->resumed_bytes)
		log_info("%.3f GB of an earlier run were found good and kept",
			 (double)r->resumed_bytes / 1e9);
	log_info("%s%s: %.3f GB in %u tiles, read back %s and equal", want->outs[0], more,
		 (double)r->size / 1e9, r->n_tiles,
		 r->is_direct ? "from the disk" : "after dropping the page cache");
}

int iod_store_cmd_pack(const struct iod_store_line *line)
{
	struct packing p;
	struct iod_pack_want want = { .model_dirs = line->words.items,
				      .config_path = line->options.config,
				      .tile_bytes = line->options.tile,
				      .max_layers = (uint32_t)line->options.layers,
				      .progress = show_progress,
				      .before_rename = line->options.no_sums ? NULL : write_sums,
				      .data = &p };
	struct iod_pack_result result = { 0 };
	struct err err = { 0 };
	int r;

	if (line->words.n < 2) {
		log_error("pack takes a model directory and the file to write: %s",
			  line->program->usage);
		return err_exit_code(ERR_USAGE);
	}
	want.n_model_dirs = count_models(&line->words);
	want.outs = line->words.items + want.n_model_dirs;
	want.n_outs = (uint32_t)line->words.n - want.n_model_dirs;
	p.want = &want;
	iod_progress_init(&p.progress, line->options.quiet);
	r = want.before_rename ? check_sums(&want, &err) : 0;
	if (r == 0)
		r = iod_pack(&want, &result, &err);
	iod_progress_end(&p.progress);
	if (r < 0) {
		log_error("%s", err.text);
		return err_exit_code(err.code);
	}
	say_result(&want, &result);
	return 0;
}
