#pragma once
/*
 * The slab as a whole: how large its parts become for given budgets, creating and filling in its
 * frame (the daemon), and mapping it read-only with every number checked (clients). The layout is
 * in slab_layout.h; which tile or expert is where is the daemon's affair.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"
#include "shared/memlock.h"
#include "shared/ring_size.h"
#include "shared/slab_layout.h"

enum {
	SLAB_LEAST_TILES = 4, /* largest tiles that the ring holds at the floor */
	SLAB_LEAST_SLOTS = 4, /* slots taken when the least that works is asked for */
	SLAB_FLOOR_SLOTS = 2  /* fewer are refused */
};

/* Budget that means "everything". */
#define SLAB_BUDGET_ALL UINT64_MAX

/* How the daemon reads unless told otherwise. Why these: docs/decisions/0002-reading.md. */
enum { SLAB_READ_DEPTH = 16, SLAB_READ_CHUNK = 512 << 10 };

/* What the slab's memory is made of, see slab_pages.c; all fall back to what there is. */
enum slab_pages {
	SLAB_PAGES_AUTO,     /* transparent huge pages where the kernel makes them */
	SLAB_PAGES_NEVER,    /* 4 KiB */
	SLAB_PAGES_RESERVED, /* of vm.nr_hugepages, which no memory cgroup counts */
};

/* What the plan depends on: plain numbers, so that a client can plan from config.json alone. */
struct slab_want {
	uint64_t trunk_size;    /* slab bytes of all tiles together */
	uint64_t max_tile_size; /* slab bytes of the largest */
	uint32_t n_tiles;       /* 0 allowed only with trunk_size 0 */
	uint64_t expert_size;   /* bytes of a slot; 0 when the model binds no experts */
	uint64_t n_experts;     /* in all layers together: more slots are never made */
	uint64_t trunk_budget;  /* bytes for pinned tiles and ring; 0 = the least that works */
	uint64_t cache_budget;  /* bytes for slots; 0 = the least that works */
	uint64_t in_flight;     /* bytes that the reader keeps in flight; 0 = the default */
	struct ring_rates rates;
};

struct slab_plan {
	uint64_t pinned_size; /* most that the pinned tiles may take; then what they do take */
	uint64_t ring_size;   /* 0 when every tile is pinned */
	uint64_t slots_size;
	uint64_t total_size; /* of the slab, header and directory included */
	uint64_t area_align; /* SLAB_HUGE_PAGE or SLAB_PAGE */
	uint64_t pinned_off, ring_off, slots_off;
	uint64_t slot_size;
	uint32_t n_tiles, n_slots;
	uint64_t trunk_floor, cache_floor; /* the smallest budgets that are accepted */
	uint64_t daemon_private_size;      /* the daemon's memory beside the slab, about */
	char ring_note[RING_NOTE_SIZE];    /* what the ring's size rests on; "" without one */
	enum memlock lock;                 /* set by who makes the slab; auto otherwise */
	enum slab_pages pages;             /* set by who makes a slab of it, else AUTO */
	uint8_t digest[16]; /* for the header's plan_digest; set by who keeps a slab, else zero */
};

/*
 * Split the budgets. A budget that covers all tiles pins all and makes no ring; else the ring gets
 * 64 MiB + the bytes in flight + what the disk reads between two releases of a client, in whole
 * largest tiles, at most an eighth of the trunk, but at least seven largest tiles (for one client:
 * four) where that leaves half of the budget, and in any case four; the rest pins. ERR_BUDGET with
 * the floor when a budget other than 0 is below it.
 */
int slab_plan(const struct slab_want *want, struct slab_plan *ret, struct err *err);
/* The pinned tiles turned out to take pinned_size (at most what was planned): set it and lay the
 * areas out again. */
void slab_plan_set_pinned(struct slab_plan *plan, uint64_t pinned_size);

