#pragma once
/* A picture of the daemon (VIEW_REPLY, docs/protocol.md) as text for people. */
#include <stdio.h>

#include <jansson.h>

/* before: an older picture, for rates; NULL: since the daemon's start. */
void k3_stats_show(const json_t *now, const json_t *before, FILE *out);
/* The counters alone, one a line: name, value, unit, meaning. */
void k3_stats_show_counters(const json_t *now, FILE *out);
