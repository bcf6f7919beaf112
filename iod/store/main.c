/*
 * k3-store: offline work on the files of a checkpoint. Finds the command, reads its options, and
 * lets cmd_*.c do the work.
 *
 *   k3-store bench ...   what the disks give (cmd_bench.c, bench*.c)
 *   k3-store census ...  contents and byte budget (cmd_census.c, census.c)
 *   k3-store pack ...    trunk file (cmd_pack.c, pack.c)
 *   k3-store replay ...  traces against cache policies (cmd_replay.c, replay*.c, routing.c)
 *   k3-store synth ...   random checkpoint (cmd_synth.c, synth*.c)
 *   k3-store verify ...  checks and checksums (cmd_verify.c, verify.c, sums_write.c, units.c)
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "iod/store/options.h"
#include "shared/log.h"
#include "shared/standard.h"

static const struct {
	const char *name;
	int (*run)(const struct iod_store_line *line);
} commands[] = {
	{ "bench", iod_store_cmd_bench }, { "census", iod_store_cmd_census },
	{ "pack", iod_store_cmd_pack },   { "replay", iod_store_cmd_replay },
	{ "synth", iod_store_cmd_synth }, { "verify", iod_store_cmd_verify },
};

static int fail_usage(const char *text)
{
	log_error("%s", text);
	return err_exit_code(ERR_USAGE);
}

/* A failed write past a size limit is an error to report, not a reason to die. */
static void ignore_signals(void)
{
	struct sigaction ignore = { .sa_handler = SIG_IGN };

	(void)sigaction(SIGXFSZ, &ignore, NULL);
	(void)sigaction(SIGPIPE, &ignore, NULL);
}

static int run(int argc, char **argv)
{
	const char *command = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;
	struct iod_store_line line = { .program = iod_store_program(command) };
	struct err err = { 0 };
	size_t i = 0;

	while (command && i < N_ELEMENTS(commands) && strcmp(commands[i].name, command) != 0)
		i++;
	if (i == N_ELEMENTS(commands)) {
		log_error("there is no command '%s'; k3-store --help lists the commands", command);
		return err_exit_code(ERR_USAGE);
	}
	if (command) {
		argc--;
		argv++;
	}
	if (option_parse(line.program, command, argc, argv, &line.options, &line.words, &err) < 0)
		return fail_usage(err.text);
	if (line.options.help)
		return option_print_help(line.program, command, stdout), 0;
	if (line.options.version)
		return puts("k3-store " K3_VERSION) < 0;
	if (line.options.man)
		return option_print_man(iod_store_program(NULL), stdout), 0;
	if (!command)
		return fail_usage("which command? k3-store --help lists them");
	return commands[i].run(&line);
}

int main(int argc, char **argv)
{
	struct err err = { 0 };
	int code;

	standard_open();
	log_init("k3-store", LOG_LEVEL_INFO);
	ignore_signals();
	if (standard_check_stack(&err) == 0) {
		code = run(argc, argv);
		if (code != 0 || standard_flush(&err) == 0)
			return code;
	}
	log_error("%s", err.text);
	return err_exit_code(err.code);
}
