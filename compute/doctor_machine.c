/* What the machine has: asked of the kernel, by the calls the programs themselves will make. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "compute/cpu_list.h"
#include "compute/cpus.h"
#include "compute/doctor.h"
#include "compute/kernel/kernel.h"
#include "shared/fd.h"
#include "shared/memlimit.h"
#include "shared/memlock.h"
#include "shared/slab.h"

/* A registered buffer of the least slab: less than that is locked in no useful piece. */
#define LOCK_USEFUL (256ull << 20)

/* The value after a key in a file of /proc: up to the end of its line. "" when there is none. */
static void find_line(const char *path, const char *key, char *ret, size_t size)
{
	FILE *f = fopen(path, "re");
	char line[1024];
	size_t len = strlen(key);

	ret[0] = '\0';
	while (f && !ret[0] && fgets(line, sizeof(line), f)) {
		const char *at = line + len;

		if (strncmp(line, key, len) != 0)
			continue;
		at += strspn(at, " \t:");
		(void)snprintf(ret, size, "%.*s", (int)strcspn(at, "\n"), at);
	}
	if (f)
		(void)fclose(f);
}

static void add_cpu(struct k3_doctor *d, unsigned n_threads)
{
	unsigned quota = k3_cpus_quota("/proc/self/cgroup", "/sys/fs/cgroup");
	enum kern_isa best = KERN_ISA_REF;
	char model[256], limit[64] = "", cpus[K3_CPU_LIST_MAX];

	for (int isa = KERN_ISA_REF; isa < KERN_ISA_N_; isa++)
		if (kern_isa_is_available((enum kern_isa)isa))
			best = (enum kern_isa)isa;
	find_line("/proc/cpuinfo", "model name", model, sizeof(model));
	k3_cpus_text(cpus);
	if (quota > 0)
		(void)snprintf(limit, sizeof(limit), "; a control group grants the time of %u",
			       quota);
	k3_doctor_add(d, "cpu", K3_VERDICT_OK, ERR_NONE,
		      "%s: threads that will compute: %u (%u CPUs allowed of %ld: %s)%s",
		      model[0] ? model : "unnamed", n_threads ? n_threads : k3_cpus_usable(),
		      k3_cpus_allowed(), sysconf(_SC_NPROCESSORS_ONLN), cpus, limit);
	k3_doctor_add(d, "instructions", best == KERN_ISA_REF ? K3_VERDICT_NOTE : K3_VERDICT_OK,
		      ERR_NONE, "kernels for %s%s", kern_isa_name(best),
		      best == KERN_ISA_REF ? ": the plain ones, right but slow" : "");
}

static void add_memory(struct k3_doctor *d)
{
	struct memlimit limit;

	memlimit_get("", &limit);
	k3_doctor_add(d, "memory", limit.bytes == UINT64_MAX ? K3_VERDICT_NOTE : K3_VERDICT_OK,
		      ERR_NONE, "%.3f GB may be allocated: %s",
		      limit.bytes == UINT64_MAX ? 0.0 : (double)limit.bytes / 1e9, limit.text);
}

static void add_limits(struct k3_doctor *d)
{
	struct rlimit file = { 0 }, space = { 0 };
	uint64_t lock = memlock_limit();

	(void)getrlimit(RLIMIT_FSIZE, &file);
	(void)getrlimit(RLIMIT_AS, &space);
	if (lock == UINT64_MAX)
		k3_doctor_add(d, "locked memory", K3_VERDICT_OK, ERR_NONE, "no limit");
	else if (memlock_is_allowed(lock + SLAB_PAGE))
		k3_doctor_add(d, "locked memory", K3_VERDICT_OK, ERR_NONE,
			      "no limit (CAP_IPC_LOCK)");
	else if (lock >= LOCK_USEFUL)
		k3_doctor_add(d, "locked memory", K3_VERDICT_OK, ERR_NONE,
			      "up to %.3f GB; a larger slab is not locked, or with --lock yes "
			      "refused",
			      (double)lock / 1e9);
	else
		k3_doctor_add(d, "locked memory", K3_VERDICT_NOTE, ERR_NONE,
			      "at most %" PRIu64 " KiB, too little for the slab: buffers stay "
			      "unregistered and may be swapped (--lock yes refuses that); raise it "
			      "with ulimit -l or LimitMEMLOCK=",
			      lock >> 10);
	if (file.rlim_cur == RLIM_INFINITY && space.rlim_cur == RLIM_INFINITY)
		k3_doctor_add(d, "shared memory", K3_VERDICT_OK, ERR_NONE,
			      "no limit of its own; it counts as memory above");
	else
		k3_doctor_add(
			d, "shared memory", K3_VERDICT_NOTE, ERR_NONE,
			"a slab of at most %.3f GB (ulimit -f, ulimit -v)",
			(double)(file.rlim_cur < space.rlim_cur ? file.rlim_cur : space.rlim_cur) /
				1e9);
}

