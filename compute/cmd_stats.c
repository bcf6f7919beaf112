/* k3 stats: the counters of a running daemon, one a line. proto/stats.def names them. */
#include <inttypes.h>
#include <stdio.h>

#include "compute/iod_client.h"
#include "compute/options.h"
#include "shared/log.h"

static const struct {
	const char *name, *unit, *sentence;
} counters[] = {
#define STAT(name, unit, kind, sentence) { #name, unit, sentence },
#include "proto/stats.def"
#undef STAT
};

static int print_stats(const struct k3_command_line *line, struct err *err)
{
	CLEANUP(k3_iod_freep) struct k3_iod *iod = NULL;
	struct k3_iod_way way = { .dial = k3_iod_dial, .data = (void *)line->options.socket };
	uint64_t values[PROTO_STATS_MAX];
	uint32_t n = 0;
	int r;

	if (!line->options.socket || line->words.n > 0)
		return err_set(err, ERR_USAGE, "k3 stats takes --socket PATH and nothing else");
	r = k3_iod_open(&iod, &way, err);
	if (r == 0)
		r = k3_iod_stats(iod, values, &n, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < n && i < N_ELEMENTS(counters); i++)
		(void)printf("%-20s %18" PRIu64 " %-8s %s\n", counters[i].name, values[i],
			     counters[i].unit, counters[i].sentence);
	return 0;
}

int k3_cmd_stats(const struct k3_command_line *line)
{
	struct err err = { 0 };

	if (print_stats(line, &err) == 0)
		return 0;
	log_error("%s", err.text);
	return err_exit_code(err.code);
}
