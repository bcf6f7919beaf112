#include "compute/cpu_list.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Decimal digits alone; false for anything else, and for numbers that no set holds. */
static bool take_number(const char **at, size_t *ret)
{
	size_t n = 0;
	const char *p = *at;

	for (; *p >= '0' && *p <= '9'; p++) {
		n = n * 10 + (size_t)(*p - '0');
		if (n >= CPU_SETSIZE)
			return false;
	}
	if (p == *at)
		return false;
	*at = p;
	*ret = n;
	return true;
}

static bool parse(const char *list, cpu_set_t *ret)
{
	CPU_ZERO(ret);
	for (;; list++) {
		size_t first, last;

		if (!take_number(&list, &first))
			return false;
		last = first;
		if (*list == '-') {
			list++;
			if (!take_number(&list, &last) || last < first)
				return false;
		}
		for (size_t cpu = first; cpu <= last; cpu++)
			CPU_SET(cpu, ret);
		if (*list != ',')
			return *list == 0;
	}
}

static void text_of(const cpu_set_t *set, char text[K3_CPU_LIST_MAX])
{
	static const char more[] = "...";
	size_t at = 0;

	text[0] = 0;
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		char run[64];
		size_t last = cpu, len;

		if (!CPU_ISSET(cpu, set))
			continue;
		while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
			last++;
		len = (size_t)(last > cpu
				       ? snprintf(run, sizeof(run), "%s%zu-%zu", at ? "," : "", cpu,
						  last)
				       : snprintf(run, sizeof(run), "%s%zu", at ? "," : "", cpu));
		if (at + len + sizeof(more) > K3_CPU_LIST_MAX) {
			memcpy(text + at, more, sizeof(more));
			return;
		}
		memcpy(text + at, run, len + 1);
		at += len;
		cpu = last;
	}
}

int k3_cpus_use(const char *list, cpu_set_t *ret_before, struct err *err)
{
	char text[K3_CPU_LIST_MAX];
	cpu_set_t allowed, wanted;

	if (!list)
		return 0;
	if (!parse(list, &wanted))
		return err_set(err, ERR_USAGE,
			       "--cpus %s: not a list of CPUs below %d such as 0-3,8", list,
			       CPU_SETSIZE);
	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return err_set(err, ERR_UNSUPPORTED, "--cpus %s: cannot ask which are allowed: %s",
			       list, strerror(errno));
	if (ret_before)
		*ret_before = allowed;
	text_of(&allowed, text);
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &wanted) && !CPU_ISSET(cpu, &allowed))
			return err_set(err, ERR_USAGE,
				       "--cpus %s: cpu %zu is not among those allowed: %s", list,
				       cpu, text);
	if (sched_setaffinity(0, sizeof(wanted), &wanted) < 0)
		return err_set(err, ERR_UNSUPPORTED, "--cpus %s: %s", list, strerror(errno));
	return 0;
}

void k3_cpus_text(char text[K3_CPU_LIST_MAX])
{
	cpu_set_t allowed;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		CPU_ZERO(&allowed);
	text_of(&allowed, text);
}
