#pragma once
/*
 * What a process did when, for people to look at: a file in the Chrome trace format, a JSON array
 * of complete events that Perfetto (ui.perfetto.dev) and chrome://tracing open. Spans are kept in
 * memory, at most TIMELINE_EVENTS_MAX of them, and written at the end. The clock is
 * CLOCK_MONOTONIC, the same for all processes of a machine, so several may add to one file one
 * after the other.
 *
 * A struct timeline of NULL means off: then a span costs a comparison.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"

enum { TIMELINE_EVENTS_MAX = 1 << 18 };

struct timeline;

struct timeline_event {
	const char *name;       /* a literal */
	uint64_t begin, end;    /* ns; of a level the same */
	const char *id_name;    /* a literal: what id is; NULL: it has none */
	const char *value_name; /* a literal, as id_name */
	uint64_t value;
	uint32_t id;
	uint32_t track; /* spans of one track nest or follow each other */
	bool is_level;  /* value from now on, drawn as a curve */
};

/* Make the file (begins: an array of its own), or add to one that another process has begun. */
int timeline_new(struct timeline **ret, const char *path, const char *process, bool begins,
		 struct err *err);
/* Write what there is; ends the array when it was begun here. Frees; takes NULL. > 0: written, but
 * spans were left out, which err says. */
int timeline_finish(struct timeline *t, struct err *err);
/* A name for a track. */
void timeline_name_track(struct timeline *t, uint32_t track, const char *name);

/* ns; 0 when off. */
uint64_t timeline_now(const struct timeline *t);
void timeline_add(struct timeline *t, const struct timeline_event *event);
/* A span of track 0 from begin until now. id_name NULL: without an id. */
void timeline_span(struct timeline *t, const char *name, uint64_t begin, const char *id_name,
		   uint32_t id);
