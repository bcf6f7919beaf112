#pragma once
/*
 * Structured log lines. Under the journal (standard error is its stream) lines go there with
 * fields: MESSAGE_ID of events.def, and for a client K3_CLIENT, K3_CLIENT_NAME, K3_CLIENT_PID,
 * K3_CLIENT_UID. Elsewhere the line alone goes to standard error.
 */
#include <stdbool.h>

#include "shared/attr.h"
#include "shared/log.h"

#define EVENT(NAME, id, sentence) IOD_EVENT_##NAME,
enum iod_event {
#include "iod/events.def"
};
#undef EVENT

struct iod_client;
struct iod_daemon;

/* Once in main, after log_init. */
void iod_journal_open(void);
/* One line. c: the client that it is about, or NULL. */
void iod_event_log(enum log_level level, enum iod_event event, const struct iod_client *c,
		   const char *fmt, ...) PRINTF_LIKE(4, 5);

/* A warning, at most a few a second. The second form is for those that say more than a line: may
 * one be printed now? */
void iod_daemon_complain(struct iod_daemon *d, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool iod_daemon_may_complain(struct iod_daemon *d);
