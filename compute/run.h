#pragma once
/* One prompt to the end, for the commands that are one (cmd_run.c). */
#include "compute/options.h"

/* As k3 run with these options; trace_dir: also every layer's values of the prompt (trace.h), or
 * NULL. The exit code; what went wrong was said. */
int k3_run(const struct k3_command_line *line, const char *trace_dir);
