#include "shared/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static const char *log_program = "k3";
static enum log_level log_max = LOG_LEVEL_INFO;
static bool log_journal;

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

void log_line(enum log_level level, const char *fmt, ...)
{
	char text[2400];
	va_list ap;

	if (level > log_max)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	replace_controls(text);
	/* one write a line, so that two processes on one terminal do not mix */
	if (log_journal)
		(void)fprintf(stderr, "<%d>%s\n", (int)level, text);
	else
		(void)fprintf(stderr, "%s: %s\n", log_program, text);
}
