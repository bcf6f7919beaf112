/* Option tables: what is accepted, what is refused and with which words. */
#include "shared/option.h"

#include "tests/harness/test.h"
#include "tests/shared/files.h"

struct fields {
	bool loud;
	const char *name;
	struct option_list dirs;
	uint64_t count, size;
	double gb;
	const char *mode;
};

#define AT(field) offsetof(struct fields, field)
static const struct option table[] = {
	{ "loud", OPTION_FLAG, AT(loud), NULL, NULL, 0, 0, "talk", NULL, "Say more." },
	{ "name", OPTION_STRING, AT(name), "TEXT", "nobody", 0, 0, "talk", "run", "A name." },
	{ "dir", OPTION_LIST, AT(dirs), "DIR", NULL, 0, 0, "files", "run look",
	  "A directory.<run: Of a run.><look: To look at.><run look: Of both.> The end." },
	{ "count", OPTION_UINT, AT(count), "N", "3", 1, 10, "work", NULL, "<look: How many.>" },
	{ "size", OPTION_BYTES, AT(size), "BYTES", "4K", 1, 1ull << 40, "work", NULL, "How much." },
	{ "cache-gb", OPTION_GB, AT(gb), "X", NULL, 0, 0, "work", NULL, "Memory." },
	{ "mode", OPTION_CHOICE, AT(mode), "fast|slow", NULL, 0, 0, "work", NULL, "The way." },
	{ "help", OPTION_FLAG, AT(loud), NULL, NULL, 0, 0, "about", NULL, "Help." },
};
static const struct option_program program = {
	.name = "k3-test",
	.summary = "a test",
	.usage = "k3-test run\nk3-test look",
	.intro = ".It starts with a dot.\n\nSecond paragraph.",
	.epilog = "examples:\n  k3-test run",
	.options = table,
	.n_options = sizeof(table) / sizeof(table[0]),
};

static struct fields fields;
static struct option_list words;
static struct err err;

static int parse(const char *command, const char *a, const char *b, const char *c, const char *d)
{
	char *argv[] = { (char *)"x", (char *)a, (char *)b, (char *)c, (char *)d, NULL };
	int argc = 1;

	while (argv[argc])
		argc++;
	err_clear(&err);
	return option_parse(&program, command, argc, argv, &fields, &words, &err);
}

static void defaults(void)
{
	memset(&fields, 0x55, sizeof(fields));
	CHECK_EQ(parse("run", NULL, NULL, NULL, NULL), 0);
	CHECK(!fields.loud && fields.dirs.n == 0 && !fields.mode);
	CHECK_STR(fields.name, "nobody");
	CHECK_EQ(fields.count, 3);
	CHECK_EQ(fields.size, 4096);
	CHECK(fields.gb == -1);
	CHECK(!option_was_given(&program, &fields, "name"));
}

static void values(void)
{
	CHECK_EQ(parse("run", "--loud", "--name", "--strange value", "word"), 0);
	CHECK(fields.loud);
	CHECK_STR(fields.name, "--strange value");
	CHECK_EQ(words.n, 1);
	CHECK_STR(words.items[0], "word");
	CHECK(option_was_given(&program, &fields, "name"));
	CHECK(!option_was_given(&program, &fields, "count"));
	CHECK_EQ(parse("run", "--dir=a", "--dir", "b", "--size=3M"), 0);
	CHECK_EQ(fields.dirs.n, 2);
	CHECK_STR(fields.dirs.items[1], "b");
	CHECK_EQ(fields.size, 3 << 20);
	CHECK_EQ(parse("run", "--cache-gb=12.25", "--mode=slow", "--count=10", "--name="), 0);
	CHECK(fields.gb == 12.25);
	CHECK_STR(fields.mode, "slow");
	CHECK_STR(fields.name, "");
	CHECK_EQ(fields.count, 10);
	CHECK_EQ(parse("run", "--", "--loud", "-", NULL), 0);
	CHECK(!fields.loud);
	CHECK_EQ(words.n, 2);
	CHECK_EQ(parse(NULL, "--name", "x", "--cache-gb", "0"), 0);
	CHECK(fields.gb == 0);
	CHECK_EQ(parse("run", "--count=2", "--count=4", NULL, NULL), 0);
	CHECK_EQ(fields.count, 4);
	CHECK_EQ(parse("run", "-h", NULL, NULL, NULL), 0);
	CHECK(fields.loud); /* "help" shares the field here */
}

