#pragma once
/*
 * Log lines for people and the journal. Only main programs and the modules that decide call this:
 * shared/, proto/ and kernels never log. Lines go to standard error; under the journal
 * (JOURNAL_STREAM set) with the <N> priority prefix, otherwise with the program's name. A line says
 * what failed, on what, because of what, and what happens now.
 */
#include "shared/attr.h"

enum log_level {
	LOG_LEVEL_ERROR = 3,
	LOG_LEVEL_WARNING = 4,
	LOG_LEVEL_INFO = 6,
	LOG_LEVEL_DEBUG = 7
};

/* Once in main(): the program's name and the highest level that is printed. */
void log_init(const char *program, enum log_level max);
void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* A line with fields for machines beside it: "NAME=value" each, NULL behind the last. Only a sink
 * takes them. */
void log_fields(enum log_level level, const char *const *fields, const char *fmt, ...)
	PRINTF_LIKE(3, 4);

/* Lines go to sink instead of standard error, as long as it returns 0. fields: NULL = none. */
typedef int (*log_sink_fn)(enum log_level level, const char *text, const char *const *fields);
void log_set_sink(log_sink_fn sink);

#define log_error(...)   log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...)    log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)   log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)
