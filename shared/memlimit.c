/* See memlimit.h. */
#include "shared/memlimit.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"

enum { FILE_MAX = 4 << 20, PIECE_SIZE = 16 << 10, PATH_SIZE = 4096 };
/* Version 1 writes "no limit" as a number near 2^63. */
#define UNLIMITED (UINT64_C(1) << 60)

/* One kind of hierarchy: its files, and how /proc names it. */
struct hierarchy {
	const char *fs_type;    /* in mountinfo */
	const char *controller; /* wanted among the mount's options; NULL: any */
	const char *usage;
	const char *limits[2]; /* NULL: none */
	const char *cache[2];  /* lines of memory.stat that can be reclaimed */
};

static const struct hierarchy hierarchies[] = {
	{ "cgroup2",
	  NULL,
	  "memory.current",
	  { "memory.max", "memory.high" },
	  { "inactive_file", "active_file" } },
	{ "cgroup",
	  "memory",
	  "memory.usage_in_bytes",
	  { "memory.limit_in_bytes", NULL },
	  { "total_inactive_file", "total_active_file" } },
};

/* Whole file as text, or NULL; files of /proc have no size to ask for. Caller frees. */
static char *read_text(const char *dir, const char *name)
{
	CLEANUP(freep) char *path = NULL;
	CLEANUP(freep) char *text = NULL;
	CLEANUP(fd_closep) int fd = -1;
	size_t size = 0;
	ssize_t n;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return NULL;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	do {
		char *grown = realloc(text, size + PIECE_SIZE + 1);

		if (!grown || size > FILE_MAX)
			return NULL;
		text = grown;
		n = read(fd, text + size, PIECE_SIZE);
		if (n < 0)
			return NULL;
		size += (size_t)n;
	} while (n > 0);
	text[size] = '\0';
	return TAKE(text);
}

/* The number that text begins with, after blanks; "max" is none. */
static bool parse_number(const char *text, uint64_t *ret)
{
	text += strspn(text, " \t");
	if (*text < '0' || *text > '9')
		return false;
	*ret = strtoull(text, NULL, 10); /* too large a number becomes "no limit" */
	return true;
}

/* The number after a line's key ("MemAvailable:", "active_file"); false when there is none. */
static bool find_number(const char *text, const char *key, uint64_t *ret)
{
	size_t len = strlen(key);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, key, len) == 0 && (line[len] == ' ' || line[len] == '\t'))
			return parse_number(line + len, ret);
	}
	return false;
}

static bool read_number(const char *dir, const char *name, uint64_t *ret)
{
	CLEANUP(freep) char *text = read_text(dir, name);

	return text && parse_number(text, ret);
}

/* The limits of one cgroup directory; lowers *ret where one binds. */
static void apply_group(const struct hierarchy *h, const char *dir, const char *shown,
			struct memlimit *ret)
{
	CLEANUP(freep) char *stat = NULL;
	uint64_t usage, cache = 0;

	if (!read_number(dir, h->usage, &usage))
		return;
	stat = read_text(dir, "memory.stat");
	for (unsigned i = 0; stat && i < N_ELEMENTS(h->cache); i++) {
		uint64_t v = 0;

		if (find_number(stat, h->cache[i], &v))
			cache += v;
	}
	usage -= cache < usage ? cache : usage;
	for (unsigned i = 0; i < N_ELEMENTS(h->limits); i++) {
		uint64_t limit, left;

		if (!h->limits[i] || !read_number(dir, h->limits[i], &limit) || limit >= UNLIMITED)
			continue;
		if (limit < ret->most)
			ret->most = limit;
		left = limit > usage ? limit - usage : 0;
		if (left >= ret->bytes)
			continue;
		ret->bytes = left;
		(void)snprintf(ret->text, sizeof(ret->text),
			       "%s of cgroup %.200s is %.3f GB, of which %.3f GB are in use",
			       h->limits[i], shown, (double)limit / 1e9, (double)usage / 1e9);
	}
}

