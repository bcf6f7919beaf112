#pragma once
/* The options of k3-store, all commands: one row of options.def each. */
#include <stdbool.h>
#include <stdint.h>

#include "shared/option.h"

struct iod_store_options {
#define OPT(field, name, type, value, initial, min, max, section, commands, help) \
	IOD_STORE_FIELD_##type(field)
#define IOD_STORE_FIELD_FLAG(field)   bool field;
#define IOD_STORE_FIELD_STRING(field) const char *field;
#define IOD_STORE_FIELD_LIST(field)   struct option_list field;
#define IOD_STORE_FIELD_UINT(field)   uint64_t field;
#define IOD_STORE_FIELD_BYTES(field)  uint64_t field;
#include "iod/store/options.def"
#undef OPT
};

/* What a command gets. */
struct iod_store_line {
	const struct option_program *program; /* borrowed: static */
	struct iod_store_options options;
	struct option_list words;
};

/* The table and texts of one command ("pack"), or of the whole program for NULL or a word that is
 * no command. */
const struct option_program *iod_store_program(const char *command);

/* Each returns the exit code. */
int iod_store_cmd_bench(const struct iod_store_line *line);
int iod_store_cmd_census(const struct iod_store_line *line);
int iod_store_cmd_pack(const struct iod_store_line *line);
int iod_store_cmd_replay(const struct iod_store_line *line);
int iod_store_cmd_verify(const struct iod_store_line *line);
int iod_store_cmd_synth(const struct iod_store_line *line);
