/*
 * The splits follow published measurements of this model: at a given total the time per token falls
 * as the share of the trunk rises, since all of the trunk is used by every token and an expert by
 * few. So the trunk comes first, and the cache gets the rest.
 */
#include "compute/preset.h"

#include <stddef.h>
#include <string.h>

#include "shared/attr.h"

static const struct k3_preset presets[] = {
	{ "laptop", 5.0, 1.4, "a machine with 16 GB: about 7 GB in all" },
	{ "desktop", 25.6, 1.4, "a machine with 48 GB: about 28 GB in all" },
	{ "workstation", 110.0, 13.0, "a machine with 160 GB: the whole trunk, some experts" },
	{ "server", 112.0, 109.0, "a machine with 256 GB: the whole trunk, many experts" },
	{ "max", -1, -1, "the whole trunk and every expert: 1.6 TB for the full model" },
	{ "auto", 0, 0, "as much as this machine and its control groups allow, trunk first" },
};

const struct k3_preset *k3_preset_find(const char *name)
{
	for (size_t i = 0; i < N_ELEMENTS(presets); i++)
		if (strcmp(presets[i].name, name) == 0)
			return &presets[i];
	return NULL;
}

void k3_preset_print(FILE *out)
{
	(void)fprintf(out, "%-12s %9s %9s  %s\n", "preset", "trunk-gb", "cache-gb", "for");
	for (size_t i = 0; i < N_ELEMENTS(presets); i++) {
		const struct k3_preset *p = &presets[i];

		(void)fprintf(out, "%-12s ", p->name);
		if (strcmp(p->name, "auto") == 0)
			(void)fprintf(out, "%9s %9s", "-", "-");
		else if (p->trunk_gb < 0)
			(void)fprintf(out, "%9s %9s", "all", "all");
		else
			(void)fprintf(out, "%9.1f %9.1f", p->trunk_gb, p->cache_gb);
		(void)fprintf(out, "  %s\n", p->sentence);
	}
}
