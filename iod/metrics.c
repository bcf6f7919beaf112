#include "iod/metrics.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "iod/daemon.h"

/* Resident memory beside shared pages: the slab is shmem, so what is left is the daemon's own. */
static uint64_t private_bytes(void)
{
	unsigned long long size = 0, resident = 0, shared = 0;
	char buf[256];
	size_t n;
	FILE *f = fopen("/proc/self/statm", "re");

	if (!f)
		return 0;
	n = fread(buf, 1, sizeof(buf) - 1, f);
	(void)fclose(f);
	buf[n] = '\0';
	if (sscanf(buf, "%llu %llu %llu", &size, &resident, &shared) != 3)
		return 0;
	return (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Not from getrusage: that starts with what the parent had at fork. */
static uint64_t peak_rss_bytes(void)
{
	unsigned long long kib = 0;
	char line[256];
	FILE *f = fopen("/proc/self/status", "re");

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "VmHWM: %llu kB", &kib) == 1)
			break;
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
	m->clients = d->n_clients;
	m->tiles_pinned = d->trunk->n_pinned_ready;
	m->tiles_to_pin = d->trunk->n_pinned;
	m->slots = d->plan.n_slots;
	m->slab_bytes = d->plan.total_size;
	m->peak_rss_bytes = peak_rss_bytes();
	m->private_bytes = private_bytes();
	memset(ret, 0, sizeof(*ret));
	ret->n = sizeof(*m) / sizeof(uint64_t);
	memcpy(ret->values, m, sizeof(*m));
}
