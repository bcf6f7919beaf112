#pragma once
/* The daemon's counters: one field a row of proto/stats.def, counted where things happen and
 * completed when a client asks. */
#include <stdint.h>

#include "proto/wire.h"

#define STAT(name, unit, kind, sentence) uint64_t name;
struct iod_metrics {
#include "proto/stats.def"
};
#undef STAT
static_assert(sizeof(struct iod_metrics) / sizeof(uint64_t) <= PROTO_STATS_MAX,
	      "room in the reply");

struct iod_daemon;

void iod_metrics_reply(struct iod_daemon *d, struct wire_stats_reply *ret);
