#include "iod/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "iod/daemon.h"

/* The number after a name at the start of a line of /proc/self/status, in bytes; 0 when absent. */
static uint64_t status_bytes(const char *name)
{
	FILE *f = fopen("/proc/self/status", "re");
	uint64_t kib = 0;
	char line[256];

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		if (strncmp(line, name, strlen(name)) != 0)
			continue;
		kib = strtoull(line + strlen(name), NULL, 10);
		break;
	}
	(void)fclose(f);
	return kib * 1024;
}

void iod_metrics_reply(struct iod_daemon *d, struct wire_stats_reply *ret)
{
	struct iod_metrics *m = &d->metrics;
	const struct iod_reader_counts *counts = iod_reader_counts(d->reader);

	m->reads = counts->reads;
	m->reads_short = counts->reads_short;
	m->reads_retried = counts->reads_retried;
	m->reads_failed = counts->reads_failed;
	m->reads_stalled = counts->reads_stalled;
	m->clients = d->n_clients;
	m->tiles_pinned = d->trunk->n_pinned_ready;
	m->tiles_to_pin = d->trunk->n_pinned;
	m->slots = d->plan.n_slots;
	m->slab_bytes = d->plan.total_size;
	/* not from getrusage: that starts with what the parent had at fork */
	m->peak_rss_bytes = status_bytes("VmHWM:");
	m->private_bytes = status_bytes("RssAnon:");
	memset(ret, 0, sizeof(*ret));
	ret->n = sizeof(*m) / sizeof(uint64_t);
	memcpy(ret->values, m, sizeof(*m));
}
