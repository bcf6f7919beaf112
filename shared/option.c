/*
 * Parsing of command lines and of the daemon's configuration file against one table of options.
 * Values go straight into the program's options struct at each row's offset. Which rows were given,
 * and by whom, is remembered per fields struct in a small static table: the struct itself holds
 * values only. Called by main programs, single-threaded. Help and man output: option_help.c.
 */
#include "shared/option.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/must.h"

enum { OPTIONS_MAX = 128, RECORDS_MAX = 8, NAME_MAX_LEN = 64, FILE_MAX_SIZE = 1 << 20 };
#define GB_MAX 1e9 /* 10^18 bytes: still exact enough in uint64_t */

enum given { GIVEN_NO = 0, GIVEN_FILE = 1, GIVEN_LINE = 2 };

/* What the last parse into fields was given; a full table forgets its oldest record. */
struct given_record {
	const void *fields; /* borrowed: compared only */
	uint8_t by[OPTIONS_MAX];
	int at[OPTIONS_MAX]; /* last place on the command line */
};
static struct given_record records[RECORDS_MAX];
static size_t next_record;

/* Where a value came from, for messages: "--name" or "FILE:LINE: name". */
struct origin {
	const char *dashes; /* "--" or "" */
	char place[4200];   /* "" or "/etc/k3/iod.conf:3: " */
};

static struct given_record *find_record(const void *fields)
{
	for (size_t i = 0; i < RECORDS_MAX; i++)
		if (records[i].fields == fields)
			return &records[i];
	return NULL;
}

static struct given_record *make_record(const void *fields)
{
	struct given_record *r = find_record(fields);

	if (!r) {
		r = &records[next_record];
		next_record = (next_record + 1) % RECORDS_MAX;
		r->fields = fields;
	}
	memset(r->by, 0, sizeof(r->by));
	return r;
}

bool option_used_by(const struct option *o, const char *command)
{
	size_t len;
	const char *at;

	if (!o->commands || !command)
		return true;
	len = strlen(command);
	for (at = strstr(o->commands, command); at; at = strstr(at + 1, command)) {
		bool starts = at == o->commands || at[-1] == ' ';

		if (starts && (at[len] == ' ' || at[len] == '\0'))
			return true;
	}
	return false;
}

static const struct option *find_option(const struct option_program *p, const char *name,
					size_t len)
{
	for (size_t i = 0; i < p->n_options; i++) {
		const struct option *o = &p->options[i];

		if (strlen(o->name) == len && memcmp(o->name, name, len) == 0)
			return o;
	}
	return NULL;
}

static size_t min3(size_t a, size_t b, size_t c)
{
	size_t m = a < b ? a : b;

	return m < c ? m : c;
}

/* Levenshtein distance of two short names. */
static size_t edit_distance(const char *a, size_t a_len, const char *b)
{
	size_t row[NAME_MAX_LEN + 1], b_len = strlen(b);

	if (a_len > NAME_MAX_LEN || b_len > NAME_MAX_LEN)
		return SIZE_MAX;
	for (size_t j = 0; j <= b_len; j++)
		row[j] = j;
	for (size_t i = 1; i <= a_len; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= b_len; j++) {
			size_t above = row[j];

			row[j] = min3(above + 1, row[j - 1] + 1,
				      diagonal + (a[i - 1] != b[j - 1] ? 1 : 0));
			diagonal = above;
		}
	}
	return row[b_len];
}

/* The known option nearest to a mistyped name, or NULL when none is near. */
static const struct option *find_nearest(const struct option_program *p, const char *command,
					 const char *name, size_t len)
{
	const struct option *best = NULL;
	size_t best_distance = len / 3 + 2;

	for (size_t i = 0; i < p->n_options; i++) {
		const struct option *o = &p->options[i];
		size_t d;

		if (!option_used_by(o, command))
			continue;
		d = edit_distance(name, len, o->name);
		if (len >= 3 && strncmp(o->name, name, len) == 0 && d > 1)
			d = 1; /* the beginning of a name */
		if (d < best_distance) {
			best_distance = d;
			best = o;
		}
	}
	return best;
}

static int fail_unknown(const struct option_program *p, const char *command,
			const struct origin *from, const char *name, size_t len, struct err *err)
{
	const struct option *near = find_nearest(p, command, name, len);
	int r = err_set(err, ERR_USAGE, "%sthere is no option %s%.*s", from->place, from->dashes,
			(int)(len > 200 ? 200 : len), name);

	if (near)
		err_append(err, "; did you mean %s%s?", from->dashes, near->name);
	else
		err_append(err, "; '%s%s%s --help' lists all options", p->name, command ? " " : "",
			   command ? command : "");
	return r;
}

