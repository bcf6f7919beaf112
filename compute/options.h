#pragma once
/* The command line of k3: options.def as a struct, and the table behind it. */
#include <stdbool.h>
#include <stdint.h>

#include "shared/option.h"

#define OPT_FIELD_FLAG   bool
#define OPT_FIELD_STRING const char *
#define OPT_FIELD_CHOICE const char *
#define OPT_FIELD_LIST   struct option_list
#define OPT_FIELD_UINT   uint64_t
#define OPT_FIELD_BYTES  uint64_t
#define OPT_FIELD_GB     double
#define OPT(field, name, type, value, initial, min, max, section, commands, help) \
	OPT_FIELD_##type field;
struct k3_options {
#include "compute/options.def"
};
#undef OPT

/* What main() hands to a command. */
struct k3_command_line {
	const struct option_program *program;
	struct k3_options options;
	struct option_list words; /* MODEL directories, or the text to tokenize */
};

/* The program as a whole (command NULL) or one command of it; NULL for an unknown command. */
const struct option_program *k3_option_program(const char *command);

/* --trunk-gb and --cache-gb as they count: a --preset replaces what was given before it, and is
 * corrected by what comes after. */
double k3_option_trunk_gb(const struct k3_command_line *line);
double k3_option_cache_gb(const struct k3_command_line *line);

/* --huge-pages reserved. */
bool k3_option_wants_reserved(const struct k3_options *o);

/* The commands. Each returns the exit code and has said on standard error what went wrong. */
int k3_cmd_doctor(const struct k3_command_line *line);
int k3_cmd_plan(const struct k3_command_line *line);
int k3_cmd_run(const struct k3_command_line *line);
int k3_cmd_trace(const struct k3_command_line *line);
int k3_cmd_tokenize(const struct k3_command_line *line);
int k3_cmd_stats(const struct k3_command_line *line);
