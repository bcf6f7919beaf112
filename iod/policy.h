#pragma once
/*
 * What to evict from the expert slots. A policy sees which expert is in which slot, who asks for
 * what, and when a client begins a new step; it knows nothing of leases or of what was announced:
 * it asks may(slot) for each candidate. The daemon and k3-store replay use the same objects.
 *
 *   begin ... ask ask ask    a client's step: layers ascending
 *   touch | victim remove, then admit    each of what it asked for: a hit, or a miss
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/list.h"

struct iod_policy;

struct iod_policy_shape {
	uint32_t n_slots;
	uint32_t n_layers;
	uint32_t n_experts; /* of all layers together */
};

/* A policy's record of one client, kept in the client's. Zeroed: it has not asked yet. */
struct iod_policy_client {
	struct list link; /* next NULL or to itself: in no list */
	uint64_t at;      /* the step it is in, on the policy's clock */
	uint32_t layer;   /* of its last ask */
};

struct iod_policy_class {
	const char *name;
	/* NULL: out of memory */
	struct iod_policy *(*new)(const struct iod_policy_shape *shape);
	struct iod_policy *(*free)(struct iod_policy *p); /* takes NULL, returns NULL */
	/* The client's next ask is the first of a step. */
	void (*begin)(struct iod_policy *p, struct iod_policy_client *who);
	/* The client needs this expert. number: below n_experts, its own among those of all layers.
	 */
	void (*ask)(struct iod_policy *p, struct iod_policy_client *who, uint32_t layer,
		    uint32_t number);
	/* The client has gone, or wants no experts any more. */
	void (*leave)(struct iod_policy *p, struct iod_policy_client *who);
	/* The slot, which was empty, now holds this expert. */
	void (*admit)(struct iod_policy *p, uint32_t slot, uint32_t layer, uint32_t number);
	/* What it holds is used again, or hinted at. */
	void (*touch)(struct iod_policy *p, uint32_t slot);
	/* It holds nothing any more. */
	void (*remove)(struct iod_policy *p, uint32_t slot);
	/* The slot to evict next among those that may be; UINT32_MAX: none. Nothing changes. */
	uint32_t (*victim)(const struct iod_policy *p, bool (*may)(void *data, uint32_t slot),
			   void *data);
};

extern const struct iod_policy_class iod_policy_lru;
extern const struct iod_policy_class iod_policy_decay;

/* By name, as --policy takes it; NULL: there is none. */
const struct iod_policy_class *iod_policy_find(const char *name);
