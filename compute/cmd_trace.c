/*
 * k3 trace: a prompt is evaluated as k3 run would, and every layer's values are written beside its
 * logits: DIR/trace.f32 and DIR/logits.f32 (a row for every position). tests/compare reads them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "compute/options.h"
#include "compute/run.h"
#include "compute/run_check.h"
#include "shared/fd.h"
#include "shared/log.h"

static int trace(const struct k3_command_line *line, int *ret_code, struct err *err)
{
	CLEANUP(freep) char *logits = NULL;
	struct k3_command_line run = *line;
	int r = k3_run_check(line, false, err);

	if (r == 0 && !line->options.out)
		r = err_set(err, ERR_USAGE, "give --out DIR: where the values go");
	if (r < 0)
		return r;
	if (asprintf(&logits, "%s/logits.f32", line->options.out) < 0)
		return err_set(err, ERR_NO_MEMORY, "no memory for a path");
	(void)mkdir(line->options.out, 0777); /* whether it is there shows when it is written to */
	run.options.out = NULL;
	run.options.gen = 0;
	run.options.dump_logits_all = logits;
	run.options.trunk_gb = k3_option_trunk_gb(line);
	run.options.cache_gb = k3_option_cache_gb(line);
	*ret_code = k3_run(&run, line->options.out);
	return 0;
}

int k3_cmd_trace(const struct k3_command_line *line)
{
	struct err err = { 0 };
	int code = 0;

	if (trace(line, &code, &err) == 0)
		return code;
	log_error("%s", err.text);
	return err_exit_code(err.code);
}
