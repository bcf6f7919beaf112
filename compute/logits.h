#pragma once
/* What becomes of the rows of logits that choose tokens: the greedy choice, and the digest over all
 * of them that run.json and the results of --batch-file name. */
#include <stdint.h>

#include "shared/err.h"

/* Index of the highest; of equal ones the lowest. */
uint32_t k3_logits_highest(const float *logits, uint32_t n);

/* XXH3-128 over rows of float32, in the order in which they are added. */
struct k3_digest {
	void *state; /* owned */
};
enum { K3_DIGEST_HEX = 33 };

/* ERR_NO_MEMORY. */
int k3_digest_init(struct k3_digest *d, struct err *err);
void k3_digest_deinit(struct k3_digest *d);
void k3_digest_add(struct k3_digest *d, const float *logits, uint32_t n);
/* 32 hex digits and a NUL. */
void k3_digest_hex(const struct k3_digest *d, char ret[K3_DIGEST_HEX]);
