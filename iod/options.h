#pragma once
/* The options of k3-iod: the struct that options.def describes, and reading it. */
#include <stdbool.h>
#include <stdint.h>

#include "shared/option.h"
#include "shared/slab.h"

#define IOD_CONF_PATH "/etc/k3/iod.conf"

#define IOD_FIELD_FLAG(name)                                            bool name;
#define IOD_FIELD_STRING(name)                                          const char *name;
#define IOD_FIELD_LIST(name)                                            struct option_list name;
#define IOD_FIELD_UINT(name)                                            uint64_t name;
#define IOD_FIELD_BYTES(name)                                           uint64_t name;
#define IOD_FIELD_GB(name)                                              double name;
#define IOD_FIELD_CHOICE(name)                                          const char *name;
#define OPT(field, name, type, value, initial, min, max, section, help) IOD_FIELD_##type(field)
struct iod_options {
#include "iod/options.def"
};
#undef OPT

struct iod_reader_settings;
struct tuning;

extern const struct option_program iod_option_program;

/* The command line, then the configuration file for what it leaves open. ERR_USAGE. */
int iod_options_parse(struct iod_options *o, int argc, char **argv, struct err *err);
/* --huge-pages. */
enum slab_pages iod_options_pages(const struct iod_options *o);
/* What the reader wants to know; rows are borrowed from tuning. */
void iod_options_reader(const struct iod_options *o, const struct tuning *tuning,
			struct iod_reader_settings *ret);
