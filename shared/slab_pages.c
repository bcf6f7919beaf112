/*
 * Small pages cost the daemon as much as the arithmetic: a read of a megabyte is 256 pieces for the
 * device, each looked up. Three ways to huge ones:
 *
 *   reserved (hugetlbfs, when asked for): taken out of the machine's memory beforehand, counted by
 * no memory cgroup; either all of the slab is of these, or nothing. advised: where
 * transparent_hugepage/shmem_enabled allows it, the first touch brings one. collapsed: since 6.1
 * madvise makes one of the pages that are there, whatever shmem_enabled says, which is "never" on
 * most machines. A byte of each is touched first, since without one the kernel sees nothing to
 * collapse; clearing one page of 2 MiB is then faster than 512 small ones.
 *
 * All of it is for speed: pages that cannot be had stay small.
 */
#include "shared/slab_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4u
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define MFD_HUGE_OF_2_MIB (21u << 26)
#define POOL              "/sys/kernel/mm/hugepages/hugepages-2048kB/"

enum { SMALL_SLAB = 64 << 20 };
/* The kernel has looked for a huge page in vain so often: more would delay the start. */
enum { FAILURES_MAX = 256 };

uint8_t *slab_pages_map(int fd, uint64_t size, int prot)
{
	uint64_t room = size + SLAB_HUGE_PAGE;
	uint8_t *reserved, *at;
	size_t before, after;

	reserved = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (reserved == MAP_FAILED)
		return NULL;
	before = (SLAB_HUGE_PAGE - (uintptr_t)reserved % SLAB_HUGE_PAGE) % SLAB_HUGE_PAGE;
	at = reserved + before;
	if (mmap(at, size, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		int saved = errno;

		(void)munmap(reserved, room);
		errno = saved;
		return NULL;
	}
	after = (size_t)(room - size - before);
	if (before > 0)
		(void)munmap(reserved, before);
	if (after > 0)
		(void)munmap(at + size, after);
	return at;
}

/* First line of a small system file; empty when it cannot be read. */
static void read_word(const char *path, char *buf, size_t size)
{
	CLEANUP(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);

	buf[n > 0 ? n : 0] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
}

uint64_t slab_pages_reserved(void)
{
	char words[32];
	uint64_t n_free, n_promised;

	read_word(POOL "free_hugepages", words, sizeof(words));
	n_free = strtoull(words, NULL, 10);
	read_word(POOL "resv_hugepages", words, sizeof(words));
	n_promised = strtoull(words, NULL, 10);
	return n_free > n_promised ? (n_free - n_promised) * SLAB_HUGE_PAGE : 0;
}

void slab_pages_refuse(struct slab *s, int error)
{
	if (error == -ENOMEM)
		(void)snprintf(s->huge_note, sizeof(s->huge_note),
			       "%.0f MB of reserved huge pages are free, %.0f needed",
			       (double)slab_pages_reserved() / 1e6, (double)s->size / 1e6);
	else
		(void)snprintf(s->huge_note, sizeof(s->huge_note), "no reserved huge pages: %s",
			       strerror(-error));
}

int slab_pages_reserve(struct slab *s)
{
	int r;

	if (s->size % SLAB_HUGE_PAGE != 0) {
		(void)snprintf(s->huge_note, sizeof(s->huge_note),
			       "no reserved huge pages: slab is small");
		return -EINVAL;
	}
	s->fd = fd_memfd("k3-slab", s->size, MFD_HUGETLB | MFD_HUGE_OF_2_MIB);
	r = s->fd < 0 ? s->fd : 0;
	s->is_reserved = r == 0;
	if (r < 0)
		slab_pages_refuse(s, r);
	return r;
}

/* Bytes of shmem in huge pages on this machine. */
static uint64_t huge_shmem_bytes(void)
{
	char buf[8192];
	CLEANUP(fd_closep) int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);
	const char *at;

	buf[n > 0 ? n : 0] = '\0';
	at = strstr(buf, "ShmemHugePages:");
	return at ? strtoull(at + strlen("ShmemHugePages:"), NULL, 10) * 1024 : 0;
}

/* More words behind those that slab_pages_refuse has left. */
static void add_note(struct slab *s, const char *words)
{
	size_t len = strlen(s->huge_note);

	(void)snprintf(s->huge_note + len, sizeof(s->huge_note) - len, "%s%s", len > 0 ? "; " : "",
		       words);
}

