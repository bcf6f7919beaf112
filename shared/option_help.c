/*
 * --help and man pages from the same tables as the parser (option.c). Options are printed by
 * section, in the order in which the sections first appear in the table.
 */
#include <ctype.h>
#include <string.h>

#include "shared/option.h"

enum { HELP_WIDTH = 80, HELP_COLUMN = 28 };

/* Print text from column on, broken at spaces before HELP_WIDTH; newlines are kept. */
static void print_wrapped(FILE *out, const char *text, size_t column)
{
	size_t at = column;

	while (*text) {
		size_t len = strcspn(text, " \n");

		if (at > column && at + len > HELP_WIDTH) {
			(void)fprintf(out, "\n%*s", (int)column, "");
			at = column;
		}
		(void)fwrite(text, 1, len, out);
		at += len;
		text += len;
		if (*text == '\n') {
			(void)fprintf(out, "\n%*s", (int)column, "");
			at = column;
			text++;
		} else if (*text == ' ') {
			text++;
			if (at + 1 + strcspn(text, " \n") <= HELP_WIDTH) {
				(void)fputc(' ', out);
				at++;
			} else {
				(void)fprintf(out, "\n%*s", (int)column, "");
				at = column;
			}
		}
	}
	(void)fputc('\n', out);
}

static const char *section_of(const struct option *o)
{
	return o->section ? o->section : "options";
}

/* True when an earlier option that command takes has the same section. */
static bool is_section_seen(const struct option_program *p, const char *command, size_t index)
{
	for (size_t i = 0; i < index; i++)
		if (option_used_by(&p->options[i], command) &&
		    strcmp(section_of(&p->options[i]), section_of(&p->options[index])) == 0)
			return true;
	return false;
}

/*
 * The help of o as it is for command, in text: of "<run plan: ...>" what is for others is left out.
 * Without a command all of it, with the names.
 */
static void copy_help(const struct option *o, const char *command, char *text, size_t size)
{
	const char *at = o->help, *end;
	size_t n = 0;

	text[0] = '\0';
	while (*at && n < size) {
		int plain = (int)strcspn(at, "<");
		char names[100];

		n += (size_t)snprintf(text + n, size - n, "%.*s", plain, at);
		at += plain;
		end = strchr(at, '>');
		if (!end)
			break;
		plain = (int)strcspn(++at, ":");
		(void)snprintf(names, sizeof(names), "%.*s", plain, at);
		if (n < size && option_used_by(&(struct option){ .commands = names }, command)) {
			at += command ? plain + (int)strspn(at + plain, ": ") : 0;
			n += (size_t)snprintf(text + n, size - n, "%s%.*s", n > 0 ? " " : "",
					      (int)(end - at), at);
		}
		at = end + 1;
	}
}

