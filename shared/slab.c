#include "shared/slab.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/slab_pages.h"

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

/* Resident in some milliseconds. */
enum { QUICK_SLAB = 16 << 20 };

struct slab *slab_free(struct slab *s)
{
	if (!s)
		return NULL;
	if (s->base)
		(void)munmap(s->base, s->size);
	(void)fd_close(s->fd);
	free(s->is_resident);
	free(s);
	return NULL;
}

void slab_freep(struct slab **s)
{
	*s = slab_free(*s);
}

/* Pages become locked as they are made resident, so this call is short. */
static int lock_pages(struct slab *s, enum memlock lock, struct err *err)
{
	int error = lock == MEMLOCK_NO || mlock2(s->base, s->size, MLOCK_ONFAULT) == 0 ? 0 : errno;

	if (lock == MEMLOCK_YES && error != 0)
		return err_set(err, ERR_BUDGET, "locking a slab of %" PRIu64 " bytes: %s", s->size,
			       strerror(error));
	if (error != 0)
		(void)snprintf(s->mlock_note, sizeof(s->mlock_note),
			       "not locked (%s: the limit is %" PRIu64 " KiB, raise LimitMEMLOCK)",
			       strerror(error), memlock_limit() >> 10);
	else
		(void)snprintf(s->mlock_note, sizeof(s->mlock_note), "%s",
			       lock == MEMLOCK_NO ? "not locked (--lock no)" : "locked");
	return 0;
}

static struct slab_header make_header(const struct slab_plan *plan, const uint8_t digest[16])
{
	struct slab_header h = {
		.magic = SLAB_MAGIC,
		.version = SLAB_VERSION,
		.header_size = sizeof(h),
		.total_size = plan->total_size,
		.n_tiles = plan->n_tiles,
		.n_slots = plan->n_slots,
		.tile_entries_off = SLAB_PAGE,
		.slot_entries_off = SLAB_PAGE + plan->n_tiles * sizeof(struct slab_entry),
		.pinned_off = plan->pinned_off,
		.pinned_size = plan->pinned_size,
		.ring_off = plan->ring_off,
		.ring_size = plan->ring_size,
		.slots_off = plan->slots_off,
		.slot_size = plan->slot_size,
	};

	memcpy(h.model_digest, digest, sizeof(h.model_digest));
	memcpy(h.plan_digest, plan->digest, sizeof(h.plan_digest));
	return h;
}

static void use_header(struct slab *s, const struct slab_header *h)
{
	s->header = *h;
	s->tiles = (struct slab_entry *)(void *)(s->base + h->tile_entries_off);
	s->slots = (struct slab_entry *)(void *)(s->base + h->slot_entries_off);
}

static void write_frame(struct slab *s, const struct slab_header *h)
{
	memcpy(s->base, h, sizeof(*h));
	use_header(s, h);
	for (uint32_t i = 0; i < h->n_tiles; i++)
		s->tiles[i].id = i;
	for (uint32_t i = 0; i < h->n_slots; i++) {
		s->slots[i].id = UINT32_MAX;
		s->slots[i].offset = h->slots_off + i * h->slot_size;
	}
}

static uint64_t n_huge_pages(const struct slab *s)
{
	return (s->size + SLAB_HUGE_PAGE - 1) / SLAB_HUGE_PAGE;
}

static int map_writable(struct slab *s, struct err *err)
{
	s->base = slab_pages_map(s->fd, s->size, PROT_READ | PROT_WRITE);
	if (!s->base)
		return err_set(err, ERR_NO_MEMORY, "mapping a slab of %" PRIu64 " bytes: %s",
			       s->size, strerror(errno));
	(void)madvise(s->base, s->size, MADV_DONTDUMP);
	return 0;
}

/* In reserved pages: false, and the note says why not. */
static bool make_reserved(struct slab *s)
{
	struct err ignored = { 0 };

	if (slab_pages_reserve(s) < 0)
		return false;
	if (map_writable(s, &ignored) == 0)
		return true;
	slab_pages_refuse(s, -errno);
	s->is_reserved = false;
	s->fd = fd_close(s->fd);
	return false;
}

static int make_memory(struct slab *s, enum slab_pages pages, struct err *err)
{
	if (pages == SLAB_PAGES_RESERVED && make_reserved(s))
		return 0;
	s->fd = fd_memfd("k3-slab", s->size, 0);
	if (s->fd < 0)
		return err_set(err, ERR_NO_MEMORY, "creating a slab of %" PRIu64 " bytes: %s",
			       s->size, fd_strerror(-s->fd));
	return map_writable(s, err);
}

/* A record of a slab that is not there yet; NULL when there is no memory. */
static struct slab *new_record(uint64_t size)
{
	CLEANUP(slab_freep) struct slab *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->fd = -1;
	s->size = size;
	s->is_resident = calloc(n_huge_pages(s), 1);
	return s->is_resident ? TAKE(s) : NULL;
}

