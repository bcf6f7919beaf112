/* Memory limits read from made-up /proc and cgroup trees, and once from a real cgroup. */
#include "shared/memlimit.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/test.h"
#include "tests/shared/files.h"

static const char meminfo[] = "MemTotal:       32000000 kB\nMemFree:          100000 kB\n"
			      "MemAvailable:   20000000 kB\n";

/* A file with the directories above it, under the fake root. */
static void put(const char *path, const char *text)
{
	char full[4096];

	(void)snprintf(full, sizeof(full), "%s%s", test_tmpdir(), path);
	for (char *slash = strchr(full + strlen(test_tmpdir()) + 1, '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		(void)mkdir(full, 0755);
		*slash = '/';
	}
	files_write(full, text, strlen(text));
}

static struct memlimit get(void)
{
	struct memlimit m;

	memlimit_get(test_tmpdir(), &m);
	return m;
}

static void host(void)
{
	struct memlimit m;

	put("/proc/meminfo", meminfo);
	m = get();
	CHECK_EQ(m.bytes, 20000000ll * 1024);
	CHECK_EQ(m.total, 32000000ll * 1024);
	CHECK_MSG(strstr(m.text, "20.480 GB available of 32.768 GB"), "%s", m.text);
}

static void nothing(void)
{
	struct memlimit m = get();

	CHECK(m.bytes == UINT64_MAX);
	CHECK(strstr(m.text, "could not be read"));
}

static void version_2(void)
{
	struct memlimit m;

	put("/proc/meminfo", meminfo);
	put("/proc/self/cgroup", "0::/system.slice/k3.service\n");
	put("/proc/self/mountinfo",
	    "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
	put("/sys/fs/cgroup/system.slice/k3.service/memory.max", "max\n");
	put("/sys/fs/cgroup/system.slice/k3.service/memory.high", "8000000000\n");
	put("/sys/fs/cgroup/system.slice/k3.service/memory.current", "5000000000\n");
	put("/sys/fs/cgroup/system.slice/k3.service/memory.stat",
	    "anon 1000000000\nfile 4000000000\nshmem 1000000000\ninactive_file 2000000000\n"
	    "active_file 1000000000\n");
	put("/sys/fs/cgroup/system.slice/memory.max", "10000000000\n");
	put("/sys/fs/cgroup/system.slice/memory.high", "max\n");
	put("/sys/fs/cgroup/system.slice/memory.current", "2000000000\n");
	m = get();
	/* 8e9 - (5e9 - 3e9 of page cache); the parent leaves 8e9 */
	CHECK_EQ(m.bytes, 6000000000ll);
	CHECK_MSG(strstr(m.text, "memory.high of cgroup /system.slice/k3.service is 8.000 GB"),
		  "%s", m.text);
	put("/sys/fs/cgroup/system.slice/memory.current", "9000000000\n");
	m = get();
	CHECK_EQ(m.bytes, 1000000000ll);
	CHECK_MSG(strstr(m.text, "memory.max of cgroup /system.slice is 10.000 GB"), "%s", m.text);
	put("/sys/fs/cgroup/system.slice/memory.current", "11000000000\n");
	m = get();
	CHECK_EQ(m.bytes, 0);
}

static void version_1(void)
{
	struct memlimit m;

	put("/proc/meminfo", meminfo);
	put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a/b\n1:name=systemd:/\n0::/\n");
	put("/proc/self/mountinfo",
	    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "30000000000\n");
	put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "3000000000\n");
	put("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000000000\n");
	put("/sys/fs/cgroup/memory/a/memory.stat",
	    "inactive_file 1\ntotal_inactive_file 200000000\ntotal_active_file 100000000\n");
	put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
	put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "100\n");
	m = get();
	CHECK_EQ(m.bytes, 2300000000ll);
	CHECK_MSG(strstr(m.text, "memory.limit_in_bytes of cgroup /a is"), "%s", m.text);
}

/* A container that sees its own group as the root of the mount. */
static void container(void)
{
	struct memlimit m;

	put("/proc/meminfo", meminfo);
	put("/proc/self/cgroup", "0::/docker/abc/inner\n");
	put("/proc/self/mountinfo",
	    "29 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
	put("/sys/fs/cgroup/memory.max", "4000000000\n");
	put("/sys/fs/cgroup/memory.current", "1000000000\n");
	put("/sys/fs/cgroup/inner/memory.max", "2000000000\n");
	put("/sys/fs/cgroup/inner/memory.current", "500000000\n");
	m = get();
	CHECK_EQ(m.bytes, 1500000000ll);
	put("/proc/self/cgroup", "0::/../elsewhere\n");
	m = get();
	CHECK_EQ(m.bytes, 3000000000ll);
}

static void real(void)
{
	struct memlimit m;
	static const char dir[] = "/sys/fs/cgroup/memory/k3-test-memlimit";
	char path[128], pid[32];

	memlimit_get("", &m);
	CHECK(m.bytes > 0 && m.bytes < m.total && m.total > 100000000);
	(void)snprintf(path, sizeof(path), "%s/memory.limit_in_bytes", dir);
	if (mkdir(dir, 0755) < 0 || access(path, W_OK) < 0)
		test_skip("no writable memory cgroup (version 1) here");
	files_write(path, "300000000\n", 10);
	(void)snprintf(path, sizeof(path), "%s/tasks", dir);
	(void)snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
	files_write(path, pid, strlen(pid));
	memlimit_get("", &m);
	files_write("/sys/fs/cgroup/memory/tasks", pid, strlen(pid));
	CHECK(rmdir(dir) == 0);
	CHECK(m.bytes < 300000000 && m.bytes > 200000000);
	CHECK_MSG(strstr(m.text, "k3-test-memlimit is 0.300 GB"), "%s", m.text);
}

static const struct test_case cases[] = {
	{ "host", host },           { "nothing", nothing },     { "version_2", version_2 },
	{ "version_1", version_1 }, { "container", container }, { "real", real },
};
TEST_MAIN(cases)
