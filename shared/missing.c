/* See missing.h. */
#include "shared/missing.h"

#include <stdio.h>
#include <string.h>

static void add(struct missing *m, unsigned class, uint32_t layer, uint32_t expert)
{
	if (m->count[class]++ == 0) {
		m->layer[class] = layer;
		m->expert[class] = expert;
	}
	m->total++;
	if (layer < CONFIG_LAYERS_MAX)
		m->is_layer_hit[layer] = 1;
}

void missing_add(struct missing *m, enum role role, uint32_t layer)
{
	bool is_global =
		role_layer_kind(role) == LAYER_HEAD || role_layer_kind(role) == LAYER_EMBED;

	add(m, role, is_global ? CONFIG_LAYERS_MAX : layer, 0);
}

void missing_add_expert(struct missing *m, uint32_t layer, uint32_t expert, enum expert_part part)
{
	add(m, ROLE_N_ + (unsigned)part, layer, expert);
}

bool missing_has_global(const struct missing *m)
{
	for (unsigned i = 0; i < ROLE_N_; i++)
		if (m->count[i] > 0 && (role_layer_kind((enum role)i) == LAYER_HEAD ||
					role_layer_kind((enum role)i) == LAYER_EMBED))
			return true;
	return false;
}

/* ", in layers 2, 5 to 7" */
static void append_layers(const struct missing *m, struct err *err)
{
	const char *lead = ", in layers ";
	bool is_any = false;

	for (uint32_t i = 0; i < CONFIG_LAYERS_MAX; i++) {
		uint32_t last = i;

		if (!m->is_layer_hit[i])
			continue;
		while (last + 1 < CONFIG_LAYERS_MAX && m->is_layer_hit[last + 1])
			last++;
		if (last == i)
			err_append(err, "%s%u", lead, i);
		else
			err_append(err, "%s%u to %u", lead, i, last);
		lead = ", ";
		is_any = true;
		i = last;
	}
	if (is_any)
		err_append(err, " (counted from zero)");
}

int missing_report(const struct missing *m, const char *where, const char *note, unsigned n_names,
		   struct err *err)
{
	static const char prefix[] = "language_model.";
	const char *lead = note[0] ? "; missing: " : ": ";
	unsigned n = 0;
	int r;

	if (m->total == 0)
		return 0;
	r = err_set(err, ERR_BIND, "%s: %llu tensor%s missing", where, (unsigned long long)m->total,
		    m->total == 1 ? " is" : "s are");
	append_layers(m, err);
	err_append(err, "%s", note);
	for (unsigned i = 0; i < MISSING_CLASSES; i++) {
		char name[256];

		if (m->count[i] == 0 || ++n > n_names)
			continue;
		if (i < ROLE_N_)
			(void)names_format((enum role)i, m->layer[i], name, sizeof(name));
		else
			(void)names_format_expert(m->layer[i], m->expert[i],
						  (enum expert_part)(i - ROLE_N_), name,
						  sizeof(name));
		err_append(err, "%s%s", lead, name + sizeof(prefix) - 1);
		if (m->count[i] > 1)
			err_append(err, " and %llu like it", (unsigned long long)(m->count[i] - 1));
		lead = "; ";
	}
	if (n > n_names)
		err_append(err, "; and %u more kinds", n - n_names);
	return r;
}