int slab_new(struct slab **ret, const struct slab_plan *plan, const uint8_t model_digest[16],
	     struct err *err)
{
	CLEANUP(slab_freep) struct slab *s = new_record(plan->total_size);
	struct slab_header h = make_header(plan, model_digest);
	int r;

	if (!s)
		return err_set(err, ERR_NO_MEMORY, "no memory for the slab's record");
	r = make_memory(s, plan->pages, err);
	if (r < 0)
		return r;
	r = fd_seal(s->fd, 0);
	if (r < 0)
		return err_set(err, ERR_NO_MEMORY, "sealing the slab: %s", strerror(-r));
	slab_pages_ask(s, plan->pages);
	r = lock_pages(s, plan->lock, err);
	if (r < 0)
		return r;
	write_frame(s, &h);
	*ret = TAKE(s);
	return 0;
}

/* A slab that can shrink could end us with SIGBUS at any moment. */
static bool is_sealed(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && (seals & F_SEAL_GROW) != 0;
}

static bool is_of_reserved_pages(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC;
}

uint64_t slab_taken(int fd, bool *ret_is_reserved)
{
	struct stat st;

	*ret_is_reserved = is_of_reserved_pages(fd);
	if (fstat(fd, &st) < 0)
		return 0;
	/* reserved ones are promised to it before they are there */
	return *ret_is_reserved ? (uint64_t)st.st_size : (uint64_t)st.st_blocks * 512;
}

int slab_adopt(struct slab **ret, int fd, const struct slab_plan *plan,
	       const uint8_t model_digest[16], struct err *err)
{
	CLEANUP(slab_freep) struct slab *s = new_record(plan->total_size);
	struct slab_header h = make_header(plan, model_digest), there;
	struct stat st;
	int r;

	if (!s)
		return err_set(err, ERR_NO_MEMORY, "no memory for the slab's record");
	if (fstat(fd, &st) < 0 || !is_sealed(fd) ||
	    fd_pread_all(fd, &there, sizeof(there), 0) < 0 || there.magic != SLAB_MAGIC)
		return err_set(err, ERR_STALE, "it is no slab");
	if (memcmp(there.model_digest, h.model_digest, sizeof(h.model_digest)) != 0)
		return err_set(err, ERR_STALE, "it is of another model");
	if ((uint64_t)st.st_size != plan->total_size || memcmp(&there, &h, sizeof(h)) != 0)
		return err_set(err, ERR_STALE,
			       "it was made for other budgets, other files or by another version");
	s->fd = fd;
	r = map_writable(s, err);
	if (r == 0)
		r = lock_pages(s, plan->lock, err);
	if (r < 0) {
		s->fd = -1; /* the caller's */
		return r;
	}
	use_header(s, &h);
	s->is_reserved = is_of_reserved_pages(fd);
	(void)snprintf(s->huge_note, sizeof(s->huge_note), "pages of the daemon before");
	*ret = TAKE(s);
	return 0;
}

struct slab_pipes *slab_pipes(const struct slab *s)
{
	return (struct slab_pipes *)(void *)(s->base + SLAB_PIPES_OFF);
}

/* One huge page, or as many small ones. 0 or -errno. */
static int fault(struct slab *s, uint64_t i)
{
	uint64_t at = i * SLAB_HUGE_PAGE;
	uint64_t n = s->size - at < SLAB_HUGE_PAGE ? s->size - at : SLAB_HUGE_PAGE;

	slab_pages_collapse(s, at, n);
	if (madvise(s->base + at, n, MADV_POPULATE_WRITE) < 0) {
		if (errno != EINVAL)
			return -errno;
		s->is_touched = true;
		slab_pages_write(s->base + at, n);
	}
	s->is_resident[i] = 1;
	return 0;
}

int slab_fault_some(struct slab *s, struct err *err)
{
	uint64_t i = s->faulted / SLAB_HUGE_PAGE, n = n_huge_pages(s);
	int r = 0;

	if (s->faulted == s->size)
		return 0;
	while (i < n && s->is_resident[i])
		i++;
	if (i < n)
		r = fault(s, i);
	if (r == -EAGAIN || r == -EINTR)
		return 1;
	if (r < 0)
		return err_set(err, ERR_NO_MEMORY,
			       "the machine has no memory for the slab: %" PRIu64 " of %" PRIu64
			       " bytes could be had (%s)",
			       i * SLAB_HUGE_PAGE, s->size, strerror(-r));
	s->faulted = i + 1 < n ? (i + 1) * SLAB_HUGE_PAGE : s->size;
	if (s->faulted < s->size)
		return 1;
	slab_pages_note(s);
	return 0;
}

