#pragma once
/*
 * What to evict from the expert slots. A policy sees which expert is in which slot and when it is
 * used; it knows nothing of leases: it asks may(slot) for each candidate.
 */
#include <stdbool.h>
#include <stdint.h>

struct iod_policy;

struct iod_policy_class {
	const char *name;
	/* NULL: out of memory */
	struct iod_policy *(*new)(uint32_t n_slots);
	struct iod_policy *(*free)(struct iod_policy *p); /* takes NULL, returns NULL */
	/* The slot now holds this expert. */
	void (*admit)(struct iod_policy *p, uint32_t slot, uint32_t layer, uint32_t expert);
	/* It was asked for again, or hinted at. */
	void (*touch)(struct iod_policy *p, uint32_t slot);
	/* It holds nothing any more. */
	void (*remove)(struct iod_policy *p, uint32_t slot);
	/* The slot to evict next among those that may be; UINT32_MAX: none. Nothing changes. */
	uint32_t (*victim)(const struct iod_policy *p, bool (*may)(void *data, uint32_t slot),
			   void *data);
};

extern const struct iod_policy_class iod_policy_lru;
