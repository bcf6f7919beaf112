#include "tests/harness/test.h"

#include <dirent.h>
#include <ftw.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char tmp_dir[64];

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void remove_tmpdir(const char *path)
{
	if (path[0])
		(void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void test_fail(const char *file, int line, const char *fmt, ...)
{
	va_list ap;

	(void)fprintf(stderr, "%s:%d: ", file, line);
	va_start(ap, fmt);
	(void)vfprintf(stderr, fmt, ap);
	va_end(ap);
	(void)fprintf(stderr, "\n");
	exit(1);
}

void test_skip(const char *why)
{
	(void)printf("NOT RUN: %s\n", why);
	exit(77);
}

const char *test_source(const char *name)
{
	static char path[4][4096];
	static unsigned at;
	char *p = path[at++ % 4];

	(void)snprintf(p, sizeof(path[0]), "%s/%s", K3_SOURCE_ROOT, name);
	return p;
}

const char *test_data(const char *name)
{
	static char path[4][4096];
	static unsigned at;
	char *p = path[at++ % 4];
	const char *base = getenv("K3_DATA");
	char why[4200];

	if (base)
		(void)snprintf(p, sizeof(path[0]), "%s/%s", base, name);
	else
		(void)snprintf(p, sizeof(path[0]), "%s/../shared/data/%s", K3_SOURCE_ROOT, name);
	if (access(p, R_OK) != 0) {
		(void)snprintf(why, sizeof(why), "%s is not here", p);
		test_skip(why);
	}
	return p;
}

char *test_read_file(const char *path, size_t *ret_size)
{
	FILE *f = fopen(path, "rb");
	char *bytes;
	long size;

	CHECK_MSG(f, "%s cannot be read", path);
	CHECK(fseek(f, 0, SEEK_END) == 0);
	size = ftell(f);
	CHECK(size >= 0 && fseek(f, 0, SEEK_SET) == 0);
	bytes = malloc((size_t)size + 1);
	CHECK(bytes && fread(bytes, 1, (size_t)size, f) == (size_t)size);
	bytes[size] = '\0';
	(void)fclose(f);
	*ret_size = (size_t)size;
	return bytes;
}

const char *test_tmpdir(void)
{
	if (!tmp_dir[0])
		test_fail(__FILE__, __LINE__, "no temporary directory");
	return tmp_dir;
}

static unsigned count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	if (!d)
		return 0;
	while (readdir(d))
		n++;
	(void)closedir(d);
	return n;
}

static int run_case(const struct test_case *c)
{
	pid_t pid;
	int status;

	(void)snprintf(tmp_dir, sizeof(tmp_dir), "/var/tmp/k3-test-XXXXXX");
	if (!mkdtemp(tmp_dir))
		return 99;
	(void)fflush(NULL);
	pid = fork();
	if (pid < 0)
		return 99;
	if (pid == 0) {
		unsigned before = count_fds();

		(void)alarm(600);
		c->run();
		if (count_fds() != before)
			test_fail(__FILE__, __LINE__, "the case leaks a file descriptor");
		exit(0);
	}
	if (waitpid(pid, &status, 0) < 0)
		return 99;
	remove_tmpdir(tmp_dir);
	if (WIFSIGNALED(status)) {
		(void)fprintf(stderr, "killed by signal %d\n", WTERMSIG(status));
		return 1;
	}
	return WEXITSTATUS(status);
}

int test_main(int argc, char **argv, const struct test_case *cases, size_t n_cases)
{
	unsigned passed = 0, failed = 0, skipped = 0;

	for (size_t i = 0; i < n_cases; i++) {
		int r;

		if (argc > 1 && strcmp(argv[1], cases[i].name) != 0)
			continue;
		r = run_case(&cases[i]);
		if (r == 0)
			passed++;
		else if (r == 77)
			skipped++;
		else
			failed++;
		(void)printf("%s: %s\n",
			     r == 0    ? "ok"
			     : r == 77 ? "NOT RUN"
				       : "FAILED",
			     cases[i].name);
	}
	(void)printf("cases: %u passed, %u failed, %u not run\n", passed, failed, skipped);
	if (failed)
		return 1;
	if (passed == 0)
		return skipped ? 77 : 99;
	return 0;
}
