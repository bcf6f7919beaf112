#pragma once
/*
 * Routed experts in slots: a cache in front of the disk. A slot is EMPTY, LOADING or READY as in
 * slab_layout.h; only this module moves it. Two clients that want one expert cost one read.
 *
 * A client's request for one expert is a ref; it is in exactly one place:
 *
 *   free -> WAITING (the client's queue, no slot yet) -> ATTACHED (the slot is LOADING) -> LEASED
 *             -> free
 *
 * A slot with ATTACHED or LEASED refs is held: it is not refilled. What is announced stays too: an
 * expert with WAITING refs goes only when its slot is all that a client below its promise can get,
 * one that is hinted at only when all other slots are held or asked for. Requests of a client are
 * served in the order in which they came, but when one has no slot to go to, those whose experts
 * are there go first; among clients in turn.
 */
#include <stdbool.h>
#include <stdint.h>

#include "iod/metrics.h"
#include "iod/policy.h"
#include "iod/quota.h"
#include "iod/read/read.h"
#include "iod/record.h"
#include "proto/wire.h"
#include "shared/list.h"
#include "shared/slab.h"

struct iod_daemon;
struct iod_kept;
struct iod_client;
struct iod_need;
struct iod_slot;

enum iod_ref_state { IOD_REF_FREE, IOD_REF_WAITING, IOD_REF_ATTACHED, IOD_REF_LEASED };

struct iod_expert_ref {
	struct list link; /* free list, the client's queue, or the slot's refs */
	struct iod_client *client;
	struct iod_slot *slot; /* ATTACHED, LEASED */
	enum iod_ref_state state;
	uint32_t layer, expert, step;
	bool is_first; /* its request started the read: the bytes are charged to it */
};

/* A client's share of this module. */
struct iod_expert_refs {
	struct iod_policy_client policy;
	struct iod_record record;
	bool has_asked;
	uint32_t last_layer, last_sweep; /* of its last request: where a step begins */
	struct iod_expert_ref *refs;     /* [window], owned */
	struct list free, waiting;
	uint32_t window;
	uint32_t n_held; /* ATTACHED and LEASED */
	uint32_t hints_layer;
	uint32_t n_hints, next_hint;
	uint16_t hints[IOD_QUOTA_HINTS]; /* of the last HINT that came, without those asked for
					    since */
};

struct iod_slot {
	struct iod_read read;
	struct iod_experts *experts; /* borrowed: its owner */
	struct list refs;            /* ATTACHED or LEASED */
	enum slab_state state;
	uint32_t index;
	uint32_t layer, expert;
	bool is_hint;    /* read because of a hint, and nobody has asked for it since */
	bool is_foreign; /* LOADING: an earlier daemon's read may land in it */
	bool is_again;   /* its bytes did not have their checksum, so it is read once more */
};

struct iod_experts {
	struct iod_daemon *daemon; /* borrowed */
	const struct iod_policy_class *policy_class;
	struct iod_policy *policy;
	struct iod_slot *slots; /* [n_slots] */
	uint32_t n_slots;
	uint32_t n_held;    /* slots with refs */
	uint32_t n_loading; /* without refs: hints, or their clients have gone */
	uint32_t n_empty;   /* no slot below next_empty is EMPTY */
	uint32_t next_empty;
	bool has_hint_under_way;
	uint32_t *slot_of;      /* [source.n_experts]: slot index + 1, 0 = in none */
	struct iod_need *needs; /* [source.n_experts] */
};

int iod_experts_new(struct iod_experts **ret, struct iod_daemon *d,
		    const struct iod_policy_class *policy_class);
struct iod_experts *iod_experts_free(struct iod_experts *x);

/* experts_keep.c: take over what an earlier daemon left in the slots; free those it was filling,
 * once its reads have landed. */
void iod_experts_adopt(struct iod_experts *x, struct iod_kept *ret);
void iod_experts_settle(struct iod_experts *x);

int iod_expert_refs_init(struct iod_client *c, uint32_t window);
void iod_expert_refs_deinit(struct iod_client *c);
/* Give back everything; the client wants no experts any more. */
void iod_experts_end(struct iod_client *c);

/* EXPERTS, EXPERT_DONE, HINT. Negative: what the client broke (ERR_PROTOCOL). */
int iod_experts_ask(struct iod_client *c, const struct wire_experts *m, struct err *err);
int iod_experts_done(struct iod_client *c, const struct wire_expert_done *m, struct err *err);
int iod_experts_hint(struct iod_client *c, const struct wire_experts *m, struct err *err);

/* Serve what waits, as far as slots and promises allow; then hints into idle time. */
void iod_experts_pump(struct iod_daemon *d);
