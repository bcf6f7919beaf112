#pragma once
/* What the daemon tells its service manager. Without one (NOTIFY_SOCKET unset) nothing happens. */
#include <stdint.h>

#include "shared/attr.h"

/* Up: with a status line. */
void iod_notify_ready(const char *status);
/* A reload begins; iod_notify_ready ends it. */
void iod_notify_reloading(void);
/* One line, shown by systemctl status. */
void iod_notify_status(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* Still starting (or stopping): give us usec more, counted from now. */
void iod_notify_extend_timeout(uint64_t usec);
/* Leave a descriptor with the manager, to be passed to the next start; take it back. */
void iod_notify_store(int fd, const char *name);
void iod_notify_unstore(const char *name);
void iod_notify_stopping(const char *status);
