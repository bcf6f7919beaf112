#pragma once
/*
 * One table of options per program. The same table makes the parser, --help, the man page and, for
 * the daemon, the configuration file (long options, one a line, "name = value"). An option that is
 * unknown, or that the chosen command does not use, is an error.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "shared/err.h"

enum option_type {
	OPTION_FLAG,   /* bool; --name */
	OPTION_STRING, /* const char *; borrowed from argv or owned by the table's storage */
	OPTION_LIST,   /* struct option_list; may be repeated */
	OPTION_UINT,   /* uint64_t, min..max */
	OPTION_BYTES,  /* uint64_t; plain bytes or with K, M, G (1024) */
	OPTION_GB,     /* double; units of 10^9 bytes, decimals allowed, -1 = not given */
	OPTION_CHOICE, /* const char *, one of choices "a|b|c" */
};

enum { OPTION_LIST_MAX = 64 };
struct option_list {
	const char *items[OPTION_LIST_MAX];
	size_t n;
};

struct option {
	const char *name; /* long name without dashes */
	enum option_type type;
	size_t offset; /* of the field in the program's options struct */
	const char
		*value; /* what --help shows after the name: "FILE", "N", "a|b"; NULL for a flag */
	const char *initial;  /* default as text, shown in help and parsed into the struct; NULL:
				 zero / NULL / not given */
	uint64_t min, max;    /* OPTION_UINT, OPTION_BYTES; 0, 0 = any */
	const char *section;  /* heading in --help, e.g. "memory" */
	const char *commands; /* space-separated subcommands that take it; NULL: all */
	/* One or two sentences; "<run plan: A sentence.>" is for these commands only, and the man
	 * page shows it with their names. */
	const char *help;
};

/* A row of a program's options.def as a struct option; the def's columns are the same everywhere.
 */
#define OPTION_ROW(fields, field, name, type, value, initial, min, max, section, commands, help) \
	{                                                                                        \
		name, OPTION_##type, offsetof(fields, field), value, initial, min, max, section, \
			commands, help                                                           \
	}

struct option_program {
	const char *name;    /* "k3" */
	const char *summary; /* one line */
	const char *usage;   /* lines of usage, \n between them */
	const char *intro;   /* paragraph(s) that teach, shown by --help and the man page */
	const char *epilog;  /* examples, exit codes */
	const struct option *options;
	size_t n_options;
};

/*
 * Fill *fields (zeroed by us, then defaults) from argv[1..]. command: the subcommand or NULL; its
 * word is not in argv. Positional words are collected into *ret_words. "--name value" and
 * "--name=value". Repeating a non-list option: the last wins; whether a preset came after it is the
 * caller's affair (option_was_given_before). Returns 0, or -EINVAL with ERR_USAGE that names the
 * option and the nearest known one.
 */
int option_parse(const struct option_program *p, const char *command, int argc, char **argv,
		 void *fields, struct option_list *ret_words, struct err *err);
/* Read "name = value" lines (# comments) for options not given on the command line. ERR_USAGE with
 * file and line. Values are copied into memory that lives as long as the process. */
int option_parse_file(const struct option_program *p, const char *path, void *fields,
		      struct err *err);
/* Was this option given (by command line or file) in the last parse into fields? */
int option_was_given(const struct option_program *p, const void *fields, const char *name);

/* Digits, and K, M or G (1024) may follow; nothing else, and nothing above 64 bits. */
bool option_parse_bytes(const char *text, uint64_t *ret);

/* Do two structs of the program hold the same value of an option? */
bool option_is_equal(const struct option *o, const void *a, const void *b);
/* Are both on the command line, and name for the last time before later? */
bool option_was_given_before(const struct option_program *p, const void *fields, const char *name,
			     const char *later);

/* Does the command take this option? command NULL: true. */
bool option_used_by(const struct option *o, const char *command);

void option_print_help(const struct option_program *p, const char *command, FILE *out);
void option_print_man(const struct option_program *p, FILE *out); /* troff, section by program */