/* Digits only, no sign, no overflow; *ret_end is where they stop. */
static bool parse_digits(const char *text, uint64_t *ret, const char **ret_end)
{
	uint64_t v = 0;
	const char *at = text;

	for (; isdigit((unsigned char)*at); at++)
		if (__builtin_mul_overflow(v, 10U, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(*at - '0'), &v))
			return false;
	if (at == text)
		return false;
	*ret = v;
	*ret_end = at;
	return true;
}

bool option_parse_bytes(const char *text, uint64_t *ret)
{
	const char *end;
	uint64_t v;
	unsigned shift = 0;

	if (!parse_digits(text, &v, &end))
		return false;
	switch (*end) {
	case 'k':
	case 'K':
		shift = 10;
		break;
	case 'm':
	case 'M':
		shift = 20;
		break;
	case 'g':
	case 'G':
		shift = 30;
		break;
	default:
		break;
	}
	if (shift)
		end++;
	if (*end != '\0' || v > UINT64_MAX >> shift)
		return false;
	*ret = v << shift;
	return true;
}

static bool parse_gb(const char *text, double *ret)
{
	size_t n_digits = strspn(text, "0123456789");
	const char *rest = text + n_digits;
	double v;

	if (*rest == '.') {
		size_t n = strspn(rest + 1, "0123456789");

		n_digits += n;
		rest += 1 + n;
	}
	if (n_digits == 0 || *rest != '\0')
		return false;
	v = strtod(text, NULL);
	if (!isfinite(v) || v > GB_MAX)
		return false;
	*ret = v;
	return true;
}

/* The choice as it stands in the table is "a|b|c"; the value is borrowed, so it is compared only.
 */
static bool is_choice(const char *choices, const char *value)
{
	size_t len = strlen(value);

	for (const char *at = choices; at; at = strchr(at, '|')) {
		if (*at == '|')
			at++;
		if (strcspn(at, "|") == len && memcmp(at, value, len) == 0)
			return true;
	}
	return false;
}

static int fail_value(const struct option *o, const struct origin *from, const char *value,
		      const char *wanted, struct err *err)
{
	return err_set(err, ERR_USAGE, "%s%s%s must be %s, not \"%.200s\"", from->place,
		       from->dashes, o->name, wanted, value);
}

static int store_number(const struct option *o, const struct origin *from, const char *value,
			void *field, struct err *err)
{
	bool is_bytes = o->type == OPTION_BYTES;
	char wanted[128];
	const char *end;
	uint64_t v;
	bool ok = is_bytes ? option_parse_bytes(value, &v)
			   : parse_digits(value, &v, &end) && *end == '\0';

	if (!ok)
		return fail_value(o, from, value,
				  is_bytes ? "a number of bytes (K, M and G may follow it)"
					   : "a whole number",
				  err);
	if ((o->min || o->max) && (v < o->min || v > (o->max ? o->max : UINT64_MAX))) {
		if (o->max)
			(void)snprintf(wanted, sizeof(wanted), "between %llu and %llu",
				       (unsigned long long)o->min, (unsigned long long)o->max);
		else
			(void)snprintf(wanted, sizeof(wanted), "at least %llu",
				       (unsigned long long)o->min);
		return fail_value(o, from, value, wanted, err);
	}
	memcpy(field, &v, sizeof(v));
	return 0;
}

static int store_list(const struct option *o, const struct origin *from, const char *value,
		      struct option_list *list, struct err *err)
{
	if (list->n == OPTION_LIST_MAX)
		return err_set(err, ERR_USAGE, "%s%s%s may be given at most %d times", from->place,
			       from->dashes, o->name, (int)OPTION_LIST_MAX);
	list->items[list->n++] = value;
	return 0;
}

/* Parse value into the option's field. Strings are borrowed. */
static int store(const struct option *o, const struct origin *from, const char *value, void *fields,
		 struct err *err)
{
	void *field = (char *)fields + o->offset;
	double gb;