void slab_pages_ask(struct slab *s, enum slab_pages pages)
{
	s->huge_before = huge_shmem_bytes();
	s->is_collapsed = false;
	if (s->is_reserved) {
		add_note(s, "reserved huge pages");
	} else if (pages == SLAB_PAGES_NEVER) {
		(void)madvise(s->base, s->size, MADV_NOHUGEPAGE);
		add_note(s, "no huge pages (chosen by option)");
	} else if (s->size < SMALL_SLAB) {
		add_note(s, "no huge pages (slab is small)");
	} else {
		/* EINVAL: a kernel without them */
		s->collapse_error = madvise(s->base, s->size, MADV_HUGEPAGE) < 0 ? -errno : 0;
		s->is_collapsed = s->collapse_error == 0;
		s->wants_huge = true;
	}
}

/* Without writing to it: something may be read into it already. */
static void touch(uint8_t *at)
{
	(void)madvise(at, SLAB_PAGE, MADV_POPULATE_WRITE);
}

void slab_pages_write(uint8_t *at, uint64_t size)
{
	for (uint64_t i = 0; i < size; i += SLAB_PAGE) {
		volatile uint8_t *p = at + i;

		*p = *p;
	}
}

static int collapse(uint8_t *at, uint64_t size)
{
	return madvise(at, size, MADV_COLLAPSE) < 0 ? -errno : 0;
}

void slab_pages_collapse(struct slab *s, uint64_t at, uint64_t size)
{
	int r;

	if (!s->is_collapsed)
		return;
	touch(s->base + at);
	r = collapse(s->base + at, size);
	if (r == 0)
		return;
	s->collapse_error = r;
	/* EINVAL: a kernel before 6.1, or one that denies huge pages here altogether */
	if (r == -EINVAL || ++s->n_collapse_failures == FAILURES_MAX)
		s->is_collapsed = false;
}

/* size bytes of a memfd that lives as long as the mapping. */
static uint8_t *map_some(uint64_t size)
{
	CLEANUP(fd_closep) int fd = fd_memfd("k3-memory", size, 0);

	return fd < 0 ? NULL : slab_pages_map(fd, size, PROT_READ | PROT_WRITE);
}

uint8_t *slab_pages_memory(uint64_t size, bool small)
{
	uint8_t *at = map_some(size);

	if (!at)
		return NULL;
	if (small)
		(void)madvise(at, size, MADV_NOHUGEPAGE);
	else if (madvise(at, size, MADV_HUGEPAGE) == 0)
		for (uint64_t i = 0; i < size; i += SLAB_HUGE_PAGE) {
			touch(at + i);
			(void)collapse(at + i, SLAB_HUGE_PAGE);
		}
	slab_pages_write(at, size);
	return at;
}

int slab_pages_try(void)
{
	uint8_t *at = map_some(SLAB_HUGE_PAGE);
	int r;

	if (!at)
		return -errno;
	r = madvise(at, SLAB_HUGE_PAGE, MADV_HUGEPAGE) < 0 ? -errno : 0;
	touch(at);
	if (r == 0)
		r = collapse(at, SLAB_HUGE_PAGE);
	(void)munmap(at, SLAB_HUGE_PAGE);
	return r;
}

/* Which of the choices is in [brackets]. */
static const char *chosen(char *words)
{
	char *open = strchr(words, '[');
	char *close = open ? strchr(open, ']') : NULL;

	if (!close)
		return "unknown";
	*close = '\0';
	return open + 1;
}

void slab_pages_note(struct slab *s)
{
	char words[128], text[96];
	uint64_t now = huge_shmem_bytes();
	uint64_t got = now > s->huge_before ? now - s->huge_before : 0;

	if (!s->wants_huge)
		return;
	if (got >= s->size / 100 * 95) {
		add_note(s, "huge pages");
		return;
	}
	if (got > 0) {
		(void)snprintf(text, sizeof(text),
			       "huge pages for %" PRIu64 " %% (memory is fragmented)",
			       got * 100 / s->size);
		add_note(s, text);
		return;
	}
	read_word("/sys/kernel/mm/transparent_hugepage/shmem_enabled", words, sizeof(words));
	(void)snprintf(text, sizeof(text), "no huge pages (collapse: %s, shmem_enabled is %s)",
		       strerror(-s->collapse_error), chosen(words));
	add_note(s, text);
}
