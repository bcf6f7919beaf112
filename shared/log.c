#include "shared/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "shared/attr.h"

static const char *log_program = "k3";
static enum log_level log_max = LOG_LEVEL_INFO;
static bool log_journal;
static log_sink_fn log_sink;

void log_init(const char *program, enum log_level max)
{
	log_program = program;
	log_max = max;
	log_journal = getenv("JOURNAL_STREAM") != NULL;
}

/* Names in a file or on the command line may hold anything; a line stays one line. */
static void replace_controls(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 127)
			*text = '?';
}

static PRINTF_LIKE(3, 0) void write_line(enum log_level level, const char *const *fields,
					 const char *fmt, va_list ap)
{
	char text[2400];

	if (level > log_max)
		return;
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	replace_controls(text);
	if (log_sink && log_sink(level, text, fields) == 0)
		return;
	/* one write a line, so that two processes on one terminal do not mix */
	if (log_journal)
		(void)fprintf(stderr, "<%d>%s\n", (int)level, text);
	else
		(void)fprintf(stderr, "%s: %s\n", log_program, text);
}

void log_line(enum log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	write_line(level, NULL, fmt, ap);
	va_end(ap);
}

void log_fields(enum log_level level, const char *const *fields, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	write_line(level, fields, fmt, ap);
	va_end(ap);
}

void log_set_sink(log_sink_fn sink)
{
	log_sink = sink;
}
