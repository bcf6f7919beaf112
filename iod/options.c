#include "iod/options.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "iod/read/read.h"
#include "shared/attr.h"
#include "shared/model_files.h"
#include "shared/tuning.h"

#define OPT(field_, name_, type_, value_, initial_, min_, max_, section_, help_) \
	{                                                                        \
		.name = name_,                                                   \
		.type = OPTION_##type_,                                          \
		.offset = offsetof(struct iod_options, field_),                  \
		.value = value_,                                                 \
		.initial = initial_,                                             \
		.min = min_,                                                     \
		.max = max_,                                                     \
		.section = section_,                                             \
		.help = help_,                                                   \
	},
static const struct option table[] = {
#include "iod/options.def"
};
#undef OPT

const struct option_program iod_option_program = {
	.name = "k3-iod",
	.summary = "the storage daemon of k3",
	.usage = "k3-iod --model DIR --socket PATH [options]",
	.intro =
		"k3-iod owns every file of a model and every read of it. It keeps one slab of "
		"memory, shared read-only with its clients: tiles of the trunk (pinned ones, and a "
		"ring through which the others pass) and slots for routed experts. Clients (k3 run "
		"--socket PATH) do the arithmetic and need no access to the model's files. k3 run "
		"MODEL starts a private daemon by itself.\n"
		"All memory is planned at the start: --trunk-gb and --cache-gb set it, 0 takes the "
		"least that works, and a budget below that is refused with the least that is "
		"accepted.",
	.epilog = "examples:\n"
		  "  k3-iod --model deploy/demo --socket /tmp/k3.socket\n"
		  "  k3-iod --model /models/k3 --trunk /fast/k3.trunk --socket /run/k3/iod.socket "
		  "--trunk-gb 112\n"
		  "\n"
		  "signals: SIGTERM and SIGINT end the daemon; SIGHUP reads --conf and --profile "
		  "again, of\n"
		  "which allow-group, max-clients, client-*, lease-limit, queue-depth, chunk, "
		  "io-timeout\n"
		  "and verbose take effect at once\n"
		  "\n"
		  "exit codes:\n"
		  "  0  ended as asked\n"
		  "  1  a tensor is missing, or a file or the socket cannot be used\n"
		  "  2  the command line or a config is not understood, or memory does not suffice",
	.options = table,
	.n_options = N_ELEMENTS(table),
};

/* A slip must not cost a file of the model. */
static int check_written(const struct iod_options *o, struct err *err)
{
	const char *const names[] = { "record-trace", "timeline" };
	const char *const paths[] = { o->record_trace, o->timeline };

	for (size_t i = 0; i < N_ELEMENTS(paths); i++)
		if (paths[i] && model_files_has(&o->model, &o->trunk, paths[i]))
			return err_set(err, ERR_USAGE,
				       "--%s %s is a file of the model and would be lost; give "
				       "another name",
				       names[i], paths[i]);
	return 0;
}

int iod_options_parse(struct iod_options *o, int argc, char **argv, struct err *err)
{
	struct option_list words = { 0 };
	int r = option_parse(&iod_option_program, NULL, argc, argv, o, &words, err);

	if (r < 0)
		return r;
	if (words.n > 0)
		return err_set(err, ERR_USAGE,
			       "'%s' is no option: a model is given with --model DIR",
			       words.items[0]);
	if (o->help || o->version || o->man)
		return 0;
	if (o->conf)
		r = option_parse_file(&iod_option_program, o->conf, o, err);
	else if (o->embedded_fd == 0 && access(IOD_CONF_PATH, F_OK) == 0)
		r = option_parse_file(&iod_option_program, IOD_CONF_PATH, o, err);
	if (r < 0)
		return r;
	/* A service that prints its help, ends with 0 and is started again would do so for ever. */
	if (o->help || o->version || o->man)
		return err_set(err, ERR_USAGE,
			       "%s: help, version and man belong on the command line, not here",
			       o->conf ? o->conf : IOD_CONF_PATH);
	if (o->trunk.n > 0 && o->tile > 0)
		return err_set(err, ERR_USAGE,
			       "--tile is not used with --trunk: the trunk file has its own tiles");
	if (o->sums && !o->verify_reads)
		return err_set(err, ERR_USAGE, "--sums is used with --verify-reads");
	return check_written(o, err);
}

enum slab_pages iod_options_pages(const struct iod_options *o)
{
	if (strcmp(o->huge_pages, "reserved") == 0)
		return SLAB_PAGES_RESERVED;
	return strcmp(o->huge_pages, "never") == 0 ? SLAB_PAGES_NEVER : SLAB_PAGES_AUTO;
}

void iod_options_reader(const struct iod_options *o, const struct tuning *tuning,
			struct iod_reader_settings *ret)
{
	*ret = (struct iod_reader_settings){
		.queue_depth = (uint32_t)tuning->depth,
		.chunk = tuning->chunk,
		.rows = tuning->rows,
		.n_rows = tuning->n_rows,
		.direct = IOD_DIRECT_AUTO,
		.backend = IOD_BACKEND_AUTO,
	};
	if (strcmp(o->backend, "io_uring") == 0)
		ret->backend = IOD_BACKEND_URING;
	else if (strcmp(o->backend, "threads") == 0)
		ret->backend = IOD_BACKEND_THREADS;
	if (strcmp(o->direct, "on") == 0)
		ret->direct = IOD_DIRECT_ON;
	else if (strcmp(o->direct, "off") == 0)
		ret->direct = IOD_DIRECT_OFF;
}
