#pragma once
/*
 * What clients have announced of experts: requests that wait for a slot, and hints. The policy
 * hears of requests here; the counts keep announced experts in their slots (experts.c, may_evict).
 */
#include <stdint.h>

#include "proto/wire.h"

struct iod_client;
struct iod_experts;

struct iod_need {
	uint16_t asked;  /* WAITING refs; experts.c takes them off again */
	uint16_t hinted; /* in the hints of so many clients */
};

/* Its own among those of all layers. */
uint32_t iod_expert_number(const struct iod_experts *x, uint32_t layer, uint32_t expert);
/* The layer's place among those that have experts, as policies count layers. */
uint32_t iod_expert_turn(const struct iod_experts *x, uint32_t layer);
struct iod_need *iod_need_of(struct iod_experts *x, uint32_t layer, uint32_t expert);

/* The client asks for an expert that exists: its hint at it is used up. */
void iod_needs_ask(struct iod_client *c, uint32_t layer, uint32_t expert);
/* Its hints are these now, all of experts that exist. */
void iod_needs_hint(struct iod_client *c, const struct wire_experts *m);
/* It wants nothing any more. */
void iod_needs_end(struct iod_client *c);