struct slab {
	int fd;        /* owned; the daemon's writable one, -1 in a client */
	uint8_t *base; /* the mapping; read-only in a client */
	uint64_t size;
	struct slab_header header;    /* private copy: what was validated stays so */
	struct slab_entry *tiles;     /* [header.n_tiles], in the mapping */
	struct slab_entry *slots;     /* [header.n_slots], in the mapping */
	uint64_t faulted;             /* all before this is resident */
	uint8_t *is_resident;         /* owned; of each SLAB_HUGE_PAGE bytes; NULL in a client */
	uint64_t huge_before;         /* huge shmem bytes of the machine before the first fault */
	bool is_reserved;             /* of reserved huge pages */
	bool is_touched;              /* the kernel has no way but writing to make it resident */
	bool wants_huge;              /* transparent ones */
	bool is_collapsed;            /* they are still being asked for, one by one */
	int collapse_error;           /* of the last that was not to be had */
	uint32_t n_collapse_failures; /* pages that were not to be had */
	char huge_note[192];          /* "huge pages", or why there are none */
	char mlock_note[96];          /* "locked", or why not */
};

/*
 * The daemon's side: create the memfd, map it, write header and an empty directory, seal it against
 * growing and shrinking. Nothing but the directory is resident yet. ERR_NO_MEMORY; ERR_BUDGET when
 * plan->lock is yes and it cannot be locked.
 */
int slab_new(struct slab **ret, const struct slab_plan *plan, const uint8_t model_digest[16],
	     struct err *err);
/*
 * A slab that an earlier daemon made, by its descriptor (owned by the slab on success, else the
 * caller's): as slab_new, with what lies in it. ERR_STALE with the reason when it is not exactly
 * what slab_new would make of these arguments.
 */
int slab_adopt(struct slab **ret, int fd, const struct slab_plan *plan,
	       const uint8_t model_digest[16], struct err *err);
/* Bytes that a slab of an earlier daemon has taken; fd -1: 0. Its pages are reserved huge ones? */
uint64_t slab_taken(int fd, bool *ret_is_reserved);
struct slab_pipes *slab_pipes(const struct slab *s);
/* Make the next huge page resident, or small ones in its place; > 0 more to do, 0 done,
 * ERR_NO_MEMORY. The notes are final when it is done. */
int slab_fault_some(struct slab *s, struct err *err);
/*
 * May it be used while parts are not resident? Not a small one, which takes no time; nor one that
 * is made resident by writing to it; nor one of reserved pages, which a control group's limit may
 * still refuse.
 */
bool slab_is_usable_early(const struct slab *s);
/* The huge pages around size bytes at at, before these are read into, so that no small ones come.
 * What cannot be had now is left to slab_fault_some. */
void slab_fault_at(struct slab *s, const uint8_t *at, uint64_t size);

/*
 * The client's side: map fd (stays the caller's, may be closed at once) read-only and check every
 * number of the header. ERR_PROTOCOL naming the field.
 */
int slab_open(struct slab **ret, int fd, struct err *err);
/* Pointer to size bytes at offset when they lie within the data areas, else NULL. */
const uint8_t *slab_range(const struct slab *s, uint64_t offset, uint64_t size);

/*
 * Resident memory like a slab's, for who measures reads into it: size bytes (multiple of
 * SLAB_HUGE_PAGE) in transparent huge pages, as far as there are, or in small ones when small is
 * set. NULL: none to be had. Free with munmap.
 */
uint8_t *slab_pages_memory(uint64_t size, bool small);
/* Would a slab get transparent huge pages? 0, or -errno of one that did not. */
int slab_pages_try(void);
/* Bytes of reserved huge pages that nobody has taken or been promised. */
uint64_t slab_pages_reserved(void);

struct slab *slab_free(struct slab *s);
void slab_freep(struct slab **s);

/* The client's check after computing: have the bytes stayed those of this generation? Reads that
 * came before are ordered before the look; pairs with the release in slab_entry_invalidate. */
static inline bool slab_entry_is_same(const struct slab_entry *e, uint32_t generation)
{
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&e->generation, memory_order_relaxed) == generation;
}

/* The daemon, before a byte of the entry's memory may change: pairs with slab_entry_is_same. */
static inline void slab_entry_invalidate(struct slab_entry *e)
{
	atomic_fetch_add_explicit(&e->generation, 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&e->state, SLAB_EMPTY, memory_order_relaxed);
}
