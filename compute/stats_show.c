/* Members that an older or newer daemon does not have read as 0 or as nothing. */
#include "compute/stats_show.h"

#include <inttypes.h>
#include <string.h>

#include "shared/attr.h"

static double number(const json_t *o, const char *name)
{
	return json_number_value(json_object_get(o, name));
}

static const char *text(const json_t *o, const char *name)
{
	const char *s = json_string_value(json_object_get(o, name));

	return s ? s : "";
}

/* What a member grew by, a second; seconds 0: nothing. */
static double rate(const json_t *now, const json_t *before, const char *name, double seconds)
{
	return seconds > 0 ? (number(now, name) - number(before, name)) / seconds : 0;
}

static double grown(const json_t *now, const json_t *before, const char *name)
{
	return number(now, name) - number(before, name);
}

/* The entry of an array whose member key is that of like; NULL: it was not there before. */
static const json_t *find_same(const json_t *array, const char *key, const json_t *like)
{
	size_t i;
	json_t *o;

	json_array_foreach(array, i, o) if (json_equal(json_object_get(o, key),
						       json_object_get(like, key))) return o;
	return NULL;
}

static void show_devices(const json_t *now, const json_t *before, double seconds, FILE *out)
{
	static const char *const classes[] = { "demand", "trunk", "hint", "background" };
	const json_t *old = json_object_get(before, "devices");
	size_t i;
	json_t *o;

	(void)fprintf(out, "%-32s %10s %10s %10s %10s %12s\n", "disks, MB/s", "experts", "trunk",
		      "hints", "background", "in flight");
	json_array_foreach(json_object_get(now, "devices"), i, o)
	{
		const json_t *bytes = json_object_get(o, "bytes");
		const json_t *had = json_object_get(find_same(old, "path", o), "bytes");
		const char *path = text(o, "path");
		size_t len = strlen(path);

		if (len > 32)
			(void)fprintf(out, "...%s", path + len - 29);
		else
			(void)fprintf(out, "%-32s", path);
		for (size_t k = 0; k < N_ELEMENTS(classes); k++)
			(void)fprintf(out, " %10.1f", rate(bytes, had, classes[k], seconds) / 1e6);
		(void)fprintf(out, " %5.0f of %3.0f\n", number(o, "in_flight"), number(o, "depth"));
	}
}

static double percent(double part, double whole)
{
	return whole > 0 ? 100 * part / whole : 0;
}

static void show_memory(const json_t *now, const json_t *before, FILE *out)
{
	const json_t *trunk = json_object_get(now, "trunk");
	const json_t *slots = json_object_get(now, "slots");
	const json_t *c = json_object_get(now, "counters");
	const json_t *had = json_object_get(before, "counters");
	double served = grown(c, had, "experts_served"), hit = grown(c, had, "experts_hit");
	double tiles = grown(c, had, "tiles_served"), read = grown(c, had, "tiles_read");

	(void)fprintf(out,
		      "pinned %.0f of %.0f tiles, %.1f MB; ring %.1f MB, %.0f %% ready, %.0f %% "
		      "held\n",
		      number(trunk, "pinned_ready"), number(trunk, "pinned"),
		      number(trunk, "pinned_bytes") / 1e6, number(trunk, "ring_bytes") / 1e6,
		      percent(number(trunk, "ring_ready_bytes"), number(trunk, "ring_bytes")),
		      percent(number(trunk, "ring_held_bytes"), number(trunk, "ring_bytes")));
	(void)fprintf(out, "slots %.0f: %.0f ready, %.0f loading, %.0f empty, %.0f held\n",
		      number(slots, "total"), number(slots, "ready"), number(slots, "loading"),
		      number(slots, "empty"), number(slots, "held"));
	(void)fprintf(out, "[%s]  . empty - loading + ready # held\n", text(slots, "map"));
	(void)fprintf(out,
		      "experts: %.0f served, %.1f %% were there; tiles: %.0f served from the ring, "
		      "%.0f read\n",
		      served, percent(hit, served), tiles, read);
}

static void show_clients(const json_t *now, const json_t *before, double seconds, FILE *out)
{
	const json_t *old = json_object_get(before, "clients");
	double all = 0;
	size_t i;
	json_t *o;

	json_array_foreach(json_object_get(now, "clients"), i, o)
	{
		const json_t *had = find_same(old, "number", o);

		all += grown(o, had, "trunk_bytes_read") + grown(o, had, "expert_bytes_read");
	}
	(void)fprintf(out, "%-8s %-16s %8s %8s %14s %-7s %6s %8s %7s %7s\n", "client", "name",
		      "pid", "user", "tile", "sweep", "tiles", "experts", "share", "waits");
	json_array_foreach(json_object_get(now, "clients"), i, o)
	{
		const json_t *had = find_same(old, "number", o);
		double bytes =
			grown(o, had, "trunk_bytes_read") + grown(o, had, "expert_bytes_read");

		(void)fprintf(
			out,
			"%-8.0f %-16.16s %8.0f %8.0f %6.0f of %4.0f %-7s %6.0f %8.0f %5.0f %% "
			"%5.0f %%\n",
			number(o, "number"), text(o, "name"), number(o, "pid"), number(o, "uid"),
			number(o, "position"), number(o, "length"), text(o, "sharing"),
			number(o, "tile_leases"), number(o, "experts_held"), percent(bytes, all),
			percent(grown(o, had, "wait_seconds"), seconds));
	}
}

void k3_stats_show(const json_t *now, const json_t *before, FILE *out)
{
	double seconds = grown(now, before, "uptime_seconds");

	if (seconds < 0) { /* the picture before was of another daemon */
		before = NULL;
		seconds = number(now, "uptime_seconds");
	}
	(void)fprintf(out, "k3-iod %s, model %.8s, %s, up %.0f s; figures of the last %.0f s\n",
		      text(now, "version"), text(now, "model"), text(now, "backend"),
		      number(now, "uptime_seconds"), seconds);
	show_devices(now, before, seconds, out);
	show_memory(now, before, out);
	show_clients(now, before, seconds, out);
}

void k3_stats_show_counters(const json_t *now, FILE *out)
{
	static const struct {
		const char *name, *unit, *sentence;
	} counters[] = {
#define STAT(name, unit, kind, sentence) { #name, unit, sentence },
#include "proto/stats.def"
#undef STAT
	};
	const json_t *values = json_object_get(now, "counters");

	for (size_t i = 0; i < N_ELEMENTS(counters); i++)
		if (json_object_get(values, counters[i].name))
			(void)fprintf(out, "%-20s %18.0f %-8s %s\n", counters[i].name,
				      number(values, counters[i].name), counters[i].unit,
				      counters[i].sentence);
}
