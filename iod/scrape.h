#pragma once
/*
 * The counters for a monitoring system: HTTP/1.0 on a Unix socket of its own, or on a socket that
 * the service manager passes under the name "metrics". One GET, one answer, the end. At most a few
 * connections at once and each for a few seconds, so that nobody can hold anything up.
 */
#include "shared/err.h"

struct iod_daemon;
struct iod_scrape;

/* d->scrape, when it was asked for: a socket that was passed, or --metrics. ERR_SOCKET. */
int iod_scrape_open(struct iod_daemon *d, struct err *err);
/* Once a second: there may be descriptors again. s may be NULL. */
void iod_scrape_listen_again(struct iod_scrape *s);
struct iod_scrape *iod_scrape_free(struct iod_scrape *s);