/* The path of this process in the hierarchy, from /proc/self/cgroup ("ID:CONTROLLERS:PATH"). */
static bool find_path(const struct hierarchy *h, const char *text, char path[PATH_SIZE])
{
	for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		const char *names = strchr(line, ':'), *at;
		size_t names_len;

		if (!names)
			continue;
		at = strchr(++names, ':');
		if (!at)
			continue;
		names_len = (size_t)(at - names);
		at++;
		if (h->controller) {
			char padded[256], wanted[64];

			(void)snprintf(padded, sizeof(padded), ",%.*s,", (int)names_len, names);
			(void)snprintf(wanted, sizeof(wanted), ",%s,", h->controller);
			if (!strstr(padded, wanted))
				continue;
		} else if (names_len != 0) {
			continue;
		}
		(void)snprintf(path, PATH_SIZE, "%.*s", (int)strcspn(at, "\n"), at);
		return true;
	}
	return false;
}

/* Is this line of mountinfo a mount of the hierarchy? Its root and mount point then. */
static bool parse_mount(const struct hierarchy *h, const char *line, char mount_root[PATH_SIZE],
			char mount_point[PATH_SIZE])
{
	char copy[2 * PATH_SIZE], type[64], options[1024] = "", padded[1100];
	const char *rest;

	(void)snprintf(copy, sizeof(copy), "%.*s", (int)strcspn(line, "\n"), line);
	rest = strstr(copy, " - ");
	if (!rest || sscanf(copy, "%*s %*s %*s %4095s %4095s", mount_root, mount_point) != 2 ||
	    sscanf(rest + 3, "%63s %*s %1023s", type, options) < 1 || strcmp(type, h->fs_type) != 0)
		return false;
	(void)snprintf(padded, sizeof(padded), ",%s,", options);
	return !h->controller || strstr(padded, ",memory,");
}

/* This group and all above it that are visible from here. */
static void walk_up(const struct hierarchy *h, const char *root, const char *mount_root,
		    const char *mount_point, char *path, struct memlimit *ret)
{
	size_t root_len = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);

	/* A container may see only the part of the tree below mount_root. */
	if (strncmp(path, mount_root, root_len) == 0)
		path += root_len;
	else
		path[0] = '\0';
	for (;;) {
		CLEANUP(freep) char *dir = NULL;
		char *slash;

		if (asprintf(&dir, "%s%s%s", root, mount_point, path) < 0)
			return;
		apply_group(h, dir, path[0] ? path : "/", ret);
		slash = strrchr(path, '/');
		if (!slash || path[0] == '\0')
			return;
		*slash = '\0';
	}
}

static void apply_hierarchy(const struct hierarchy *h, const char *root, const char *cgroups,
			    const char *mounts, struct memlimit *ret)
{
	char path[PATH_SIZE], mount_root[PATH_SIZE], mount_point[PATH_SIZE];

	if (!find_path(h, cgroups, path))
		return;
	for (const char *line = mounts; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		if (parse_mount(h, line, mount_root, mount_point)) {
			walk_up(h, root, mount_root, mount_point, path, ret);
			return;
		}
	}
}

void memlimit_get(const char *root, struct memlimit *ret)
{
	CLEANUP(freep) char *dir = NULL;
	CLEANUP(freep) char *meminfo = NULL;
	CLEANUP(freep) char *cgroups = NULL;
	CLEANUP(freep) char *mounts = NULL;
	uint64_t available, total = 0;

	ret->bytes = UINT64_MAX;
	ret->most = UINT64_MAX;
	ret->total = 0;
	(void)snprintf(ret->text, sizeof(ret->text), "how much memory is free could not be read");
	if (asprintf(&dir, "%s/proc", root) < 0) {
		dir = NULL;
		return;
	}
	meminfo = read_text(dir, "meminfo");
	if (meminfo && find_number(meminfo, "MemAvailable:", &available)) {
		(void)find_number(meminfo, "MemTotal:", &total);
		ret->bytes = available * 1024;
		ret->total = total * 1024;
		ret->most = ret->total > 0 ? ret->total : UINT64_MAX;
		(void)snprintf(ret->text, sizeof(ret->text),
			       "the machine has %.3f GB available of %.3f GB",
			       (double)ret->bytes / 1e9, (double)ret->total / 1e9);
	}
	cgroups = read_text(dir, "self/cgroup");
	mounts = read_text(dir, "self/mountinfo");
	for (unsigned i = 0; cgroups && mounts && i < N_ELEMENTS(hierarchies); i++)
		apply_hierarchy(&hierarchies[i], root, cgroups, mounts, ret);
}
