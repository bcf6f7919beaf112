/*
 * k3-iod: the storage daemon. Options, then the daemon, then its loop; all the rest is daemon.c.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "iod/daemon.h"
#include "iod/journal.h"
#include "shared/log.h"
#include "shared/standard.h"

static int report(const struct err *err)
{
	iod_event_log(LOG_LEVEL_ERROR, IOD_EVENT_NOT_STARTED, NULL, "%s",
		      err->text[0] ? err->text : err_sentence(err->code));
	return err_exit_code(err->code);
}

/* Before there is a daemon: also those hear it whose connection has started this program. */
static int refuse(const struct err *err)
{
	struct iod_passed passed;
	struct iod_listener listener;
	struct err ignored = { 0 };

	iod_listener_init(&listener);
	if (iod_passed_open(&passed, &ignored) == 0) {
		listener.fd = iod_passed_take_listener(&passed);
		iod_listener_turn_away(&listener, err);
	}
	iod_passed_deinit(&passed);
	iod_listener_deinit(&listener);
	return report(err);
}

static int run(int argc, char **argv)
{
	CLEANUP(iod_daemon_freep) struct iod_daemon *d = NULL;
	static struct iod_options options; /* points to texts that live as long as the process */
	struct err err = { 0 };
	int r;

	if (standard_check_stack(&err) < 0 || iod_options_parse(&options, argc, argv, &err) < 0)
		return refuse(&err);
	if (options.help)
		return option_print_help(&iod_option_program, NULL, stdout), 0;
	if (options.man)
		return option_print_man(&iod_option_program, stdout), 0;
	if (options.version)
		return puts("k3-iod " K3_VERSION) < 0;
	log_init("k3-iod", options.verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
	if (iod_daemon_new(&d, &options, &err) < 0)
		return report(&err);
	d->argc = argc;
	d->argv = argv;
	r = iod_daemon_run(d);
	if (r < 0) {
		log_error("the event loop failed: %s", strerror(-r));
		return 1;
	}
	return r;
}

int main(int argc, char **argv)
{
	struct err err = { 0 };
	int code;

	standard_open();
	log_init("k3-iod", LOG_LEVEL_INFO);
	iod_journal_open();
	/* a closed log, or a limit on the size of files that the slab exceeds, is an error */
	(void)signal(SIGPIPE, SIG_IGN);
	(void)signal(SIGXFSZ, SIG_IGN);
	code = run(argc, argv);
	return code != 0 || standard_flush(&err) == 0 ? code : report(&err);
}
