/*
 * A manager that does not listen must not stop the daemon: results are ignored on purpose, and
 * lines that come again and again are dropped where sd_notify would wait for room in its socket.
 */
#include "iod/notify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <systemd/sd-daemon.h>

#include "iod/datagram.h"

/* As sd_notify, but never waits. */
static void send_if_room(const char *text)
{
	const char *path = getenv("NOTIFY_SOCKET");

	if (path)
		(void)iod_datagram_send(path, text, strlen(text));
}

void iod_notify_ready(const char *status)
{
	(void)sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void iod_notify_reloading(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	/* the time is for managers that ask for a reload by a signal (Type=notify-reload) */
	(void)sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
			 (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
}

void iod_notify_status(const char *fmt, ...)
{
	char line[256] = "STATUS=";
	size_t len = strlen(line);
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(line + len, sizeof(line) - len, fmt, ap);
	va_end(ap);
	send_if_room(line);
}

void iod_notify_extend_timeout(uint64_t usec)
{
	char line[64];

	(void)snprintf(line, sizeof(line), "EXTEND_TIMEOUT_USEC=%" PRIu64, usec);
	send_if_room(line);
}

void iod_notify_store(int fd, const char *name)
{
	char line[128];

	/* FDPOLL=0: a pipe that hangs up is not dropped, that is what it is kept for */
	(void)snprintf(line, sizeof(line), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
	(void)sd_pid_notify_with_fds(0, 0, line, &fd, 1);
}

void iod_notify_unstore(const char *name)
{
	char line[320];

	(void)snprintf(line, sizeof(line), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	send_if_room(line);
}

void iod_notify_stopping(const char *status)
{
	(void)sd_notifyf(0, "STOPPING=1\nSTATUS=%s", status);
}
