/* k3-store pack: options to iod_pack, progress to standard error. */
#include "iod/store/options.h"
#include "iod/store/pack.h"
#include "iod/store/progress.h"
#include "shared/log.h"

static void show_progress(void *data, const struct iod_pack_progress *progress)
{
	static const char *const phases[] = {
		[IOD_PACK_RESUME] = "checking what is there",
		[IOD_PACK_WRITE] = "writing",
		[IOD_PACK_VERIFY] = "reading back",
	};

	iod_progress_show(data, phases[progress->phase], progress->done, progress->total);
}

int iod_store_cmd_pack(const struct iod_store_line *line)
{
	struct iod_progress progress;
	struct iod_pack_want want = { .model_dirs = line->words.items,
				      .n_model_dirs = (uint32_t)line->words.n - 1,
				      .config_path = line->options.config,
				      .tile_bytes = line->options.tile,
				      .max_layers = (uint32_t)line->options.layers,
				      .progress = show_progress,
				      .data = &progress };
	struct iod_pack_result result = { 0 };
	struct err err = { 0 };
	int r;

	if (line->words.n < 2) {
		log_error("pack takes a model directory and the file to write: %s",
			  line->program->usage);
		return err_exit_code(ERR_USAGE);
	}
	want.out = line->words.items[line->words.n - 1];
	iod_progress_init(&progress, line->options.quiet);
	r = iod_pack(&want, &result, &err);
	iod_progress_end(&progress);
	if (r < 0) {
		log_error("%s", err.text);
		return err_exit_code(err.code);
	}
	if (result.resumed_bytes)
		log_info("%.3f GB of an earlier run were found good and kept",
			 (double)result.resumed_bytes / 1e9);
	log_info("%s: %.3f GB in %u tiles, read back %s and equal", want.out,
		 (double)result.file_size / 1e9, result.n_tiles,
		 result.is_direct ? "from the disk" : "after dropping the page cache");
	return 0;
}
