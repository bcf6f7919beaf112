/* The policies by name. */
#include "iod/policy.h"

#include <stddef.h>
#include <string.h>

#include "shared/attr.h"

static const struct iod_policy_class *const classes[] = {
	&iod_policy_decay, /* the default of --policy */
	&iod_policy_lru,
};

const struct iod_policy_class *iod_policy_find(const char *name)
{
	for (size_t i = 0; i < N_ELEMENTS(classes); i++)
		if (strcmp(classes[i]->name, name) == 0)
			return classes[i];
	return NULL;
}
