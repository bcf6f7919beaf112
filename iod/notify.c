/*
 * A manager that does not listen must not stop the daemon: results are ignored on purpose, and
 * lines that come again and again are dropped where sd_notify would wait for room in its socket.
 */
#include "iod/notify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <systemd/sd-daemon.h>

#include "shared/attr.h"
#include "shared/fd.h"

/* As sd_notify, but never waits. */
static void send_if_room(const char *text)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	const char *path = getenv("NOTIFY_SOCKET");
	size_t len = path ? strlen(path) : 0;
	CLEANUP(fd_closep) int fd = -1;

	if ((len < 2 || len >= sizeof(addr.sun_path)) || (path[0] != '/' && path[0] != '@'))
		return;
	memcpy(addr.sun_path, path, len);
	if (path[0] == '@') /* an abstract name */
		addr.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	(void)sendto(fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL,
		     (const struct sockaddr *)&addr,
		     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
}

void iod_notify_ready(const char *status)
{
	(void)sd_notifyf(0, "READY=1\nSTATUS=%s", status);
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

void iod_notify_stopping(const char *status)
{
	(void)sd_notifyf(0, "STOPPING=1\nSTATUS=%s", status);
}
