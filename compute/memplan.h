#pragma once
/*
 * The memory plan of a run: every item of daemon and client summed before anything is allocated,
 * and compared with what the machine and every enclosing control group allow.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "compute/model_size.h"
#include "proto/wire.h"
#include "shared/config.h"
#include "shared/err.h"
#include "shared/option.h"
#include "shared/ring_size.h"

/* Item(name, sentence): the names are those of run.json's memory.plan. */
#define K3_MEMPLAN_ITEMS(X)                                             \
	X(daemon_pinned_tiles, "trunk tiles that stay resident")        \
	X(daemon_tile_ring, "ring for the other tiles")                 \
	X(daemon_expert_slots, "cache of routed experts")               \
	X(daemon_directory, "slab header, directory, alignment")        \
	X(daemon_private, "the daemon itself")                          \
	X(client_scratch, "activations of a step")                      \
	X(client_vectors, "small vectors of a layer")                   \
	X(client_contributions, "expert outputs kept until their turn") \
	X(client_state_kda, "recurrent state and convolutions")         \
	X(client_state_mla, "attention latents of all positions")       \
	X(client_logits, "rows of logits")                              \
	X(client_trace, "routing kept for the trace")                   \
	X(client_program, "k3 itself, vocabulary and libraries")
enum k3_memplan_item {
#define X(name, sentence) K3_MEMPLAN_##name,
	K3_MEMPLAN_ITEMS(X)
#undef X
		K3_MEMPLAN_N_
};

/* Rows of a step at most, where the user does not say. */
enum { K3_USUAL_ROWS = 256 };

struct k3_memplan_want {
	const struct config *config; /* borrowed */
	uint32_t n_layers;
	uint32_t n_rows;      /* most rows of a step; fewer, as many as fit, unless ... */
	bool n_rows_is_given; /* ... the user said so */
	uint32_t n_positions;
	uint32_t n_logits; /* rows of logits kept at once; 0: as many as rows */
	bool has_trace;
	/* the private daemon; none with --socket */
	bool has_daemon;
	const char *preset;
	double trunk_gb, cache_gb;      /* < 0: the preset's */
	uint64_t tile_bytes, in_flight; /* 0: the daemon's defaults */
	bool wants_reserved;            /* the slab out of reserved huge pages */
	struct ring_rates rates;        /* disk and memory; 0: not known */
	const char *limit_root;         /* of memlimit_get; NULL: this machine */
	uint64_t limit;       /* plan for this many bytes, all of them; 0: what there is */
	uint32_t n_sequences; /* of a client, side by side in one step; 0: 1. Lowered like rows ...
			       */
	bool n_sequences_is_given; /* ... but after them */
	uint32_t n_clients;        /* of the daemon; 0: 1 */
	uint64_t program_extra;    /* what k3 will hold and does not yet: a vocabulary not opened */
};

struct k3_memplan {
	uint64_t item[K3_MEMPLAN_N_];
	uint64_t total;
	uint64_t limit;        /* what may be allocated, reserved pages that the slab takes
				  included; UINT64_MAX unknown */
	uint64_t common_limit; /* the same without them */
	uint64_t reserved;     /* bytes of reserved pages that may be taken */
	char limit_note[512];  /* where the limit comes from */
	uint32_t n_rows;       /* chosen */
	uint32_t n_sequences;  /* chosen */
	uint64_t program_size; /* of one client beside what it allocates for the run */
	uint64_t trunk_budget; /* bytes for the daemon's --trunk-gb and --cache-gb */
	uint64_t cache_budget;
	struct ring_rates rates;        /* as the daemon is to be told */
	char ring_note[RING_NOTE_SIZE]; /* what the ring's size rests on; "" without one */
	struct k3_model_size size;
};

/* Make the plan. ERR_BUDGET with both numbers when it does not fit, ret is filled then too. */
int k3_memplan_make(const struct k3_memplan_want *want, struct k3_memplan *ret, struct err *err);
/* Replace the daemon's items by what it says it has. */
void k3_memplan_correct(struct k3_memplan *plan, const struct wire_welcome *welcome);
/* Bytes of the private daemon's slab. */
uint64_t k3_memplan_slab_size(const struct k3_memplan *plan);
/* --lock yes (text; NULL is auto) with a slab that may not be locked as a whole: ERR_BUDGET with
 * both numbers. The daemon asks again when it knows the slab to the byte. */
int k3_memplan_check_lock(const struct k3_memplan *plan, const char *text, struct err *err);
void k3_memplan_print(const struct k3_memplan *plan, FILE *out);
const char *k3_memplan_item_name(enum k3_memplan_item item);
/* Resident private memory of this process now: anonymous and file pages, not the shared slab. */
uint64_t k3_private_rss(void);