static void refusals(void)
{
	static const struct {
		const char *command, *a, *b, *says;
	} rows[] = {
		{ "run", "--nmae", "x", "did you mean --name?" },
		{ "run", "--cach", "1", "did you mean --cache-gb?" },
		{ "run", "--zzzzzzzz", NULL, "k3-test run --help" },
		{ "look", "--name", "x", "not an option of 'k3-test look'" },
		{ "run", "--name", NULL, "needs a value" },
		{ "run", "--name", "--loud", "needs a value" },
		{ "run", "--loud=yes", NULL, "takes no value" },
		{ "run", "-x", NULL, "options are long" },
		{ "run", "--count=0", NULL, "between 1 and 10" },
		{ "run", "--count=11", NULL, "between 1 and 10" },
		{ "run", "--count=-1", NULL, "whole number" },
		{ "run", "--count=1x", NULL, "whole number" },
		{ "run", "--count=", NULL, "whole number" },
		{ "run", "--count=18446744073709551617", NULL, "whole number" },
		{ "run", "--size=1T", NULL, "number of bytes" },
		{ "run", "--size=1KK", NULL, "number of bytes" },
		{ "run", "--size=18014398509481984G", NULL, "number of bytes" },
		{ "run", "--size=0", NULL, "between" },
		{ "run", "--cache-gb=-1", NULL, "gigabytes" },
		{ "run", "--cache-gb=nan", NULL, "gigabytes" },
		{ "run", "--cache-gb=inf", NULL, "gigabytes" },
		{ "run", "--cache-gb=1e3", NULL, "gigabytes" },
		{ "run", "--cache-gb=1,5", NULL, "gigabytes" },
		{ "run", "--cache-gb=.", NULL, "gigabytes" },
		{ "run", "--cache-gb=", NULL, "gigabytes" },
		{ "run", "--cache-gb=99999999999", NULL, "gigabytes" },
		{ "run", "--mode=fas", NULL, "fast|slow" },
		{ "run", "--mode=fast|slow", NULL, "fast|slow" },
	};

	for (size_t i = 0; i < N_ELEMENTS(rows); i++) {
		int r = parse(rows[i].command, rows[i].a, rows[i].b, NULL, NULL);

		CHECK_MSG(r < 0, "%s was accepted", rows[i].a);
		CHECK_EQ(err.code, ERR_USAGE);
		CHECK_MSG(strstr(err.text, rows[i].says), "%s: \"%s\" does not say \"%s\"",
			  rows[i].a, err.text, rows[i].says);
	}
}

static int parse_file(const char *text)
{
	const char *path = files_tmp("k3.conf");

	files_write(path, text, strlen(text));
	err_clear(&err);
	return option_parse_file(&program, path, &fields, &err);
}

static void file(void)
{
	CHECK_EQ(parse("run", "--count=7", NULL, NULL, NULL), 0);
	CHECK_EQ(parse_file("# comment\n\n count = 2\nloud\n  name =  a b = c \r\ndir=x\ndir = y\n"
			    "cache-gb = 1.5"),
		 0);
	CHECK_EQ(fields.count, 7); /* the command line wins */
	CHECK(fields.loud && fields.gb == 1.5);
	CHECK_STR(fields.name, "a b = c");
	CHECK_EQ(fields.dirs.n, 2);
	CHECK(option_was_given(&program, &fields, "cache-gb"));
	CHECK(!option_was_given(&program, &fields, "mode"));
	CHECK_EQ(parse_file("loud = no\n"), 0);
	CHECK(!fields.loud);
	CHECK(parse_file("count = 2\n\nnmae = x\n") < 0);
	CHECK_MSG(strstr(err.text, "k3.conf:3: ") && strstr(err.text, "mean name?"), "%s",
		  err.text);
	CHECK(parse_file("name\n") < 0 && strstr(err.text, "needs a value"));
	CHECK(parse_file("loud = perhaps\n") < 0 && strstr(err.text, "yes or no"));
	CHECK(option_parse_file(&program, "/nonexistent", &fields, &err) < 0);
}

/* Every option, sorted under its heading; nothing of other commands. */
static void help(void)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);

	CHECK(f);
	option_print_help(&program, "look", f);
	CHECK(fclose(f) == 0);
	for (size_t i = 0; i < program.n_options; i++) {
		char row[64];

		(void)snprintf(row, sizeof(row), "  --%s", table[i].name);
		CHECK_EQ(strstr(text, row) != NULL, option_used_by(&table[i], "look"));
	}
	CHECK(strstr(text, "talk:\n") < strstr(text, "files:\n"));
	CHECK(strstr(text, "files:\n") < strstr(text, "work:\n"));
	CHECK(strstr(text, "(default 4K)"));
	CHECK(strstr(text, "--count N                 How many."));
	CHECK(strstr(text, " A directory. To look at. Of both. The end."));
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		CHECK_MSG(strlen(line) <= 80, "a line of %zu: %s", strlen(line), line);
	free(text);
}

static void manual(void)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);

	CHECK(f);
	option_print_man(&program, f);
	CHECK(fclose(f) == 0);
	CHECK(strncmp(text, ".TH K3-TEST 1\n", 14) == 0);
	CHECK(strstr(text, "\n\\&.It starts with a dot.\n.PP\nSecond"));
	CHECK(strstr(text, "\\fB\\-\\-cache\\-gb\\fR \\fIX\\fR\n"));
	CHECK(strstr(text, "Used by: run look."));
	CHECK(strstr(
		text,
		"\nA directory. run: Of a run. look: To look at. run look: Of both. The end."));
	free(text);
}

static const struct test_case cases[] = {
	{ "defaults", defaults }, { "values", values }, { "refusals", refusals },
	{ "file", file },         { "help", help },     { "manual", manual },
};
TEST_MAIN(cases)