static void print_option_help(const struct option *o, const char *command, FILE *out)
{
	char text[1200], help[1100];
	int n = fprintf(out, "  --%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
	bool shows_default = o->initial && !strstr(o->help, "default");

	if (n < 0)
		return;
	copy_help(o, command, help, sizeof(help));
	if (n >= HELP_COLUMN - 1)
		(void)fprintf(out, "\n%*s", HELP_COLUMN, "");
	else
		(void)fprintf(out, "%*s", HELP_COLUMN - n, "");
	(void)snprintf(text, sizeof(text), "%s%s%s%s", help, shows_default ? " (default " : "",
		       shows_default ? o->initial : "", shows_default ? ")" : "");
	print_wrapped(out, text, HELP_COLUMN);
}

void option_print_help(const struct option_program *p, const char *command, FILE *out)
{
	(void)fprintf(out, "%s%s%s: %s\n\nusage:\n", p->name, command ? " " : "",
		      command ? command : "", p->summary);
	for (const char *line = p->usage; line && *line;) {
		size_t len = strcspn(line, "\n");

		(void)fprintf(out, "  %.*s\n", (int)len, line);
		line += len + (line[len] == '\n');
	}
	if (p->intro) {
		(void)fputc('\n', out);
		print_wrapped(out, p->intro, 0);
	}
	for (size_t i = 0; i < p->n_options; i++) {
		if (!option_used_by(&p->options[i], command) || is_section_seen(p, command, i))
			continue;
		(void)fprintf(out, "\n%s:\n", section_of(&p->options[i]));
		for (size_t j = i; j < p->n_options; j++)
			if (option_used_by(&p->options[j], command) &&
			    strcmp(section_of(&p->options[j]), section_of(&p->options[i])) == 0)
				print_option_help(&p->options[j], command, out);
	}
	if (p->epilog)
		(void)fprintf(out, "\n%s\n", p->epilog);
}

/* One run of text in troff: backslashes and dashes escaped, no line starts with a control
 * character. */
static void print_troff(FILE *out, const char *text, size_t len)
{
	bool at_start = true;

	for (size_t i = 0; i < len; i++) {
		if (at_start && (text[i] == '.' || text[i] == '\''))
			(void)fputs("\\&", out);
		if (text[i] == '\\')
			(void)fputs("\\e", out);
		else if (text[i] == '-')
			(void)fputs("\\-", out);
		else
			(void)fputc(text[i], out);
		at_start = text[i] == '\n';
	}
}

/* Line by line with breaks, for usage and examples. */
static void print_troff_lines(FILE *out, const char *text)
{
	(void)fputs(".nf\n", out);
	print_troff(out, text, strlen(text));
	(void)fputs("\n.fi\n", out);
}

static void print_troff_upper(FILE *out, const char *text)
{
	for (; *text; text++)
		(void)fputc(toupper((unsigned char)*text), out);
}

static void print_option_man(const struct option *o, FILE *out)
{
	char help[1100];

	(void)fputs(".TP\n\\fB\\-\\-", out);
	print_troff(out, o->name, strlen(o->name));
	(void)fputs("\\fR", out);
	if (o->value) {
		(void)fputs(" \\fI", out);
		print_troff(out, o->value, strlen(o->value));
		(void)fputs("\\fR", out);
	}
	(void)fputc('\n', out);
	copy_help(o, NULL, help, sizeof(help));
	print_troff(out, help, strlen(help));
	(void)fputc('\n', out);
	if (o->initial && !strstr(o->help, "default")) {
		(void)fputs("Default: ", out);
		print_troff(out, o->initial, strlen(o->initial));
		(void)fputs(".\n", out);
	}
	if (o->commands) {
		(void)fputs("Used by: ", out);
		print_troff(out, o->commands, strlen(o->commands));
		(void)fputs(".\n", out);
	}
}

void option_print_man(const struct option_program *p, FILE *out)
{
	size_t name_len = strlen(p->name);
	bool is_daemon = name_len > 0 && p->name[name_len - 1] == 'd';

	(void)fputs(".TH ", out);
	print_troff_upper(out, p->name);
	(void)fprintf(out, " %d\n.SH NAME\n", is_daemon ? 8 : 1);
	print_troff(out, p->name, name_len);
	(void)fputs(" \\- ", out);
	print_troff(out, p->summary, strlen(p->summary));
	(void)fputs("\n.SH SYNOPSIS\n", out);
	if (p->usage)
		print_troff_lines(out, p->usage);
	if (p->intro) {
		(void)fputs(".SH DESCRIPTION\n", out);
		for (const char *at = p->intro; *at;) {
			size_t len = strcspn(at, "\n");

			if (len)
				print_troff(out, at, len);
			else
				(void)fputs(".PP", out);
			(void)fputc('\n', out);
			at += len + (at[len] == '\n');
		}
	}
	(void)fputs(".SH OPTIONS\n", out);
	for (size_t i = 0; i < p->n_options; i++) {
		if (is_section_seen(p, NULL, i))
			continue;
		(void)fputs(".SS ", out);
		print_troff(out, section_of(&p->options[i]), strlen(section_of(&p->options[i])));
		(void)fputc('\n', out);
		for (size_t j = i; j < p->n_options; j++)
			if (strcmp(section_of(&p->options[j]), section_of(&p->options[i])) == 0)
				print_option_man(&p->options[j], out);
	}
	if (p->epilog) {
		(void)fputs(".SH NOTES\n", out);
		print_troff_lines(out, p->epilog);
	}
}