bool slab_is_usable_early(const struct slab *s)
{
	return s->size > QUICK_SLAB && !s->is_reserved && !s->is_touched;
}

void slab_fault_at(struct slab *s, const uint8_t *at, uint64_t size)
{
	uint64_t offset = (uint64_t)(at - s->base);
	uint64_t end = (offset + size + SLAB_HUGE_PAGE - 1) / SLAB_HUGE_PAGE;

	for (uint64_t i = offset / SLAB_HUGE_PAGE; i < end; i++)
		if (!s->is_resident[i] && fault(s, i) < 0)
			return;
}

/* Every number of a header that came from a peer. Returns what is wrong, or NULL. */
static const char *check_header(const struct slab_header *h, uint64_t size)
{
	uint64_t tiles_end, slots_end;

	if (h->magic != SLAB_MAGIC)
		return "magic";
	if (h->version != SLAB_VERSION)
		return "version";
	if (h->header_size != sizeof(*h))
		return "header_size";
	if (h->incompat != 0)
		return "incompat (features that are not known here)";
	if (h->total_size != size)
		return "total_size";
	if (h->tile_entries_off < sizeof(*h) || h->tile_entries_off > size ||
	    h->tile_entries_off % sizeof(struct slab_entry) != 0)
		return "tile_entries_off";
	tiles_end = h->tile_entries_off + (uint64_t)h->n_tiles * sizeof(struct slab_entry);
	if (tiles_end > size)
		return "n_tiles";
	if (h->slot_entries_off < tiles_end || h->slot_entries_off > size ||
	    h->slot_entries_off % sizeof(struct slab_entry) != 0)
		return "slot_entries_off";
	slots_end = h->slot_entries_off + (uint64_t)h->n_slots * sizeof(struct slab_entry);
	if (slots_end > size)
		return "n_slots";
	if (h->pinned_off < slots_end || h->pinned_off > size || h->pinned_off % SLAB_PAGE != 0)
		return "pinned_off";
	if (h->pinned_size > size - h->pinned_off)
		return "pinned_size";
	if (h->ring_off < h->pinned_off + h->pinned_size || h->ring_off > size ||
	    h->ring_off % SLAB_PAGE != 0)
		return "ring_off";
	if (h->ring_size > size - h->ring_off)
		return "ring_size";
	if (h->slots_off < h->ring_off + h->ring_size || h->slots_off > size ||
	    h->slots_off % SLAB_PAGE != 0)
		return "slots_off";
	if (h->slot_size % SLAB_PAGE != 0 ||
	    (h->n_slots > 0 && h->slot_size > (size - h->slots_off) / h->n_slots))
		return "slot_size";
	for (size_t i = 0; i < N_ELEMENTS(h->reserved); i++)
		if (h->reserved[i] != 0)
			return "reserved";
	return NULL;
}

int slab_open(struct slab **ret, int fd, struct err *err)
{
	CLEANUP(slab_freep) struct slab *s = calloc(1, sizeof(*s));
	const char *bad;
	struct stat st;

	if (!s)
		return err_set(err, ERR_NO_MEMORY, "no memory for the slab's record");
	s->fd = -1;
	if (fstat(fd, &st) < 0)
		return err_set(err, ERR_PROTOCOL, "slab: fstat: %s", strerror(errno));
	if (!is_sealed(fd))
		return err_set(err, ERR_PROTOCOL, "slab: it is not sealed against shrinking");
	if (st.st_size < SLAB_PAGE || st.st_size % SLAB_PAGE != 0)
		return err_set(err, ERR_PROTOCOL, "slab: a size of %lld bytes",
			       (long long)st.st_size);
	s->size = (uint64_t)st.st_size;
	s->base = slab_pages_map(fd, s->size, PROT_READ);
	if (!s->base)
		return err_set(err, ERR_NO_MEMORY, "mapping a slab of %" PRIu64 " bytes: %s",
			       s->size, strerror(errno));
	(void)madvise(s->base, s->size, MADV_DONTDUMP);
	(void)madvise(s->base, s->size, MADV_HUGEPAGE);
	memcpy(&s->header, s->base, sizeof(s->header));
	bad = check_header(&s->header, s->size);
	if (bad)
		return err_set(err, ERR_PROTOCOL, "slab: the header's %s is wrong", bad);
	s->tiles = (struct slab_entry *)(void *)(s->base + s->header.tile_entries_off);
	s->slots = (struct slab_entry *)(void *)(s->base + s->header.slot_entries_off);
	s->faulted = s->size;
	*ret = TAKE(s);
	return 0;
}

const uint8_t *slab_range(const struct slab *s, uint64_t offset, uint64_t size)
{
	if (offset < s->header.pinned_off || offset > s->size || size > s->size - offset)
		return NULL;
	return s->base + offset;
}
