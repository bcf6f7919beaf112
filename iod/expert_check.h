#pragma once
/* What is looked at before an expert's bytes are handed to anyone, and words for what went wrong.
 */
#include <stdint.h>

#include "iod/read/read.h"
#include "shared/catalog.h"

/* A scale byte of 255 is not a number: no released file has one, so the file is damaged.
 * ERR_EXPERT naming tensor, file and offset. slot: where the expert was read to. */
int iod_expert_check(const struct source *s, uint32_t layer, uint32_t expert, const uint8_t *slot,
		     struct err *err);
/* ERR_EXPERT for a read that failed with result. */
void iod_expert_describe_failure(const struct source *s, uint32_t layer, uint32_t expert,
				 const struct iod_read *read, int result, struct err *err);