static void add_huge_pages(struct k3_doctor *d)
{
	double reserved = (double)slab_pages_reserved() / 1e9;
	char own[128], pool[64] = "";
	int r = slab_pages_try();

	find_line("/sys/kernel/mm/transparent_hugepage/enabled", "", own, sizeof(own));
	if (reserved > 0)
		(void)snprintf(pool, sizeof(pool), "%.3f GB reserved (--huge-pages reserved), ",
			       reserved);
	k3_doctor_add(d, "huge pages", r == 0 ? K3_VERDICT_OK : K3_VERDICT_NOTE, ERR_NONE,
		      "for shared memory: %s%s%s; for private memory: %s%s", pool,
		      r == 0 ? "made as needed" : "none: ", r == 0 ? "" : strerror(-r),
		      own[0] ? own : "none",
		      r == 0 ? ""
			     : "; the slab is read faster on huge pages: as root, echo advise > "
			       "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
}

/* Ask for a ring as the daemon will; NULL: it works, else why not. */
static const char *try_ring(char *text, size_t size)
{
	uint64_t params[32] = { 0 }; /* larger than the kernel's struct, all zero */
	char value[16];
	long fd = syscall(SYS_io_uring_setup, 1, params);
	int e = errno;

	if (fd >= 0) {
		(void)fd_close((int)fd);
		return NULL;
	}
	find_line("/proc/sys/kernel/io_uring_disabled", "", value, sizeof(value));
	if (value[0] && value[0] != '0')
		(void)snprintf(text, size, "kernel.io_uring_disabled is %s", value);
	else if (e == ENOSYS)
		(void)snprintf(text, size, "this kernel has none, or a sandbox hides it");
	else if (e == EPERM || e == EACCES)
		(void)snprintf(text, size, "a sandbox (seccomp) forbids it");
	else
		(void)snprintf(text, size, "%s", strerror(e));
	return text;
}

static void add_kernel(struct k3_doctor *d)
{
	struct utsname name;
	char text[128];
	const char *why = try_ring(text, sizeof(text));
	int fd = fd_memfd("k3-doctor", 1 << 12, 0);

	if (uname(&name) == 0)
		k3_doctor_add(d, "kernel", K3_VERDICT_OK, ERR_NONE, "%s %s %s", name.sysname,
			      name.release, name.machine);
	if (fd < 0)
		k3_doctor_add(
			d, "slab", K3_VERDICT_BAD, ERR_UNSUPPORTED,
			"memfd_create does not work here (%s): daemon and client cannot share "
			"memory",
			strerror(-fd));
	(void)fd_close(fd);
	if (why)
		k3_doctor_add(d, "io_uring", K3_VERDICT_NOTE, ERR_NONE,
			      "no: %s; reads go through threads, at some processor time", why);
	else
		k3_doctor_add(d, "io_uring", K3_VERDICT_OK, ERR_NONE, "works");
}

void k3_doctor_machine(struct k3_doctor *d, unsigned n_threads)
{
	add_cpu(d, n_threads);
	add_memory(d);
	add_limits(d);
	add_huge_pages(d);
	add_kernel(d);
}
