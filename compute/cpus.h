#pragma once
/*
 * How many threads are worth starting: physical cores this process may use (one per set of SMT
 * siblings in its affinity mask), no more than the CPU time its cgroups grant.
 */

/* At least 1. */
unsigned k3_cpus_usable(void);

/* CPUs of the affinity mask, siblings included. At least 1. */
unsigned k3_cpus_allowed(void);

/* The parts, with the roots given so that tests can build their own. */
/* Physical cores of the affinity mask by DIR/cpuN/topology/thread_siblings_list; a CPU without such
 * a file counts as a core. */
unsigned k3_cpus_physical(const char *cpu_dir);
/* CPUs of the tightest quota of the cgroups in the file (the format of /proc/self/cgroup) and
 * their ancestors under root, v1 or v2, to the nearest, but at least 1; 0: no quota. With a quota
 * of one and a half two threads, stopped a quarter of the time, measured 1.45 times one. */
unsigned k3_cpus_quota(const char *cgroup_file, const char *root);
