#pragma once
/*
 * The slab: one memfd that the daemon fills and clients map read-only.
 *
 *   [slab_header, 4 KiB][directory: tile entries, then expert slot entries][pinned tiles][ring of
 * tiles][expert slots]
 *
 * Every area starts at a multiple of 2 MiB where the slab is large enough for huge pages, else of 4
 * KiB; the header says where. There is one directory entry per tile of the catalog and one per
 * expert slot.
 *
 * State of an entry, moved by the daemon's loop thread only:
 *
 *   EMPTY --(read starts)--> LOADING --(all bytes landed and checked)--> READY --(evicted)--> EMPTY
 *
 * generation is raised, with release order, before a byte of the entry's memory may change (on
 * READY -> EMPTY). A client that got generation g with TILE_READY or EXPERT_READY computes, then
 * executes an acquire fence and loads generation again: a difference means the bytes may have
 * changed, the result is thrown away and the tile or expert asked for again. Leases, which keep
 * entries from being evicted, live in the daemon's private memory.
 */
#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#define SLAB_MAGIC 0x313042414c53334bULL
enum { SLAB_VERSION = 1 };
enum { SLAB_PAGE = 4096, SLAB_HUGE_PAGE = 2 << 20 };
enum { SLAB_NO_TILE = 0xffffffff };

enum slab_state { SLAB_EMPTY = 0, SLAB_LOADING = 1, SLAB_READY = 2 };
enum slab_entry_flag { SLAB_PINNED = 1u << 0 }; /* never evicted while the slab lives */

struct slab_entry {
	_Atomic uint32_t generation;
	_Atomic uint32_t state; /* enum slab_state */
	uint32_t layer;         /* of the tile or of the expert in the slot */
	uint32_t id;            /* tile index, or expert id; UINT32_MAX in an empty slot */
	uint64_t offset;   /* from the slab's start, multiple of 4096; tiles: 0 in an EMPTY one of
			      the ring */
	uint32_t flags;    /* enum slab_entry_flag */
	uint32_t reserved; /* zero */
};
static_assert(sizeof(struct slab_entry) == 32, "slab entry layout");

struct slab_header {
	uint64_t magic;
	uint32_t version;
	uint32_t header_size;
	uint64_t compat, incompat;
	uint8_t model_digest[16];
	uint64_t total_size;
	uint32_t n_tiles;
	uint32_t n_slots;
	uint64_t tile_entries_off; /* struct slab_entry[n_tiles] */
	uint64_t slot_entries_off; /* struct slab_entry[n_slots] */
	uint64_t pinned_off, pinned_size;
	uint64_t ring_off, ring_size;
	uint64_t slots_off;
	uint64_t slot_size; /* bytes of one expert slot; slot i starts at slots_off + i * slot_size
			     */
	uint8_t plan_digest[16]; /* of all that decides which bytes lie where: the daemon's alone */
	uint64_t reserved[2];    /* zero */
};
static_assert(sizeof(struct slab_header) == 160, "slab header layout");

/*
 * In the header's page, for the daemon and the one after it: which daemons' reads may still land. A
 * daemon that is killed leaves reads in flight; the write end of a pipe of its own goes with the
 * last of them (iod/keep.h). An id is the pipe's inode number.
 */
enum { SLAB_PIPES_OFF = 2048, SLAB_PIPES_MAX = 6 };
struct slab_pipes {
	uint64_t n;
	uint64_t id[SLAB_PIPES_MAX];
};
static_assert(SLAB_PIPES_OFF + sizeof(struct slab_pipes) <= SLAB_PAGE, "in the header's page");
