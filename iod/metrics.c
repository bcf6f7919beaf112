#include "iod/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "iod/client.h"
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

static void count_rides(struct iod_daemon *d, struct iod_metrics *m)
{
	uint64_t *const levels[] = { [IOD_RIDE_ALONE] = &m->clients_alone,
				     [IOD_RIDE_RIDING] = &m->clients_riding,
				     [IOD_RIDE_HELD] = &m->clients_held };
	struct list *at;

	m->clients_alone = m->clients_riding = m->clients_held = 0;
	list_foreach (at, &d->clients) {
		enum iod_ride_state state = iod_ride_state(list_entry(at, struct iod_client, link));

		if (state != IOD_RIDE_NONE)
			(*levels[state])++;
	}
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
	count_rides(d, m);
	m->slab_bytes = d->plan.total_size;
	/* not from getrusage: that starts with what the parent had at fork */
	m->peak_rss_bytes = status_bytes("VmHWM:") + status_bytes("HugetlbPages:");
	m->private_bytes = status_bytes("RssAnon:");
	memset(ret, 0, sizeof(*ret));
	ret->n = sizeof(*m) / sizeof(uint64_t);
	memcpy(ret->values, m, sizeof(*m));
}
