/*
 * k3: the client. Finds the command, reads its options, and lets cmd_*.c do the work.
 *
 *   k3 run ...      one prompt to the end (cmd_run.c)
 *   k3 plan ...     what a run would take (cmd_plan.c)
 *   k3 doctor ...   what this machine can do (cmd_doctor.c)
 *   k3 trace ...    every layer's values of a prompt (cmd_trace.c)
 *   k3 tokenize ... text to ids and back (cmd_tokenize.c)
 *   k3 stats ...    counters of a daemon (cmd_stats.c)
 *   k3 MODEL ...    the short form of k3 run MODEL
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "compute/options.h"
#include "shared/log.h"
#include "shared/standard.h"

static const struct {
	const char *name;
	int (*run)(const struct k3_command_line *line);
} commands[] = {
	{ "run", k3_cmd_run },     { "plan", k3_cmd_plan },         { "doctor", k3_cmd_doctor },
	{ "trace", k3_cmd_trace }, { "tokenize", k3_cmd_tokenize }, { "stats", k3_cmd_stats },
};

static int find_command(const char *word)
{
	for (size_t i = 0; i < N_ELEMENTS(commands); i++)
		if (strcmp(commands[i].name, word) == 0)
			return (int)i;
	return -1;
}

static bool is_directory(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The options that need no command, when nothing else is there. */
static int run_without_command(int argc, char **argv)
{
	const struct option_program *p = k3_option_program(NULL);
	struct k3_command_line line = { .program = p };
	struct err err = { 0 };

	if (option_parse(p, NULL, argc, argv, &line.options, &line.words, &err) == 0) {
		if (line.options.man)
			return option_print_man(p, stdout), 0;
		if (line.options.version)
			return puts("k3 " K3_VERSION) < 0;
		if (line.options.help)
			return option_print_help(p, NULL, stdout), 0;
		(void)err_set(&err, ERR_USAGE, "which command? k3 --help lists them");
	}
	log_error("%s", err.text);
	return err_exit_code(err.code);
}

static int run_command(int index, int argc, char **argv)
{
	const char *name = commands[index].name;
	struct k3_command_line line = { .program = k3_option_program(name) };
	struct err err = { 0 };

	if (option_parse(line.program, name, argc, argv, &line.options, &line.words, &err) < 0) {
		log_error("%s", err.text);
		return err_exit_code(err.code);
	}
	if (line.options.help)
		return option_print_help(line.program, name, stdout), 0;
	if (line.options.version)
		return puts("k3 " K3_VERSION) < 0;
	if (line.options.man)
		return option_print_man(k3_option_program(NULL), stdout), 0;
	log_init("k3", line.options.verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
	return commands[index].run(&line);
}

static int run_line(int argc, char **argv)
{
	int index;

	if (argc < 2 || argv[1][0] == '-')
		return run_without_command(argc, argv);
	index = find_command(argv[1]);
	if (index >= 0)
		return run_command(index, argc - 1, argv + 1);
	if (is_directory(argv[1]))
		return run_command(find_command("run"), argc, argv);
	log_error("there is no command and no model directory '%s'; k3 --help lists the commands",
		  argv[1]);
	return err_exit_code(ERR_USAGE);
}

int main(int argc, char **argv)
{
	struct err err = { 0 };
	int code;

	standard_open();
	log_init("k3", LOG_LEVEL_INFO);
	/* a closed output or a file that must not grow is a write error, reported once */
	(void)signal(SIGPIPE, SIG_IGN);
	(void)signal(SIGXFSZ, SIG_IGN);
	if (standard_check_stack(&err) == 0) {
		code = run_line(argc, argv);
		if (code != 0 || standard_flush(&err) == 0)
			return code;
	}
	log_error("%s", err.text);
	return err_exit_code(err.code);
}
