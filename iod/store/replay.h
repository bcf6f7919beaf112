#pragma once
/*
 * A routing trace against a cache of so many slots: how much of it would have been hits. Hits and
 * asks are counted from the token `warm` of each client on.
 */
#include <stdint.h>

#include "iod/policy.h"
#include "iod/store/routing.h"

enum { IOD_REPLAY_CLIENTS = 64 };

struct iod_replay {
	uint64_t hits, asks;
	struct {
		uint64_t hits, asks;
	} clients[IOD_REPLAY_CLIENTS];
};

struct iod_replay_want {
	const struct iod_routing *routing;
	uint32_t n_slots; /* at least 1 */
	uint32_t warm;
	/* What was asked for together is evicted by none of it, as in the daemon. Without, each ask
	 * is on its own, as the published figures of LRU are counted. */
	bool keep_announced;
};

/* All: ERR_NO_MEMORY is the only failure (-ENOMEM). */
int iod_replay_policy(const struct iod_replay_want *want, const struct iod_policy_class *class,
		      struct iod_replay *ret);
/* Belady's bound: evicted is what is needed last, an expert that is needed later than all of those
 * passes by. No policy has more hits. */
int iod_replay_belady(const struct iod_replay_want *want, struct iod_replay *ret);
/* Half of the slots for the experts that the whole trace asks for most, LRU in the others. */
int iod_replay_pinned(const struct iod_replay_want *want, struct iod_replay *ret);