	switch (o->type) {
	case OPTION_FLAG: {
		bool on = is_choice("yes|true|on|1", value);

		if (!on && !is_choice("no|false|off|0", value))
			return fail_value(o, from, value, "yes or no", err);
		*(bool *)field = on;
		return 0;
	}
	case OPTION_CHOICE:
		if (!is_choice(o->value, value))
			return fail_value(o, from, value, o->value, err);
		*(const char **)field = value;
		return 0;
	case OPTION_STRING:
		*(const char **)field = value;
		return 0;
	case OPTION_LIST:
		return store_list(o, from, value, field, err);
	case OPTION_UINT:
	case OPTION_BYTES:
		return store_number(o, from, value, field, err);
	case OPTION_GB:
		if (!parse_gb(value, &gb))
			return fail_value(o, from, value,
					  strcmp(o->value, "SECONDS") == 0
						  ? "a number of seconds, like 2.5"
						  : "a number of gigabytes (10^9 bytes, like 12.5)",
					  err);
		memcpy(field, &gb, sizeof(gb));
		return 0;
	}
	must(o->type <= OPTION_CHOICE);
	return 0;
}

static bool is_same_text(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

bool option_is_equal(const struct option *o, const void *a, const void *b)
{
	const void *x = (const char *)a + o->offset, *y = (const char *)b + o->offset;
	const struct option_list *l = x, *m = y;

	switch (o->type) {
	case OPTION_FLAG:
		return *(const bool *)x == *(const bool *)y;
	case OPTION_STRING:
	case OPTION_CHOICE:
		return is_same_text(*(const char *const *)x, *(const char *const *)y);
	case OPTION_UINT:
	case OPTION_BYTES:
	case OPTION_GB:
		return memcmp(x, y, 8) == 0;
	case OPTION_LIST:
		break;
	}
	for (size_t i = 0; i < l->n && l->n == m->n; i++) {
		if (!is_same_text(l->items[i], m->items[i]))
			return false;
	}
	return l->n == m->n;
}

static void store_initial(const struct option *o, void *fields)
{
	static const struct origin from = { "--", "" };
	void *field = (char *)fields + o->offset;

	switch (o->type) {
	case OPTION_FLAG:
		*(bool *)field = false;
		break;
	case OPTION_STRING:
	case OPTION_CHOICE:
		*(const char **)field = NULL;
		break;
	case OPTION_LIST:
		memset(field, 0, sizeof(struct option_list));
		break;
	case OPTION_UINT:
	case OPTION_BYTES:
		*(uint64_t *)field = 0;
		break;
	case OPTION_GB:
		*(double *)field = -1;
		break;
	}
	if (o->initial && o->type != OPTION_LIST)
		must(store(o, &from, o->initial, fields, NULL) == 0);
}

/* A command line being read. */
struct line {
	const struct option_program *p;
	const char *command;
	int argc, at; /* at: the argument at hand */
	char **argv;
	void *fields;
	struct given_record *record;
	struct err *err;
};

/* One "--name[=value]"; moves on over a separate value. */
static int parse_argument(struct line *l)
{
	static const struct origin from = { "--", "" };
	const char *name = l->argv[l->at] + 2;
	size_t len = strcspn(name, "=");
	const char *value = name[len] == '=' ? name + len + 1 : NULL;
	const struct option *o = find_option(l->p, name, len);

	if (!o)
		return fail_unknown(l->p, l->command, &from, name, len, l->err);
	if (!option_used_by(o, l->command))
		return err_set(l->err, ERR_USAGE,
			       "--%s is not an option of '%s %s'; it belongs to %s", o->name,
			       l->p->name, l->command, o->commands);
	if (o->type == OPTION_FLAG) {
		if (value)
			return err_set(l->err, ERR_USAGE, "--%s takes no value", o->name);
		value = "yes";
	} else if (!value) {
		const char *next = l->at + 1 < l->argc ? l->argv[l->at + 1] : NULL;

		if (!next || (strncmp(next, "--", 2) == 0 &&
			      find_option(l->p, next + 2, strcspn(next + 2, "="))))
			return err_set(l->err, ERR_USAGE, "--%s needs a value: --%s %s", o->name,
				       o->name, o->value ? o->value : "VALUE");
		value = next;
		l->at++;
	}
	l->record->by[o - l->p->options] = GIVEN_LINE;
	l->record->at[o - l->p->options] = l->at;
	return store(o, &from, value, l->fields, l->err);
}

/* "-h", where the table has help. */
static bool is_short_help(const struct option_program *p, const char *arg)
{
	return strcmp(arg, "-h") == 0 && find_option(p, "help", 4);
}

int option_parse(const struct option_program *p, const char *command, int argc, char **argv,
		 void *fields, struct option_list *ret_words, struct err *err)
{
	struct line l = { p, command, argc, 1, argv, fields, make_record(fields), err };
	static char help[] = "--help";
	char *only_help[] = { help };
	bool only_words = false;

	must(p->n_options <= OPTIONS_MAX);
	for (size_t i = 0; i < p->n_options; i++)
		store_initial(&p->options[i], fields);
	ret_words->n = 0;
	for (; l.at < argc; l.at++) {
		const char *arg = argv[l.at];
		int r = 0;

		if (!only_words && strcmp(arg, "--") == 0) {
			only_words = true;
		} else if (!only_words && strncmp(arg, "--", 2) == 0) {
			r = parse_argument(&l);
		} else if (!only_words && is_short_help(p, arg)) {
			struct line h = { p, command, 1, 0, only_help, fields, l.record, err };

			r = parse_argument(&h);
		} else if (!only_words && arg[0] == '-' && arg[1] != '\0') {
			r = err_set(err, ERR_USAGE,
				    "%.100s is not understood: options are long, --name value",
				    arg);
		} else if (ret_words->n == OPTION_LIST_MAX) {
			r = err_set(err, ERR_USAGE, "more than %d words are given",
				    (int)OPTION_LIST_MAX);
		} else {
			ret_words->items[ret_words->n++] = arg;
		}
		if (r < 0)
			return r;
	}
	return 0;
}

static char *trim(char *text)
{
	size_t n;

	while (isspace((unsigned char)*text))
		text++;
	n = strlen(text);
	while (n > 0 && isspace((unsigned char)text[n - 1]))
		text[--n] = '\0';
	return text;
}

/* A copy that lives as long as the process; a file that is read again finds its earlier texts. */
static const char *keep(const char *text)
{
	static struct kept {
		struct kept *next;
		char text[];
	} * first;
	size_t size = strlen(text) + 1;
	struct kept *k;

	for (k = first; k; k = k->next)
		if (strcmp(k->text, text) == 0)
			return k->text;
	k = malloc(sizeof(*k) + size);
	if (!k)
		return NULL;
	memcpy(k->text, text, size);
	k->next = first;
	first = k;
	return k->text;
}

/* One line of a configuration file; line is cut up in place. */
static int parse_line(const struct option_program *p, char *line, const struct origin *from,
		      void *fields, struct given_record *record, struct err *err)
{
	const struct option *o;
	const char *copy;
	char *name, *value;

	line = trim(line);
	if (*line == '\0' || *line == '#')
		return 0;
	value = strchr(line, '=');
	if (value)
		*value++ = '\0';
	name = trim(line);
	value = value ? trim(value) : NULL;
	o = find_option(p, name, strlen(name));
	if (!o)
		return fail_unknown(p, NULL, from, name, strlen(name), err);
	if (!value && o->type != OPTION_FLAG)
		return err_set(err, ERR_USAGE, "%s%s needs a value: %s = %s", from->place, o->name,
			       o->name, o->value ? o->value : "VALUE");
	if (record->by[o - p->options] == GIVEN_LINE)
		return 0; /* the command line wins */
	/* The struct may keep the pointer for good. */
	copy = keep(value ? value : "yes");
	if (!copy)
		return err_set(err, ERR_NO_MEMORY, "%sout of memory", from->place);
	record->by[o - p->options] = GIVEN_FILE;
	return store(o, from, copy, fields, err);
}

int option_parse_file(const struct option_program *p, const char *path, void *fields,
		      struct err *err)
{
	CLEANUP(freep) char *text = NULL;
	struct given_record *record = find_record(fields);
	struct origin from = { "", "" };
	unsigned line_number = 0;
	char *next;
	size_t size;
	int r;

	if (!record)
		record = make_record(fields);
	r = fd_read_file(AT_FDCWD, path, FILE_MAX_SIZE, &text, &size);
	if (r < 0)
		return err_set(err, ERR_USAGE, "%s cannot be read: %s", path, fd_why(r));
	if (strlen(text) != size)
		return err_set(err, ERR_USAGE, "%s holds a zero byte: it is not a text file", path);
	for (char *line = text; line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		(void)snprintf(from.place, sizeof(from.place), "%s:%u: ", path, ++line_number);
		r = parse_line(p, line, &from, fields, record, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int option_was_given(const struct option_program *p, const void *fields, const char *name)
{
	const struct given_record *record = find_record(fields);
	const struct option *o = find_option(p, name, strlen(name));

	must(o);
	return record && record->by[o - p->options] != GIVEN_NO;
}

bool option_was_given_before(const struct option_program *p, const void *fields, const char *name,
			     const char *later)
{
	const struct given_record *record = find_record(fields);
	const struct option *a = find_option(p, name, strlen(name));
	const struct option *b = find_option(p, later, strlen(later));

	must(a && b);
	return record && record->by[a - p->options] == GIVEN_LINE &&
	       record->by[b - p->options] == GIVEN_LINE &&
	       record->at[a - p->options] < record->at[b - p->options];
}
