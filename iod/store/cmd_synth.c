/* k3-store synth: options to iod_synth, progress to standard error. */
#include <fcntl.h>
#include <string.h>

#include "iod/store/options.h"
#include "iod/store/progress.h"
#include "iod/store/synth.h"
#include "iod/store/synth_config.h"
#include "shared/attr.h"
#include "shared/config.h"
#include "shared/fd.h"
#include "shared/log.h"

static void show_progress(void *data, uint64_t done, uint64_t total)
{
	static const char what[] = "writing";

	iod_progress_show(data, what, done, total);
}

static int run(const struct iod_store_line *line, uint64_t *ret_size, struct err *err)
{
	CLEANUP(freep) char *base = NULL;
	CLEANUP(freep) char *config = NULL;
	struct iod_progress progress;
	struct iod_synth_want want = { .out = line->words.items[0],
				       .seed = line->options.seed,
				       .progress = show_progress,
				       .data = &progress };
	const char *path = line->options.config;
	size_t size = 0;
	int r = path ? fd_read_file(AT_FDCWD, path, CONFIG_FILE_MAX, &base, &size) : 0;

	if (r < 0)
		return err_set(err, ERR_CONFIG, "%s: %s", path, fd_why(r));
	r = iod_synth_config(line, base, size, &config, err);
	if (r < 0)
		return r;
	want.config_json = config;
	want.config_size = strlen(config);
	iod_progress_init(&progress, line->options.quiet);
	r = iod_synth(&want, ret_size, err);
	iod_progress_end(&progress);
	return r;
}

int iod_store_cmd_synth(const struct iod_store_line *line)
{
	struct err err = { 0 };
	uint64_t size = 0;

	if (line->words.n != 1) {
		log_error("synth takes one directory to write: %s", line->program->usage);
		return err_exit_code(ERR_USAGE);
	}
	if (run(line, &size, &err) < 0) {
		log_error("%s", err.text);
		return err_exit_code(err.code);
	}
	log_info("%s: %.3f GB of shards", line->words.items[0], (double)size / 1e9);
	return 0;
}
