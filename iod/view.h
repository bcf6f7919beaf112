#pragma once
/* What the daemon looks like from outside: for k3 stats (VIEW, a JSON object) and for a monitoring
 * system (Prometheus text, scrape.c). Both are made from the daemon's own state when asked for. */
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"

struct iod_daemon;
struct iod_client;

/* Answer VIEW. */
int iod_view_reply(struct iod_client *c, struct err *err);
/* The counters, devices and clients as text in Prometheus' exposition format; the caller frees it.
 * NULL: no memory. */
char *iod_view_exposition(struct iod_daemon *d, size_t *ret_size);
/* Once a turn: who waits for the daemon now? */
void iod_view_note_waits(struct iod_daemon *d);
