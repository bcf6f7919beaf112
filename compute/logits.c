#include "compute/logits.h"

#include <stdio.h>
#include <xxhash.h>

uint32_t k3_logits_highest(const float *logits, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

int k3_digest_init(struct k3_digest *d, struct err *err)
{
	d->state = XXH3_createState();
	if (!d->state || XXH3_128bits_reset(d->state) != XXH_OK)
		return err_set(err, ERR_NO_MEMORY, "no memory for a digest");
	return 0;
}

void k3_digest_deinit(struct k3_digest *d)
{
	(void)XXH3_freeState(d->state);
	d->state = NULL;
}

void k3_digest_add(struct k3_digest *d, const float *logits, uint32_t n)
{
	(void)XXH3_128bits_update(d->state, logits, n * sizeof(*logits));
}

void k3_digest_hex(const struct k3_digest *d, char ret[K3_DIGEST_HEX])
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, XXH3_128bits_digest(d->state));
	for (size_t i = 0; i < sizeof(c.digest); i++)
		(void)snprintf(ret + 2 * i, 3, "%02x", c.digest[i]);
}
