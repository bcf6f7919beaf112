/* A manager that does not listen must not stop the daemon: results are ignored on purpose. */
#include "iod/notify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include <systemd/sd-daemon.h>

void iod_notify_ready(const char *status)
{
	(void)sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void iod_notify_status(const char *fmt, ...)
{
	char line[256];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	(void)sd_notifyf(0, "STATUS=%s", line);
}

void iod_notify_extend_timeout(uint64_t usec)
{
	(void)sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%" PRIu64, usec);
}

void iod_notify_stopping(const char *status)
{
	(void)sd_notifyf(0, "STOPPING=1\nSTATUS=%s", status);
}
