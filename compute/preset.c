/*
 * The splits are those that the published engine has under the same names, so that its documented
 * commands mean the same here. They are not the best ones: at a given total the time falls as the
 * share of the trunk rises, since all of it is used by every token and an expert by few (the
 * published split sweep), which is what auto does.
 */
#include "compute/preset.h"

#include <stddef.h>
#include <string.h>

#include "shared/attr.h"

static const struct k3_preset presets[] = {
	{ "laptop", 3.0, 1.0, "a machine with 8 GB: about 5 GB in all for the full model" },
	{ "desktop", 16.0, 10.0, "a machine with 32 GB: about 27 GB in all" },
	{ "workstation", 60.0, 30.0, "a machine with 96 GB: about 91 GB in all" },
	{ "server", 110.0, 13.0, "a machine with 128 GB: nearly all of the trunk" },
	{ "max", 110.0, 109.0, "a machine with 224 GB: and a large cache of experts" },
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
		else
			(void)fprintf(out, "%9.1f %9.1f", p->trunk_gb, p->cache_gb);
		(void)fprintf(out, "  %s\n", p->sentence);
	}
}
