#include "compute/cpus.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/attr.h"

static void closep(FILE **f)
{
	if (*f)
		(void)fclose(*f);
}

static bool read_line(const char *path, char *line, int size)
{
	CLEANUP(closep) FILE *f = fopen(path, "re");

	return f && fgets(line, size, f);
}

/* "0-1,4": is a CPU below cpu in the list and allowed? Then that one stands for the core. */
static bool has_lower_sibling(const char *list, int cpu, const cpu_set_t *allowed)
{
	while (*list) {
		char *end;
		long first = strtol(list, &end, 10), last = first;

		if (end == list)
			break;
		if (*end == '-')
			last = strtol(end + 1, &end, 10);
		for (long c = first; c <= last && c < cpu; c++) {
			if (c >= 0 && CPU_ISSET((size_t)c, allowed))
				return true;
		}
		list = *end == ',' ? end + 1 : "";
	}
	return false;
}

unsigned k3_cpus_allowed(void)
{
	cpu_set_t allowed;

	return sched_getaffinity(0, sizeof(allowed), &allowed) < 0 ? 1
								   : (unsigned)CPU_COUNT(&allowed);
}

unsigned k3_cpus_physical(const char *cpu_dir)
{
	cpu_set_t allowed;
	unsigned n = 0;

	/* A machine with more CPUs than the set holds: the first CPU_SETSIZE would do, but the
	 * call refuses; then the caller's single thread is the safe answer. */
	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return 1;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		char path[512], list[512];

		if (!CPU_ISSET((size_t)cpu, &allowed))
			continue;
		(void)snprintf(path, sizeof(path), "%s/cpu%d/topology/thread_siblings_list",
			       cpu_dir, cpu);
		if (!read_line(path, list, sizeof(list)) || !has_lower_sibling(list, cpu, &allowed))
			n++;
	}
	return n ? n : 1;
}

static void take_quota(double quota, double period, unsigned *limit)
{
	unsigned n;

	if (quota <= 0 || period <= 0)
		return;
	n = quota / period >= UINT_MAX / 2.0 ? UINT_MAX / 2 : (unsigned)(quota / period + 0.5);
	if (n == 0)
		n = 1;
	if (*limit == 0 || n < *limit)
		*limit = n;
}

/* dir and its ancestors up to the controller's root. */
static void walk_up(const char *root, const char *controller, const char *group, unsigned *limit)
{
	char dir[3072];

	(void)snprintf(dir, sizeof(dir), "%s", group);
	for (;;) {
		char path[4096], line[128];
		char *slash;
		double quota = 0, period = 0;

		(void)snprintf(path, sizeof(path), "%s%s%s/cpu.max", root, controller, dir);
		if (read_line(path, line, sizeof(line)) &&
		    sscanf(line, "%lf %lf", &quota, &period) == 2)
			take_quota(quota, period, limit);
		(void)snprintf(path, sizeof(path), "%s%s%s/cpu.cfs_quota_us", root, controller,
			       dir);
		if (read_line(path, line, sizeof(line))) {
			quota = strtod(line, NULL); /* -1: none */
			(void)snprintf(path, sizeof(path), "%s%s%s/cpu.cfs_period_us", root,
				       controller, dir);
			if (read_line(path, line, sizeof(line)))
				take_quota(quota, strtod(line, NULL), limit);
		}
		slash = strrchr(dir, '/');
		if (!slash)
			return;
		*slash = 0;
	}
}

static bool names_cpu(const char *controllers)
{
	while (*controllers) {
		size_t len = strcspn(controllers, ",");

		if (len == 3 && memcmp(controllers, "cpu", 3) == 0)
			return true;
		controllers += len + (controllers[len] == ',');
	}
	return false;
}

unsigned k3_cpus_quota(const char *cgroup_file, const char *root)
{
	CLEANUP(closep) FILE *f = fopen(cgroup_file, "re");
	char line[3072];
	unsigned limit = 0;

	while (f && fgets(line, sizeof(line), f)) {
		char *controllers = strchr(line, ':'), *group;

		if (!controllers)
			continue;
		group = strchr(++controllers, ':');
		if (!group)
			continue;
		*group++ = 0;
		group[strcspn(group, "\n")] = 0;
		if (!*controllers) {
			walk_up(root, "", group, &limit);
			walk_up(root, "/unified", group, &limit);
		} else if (names_cpu(controllers)) {
			walk_up(root, "/cpu", group, &limit);
			walk_up(root, "/cpu,cpuacct", group, &limit);
		}
	}
	return limit;
}

unsigned k3_cpus_usable(void)
{
	unsigned n = k3_cpus_physical("/sys/devices/system/cpu");
	unsigned quota = k3_cpus_quota("/proc/self/cgroup", "/sys/fs/cgroup");

	return quota && quota < n ? quota : n;
}
