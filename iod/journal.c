#include "iod/journal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "iod/client.h"
#include "iod/daemon.h"
#include "iod/datagram.h"

#define JOURNAL_SOCKET "/run/systemd/journal/socket"

static const char *const event_ids[] = {
#define EVENT(NAME, id, sentence) "MESSAGE_ID=" id,
#include "iod/events.def"
#undef EVENT
};

enum { MAX_FIELDS = 5, COMPLAINTS_A_SECOND = 10 };

/* As the journal names our standard error: device:inode. Inherited by a program whose standard
 * error went elsewhere, the variable says nothing. */
static bool is_journal_stream(int fd)
{
	const char *stream = getenv("JOURNAL_STREAM");
	uintmax_t device, inode;
	struct stat st;

	return stream && sscanf(stream, "%ju:%ju", &device, &inode) == 2 && fstat(fd, &st) == 0 &&
	       st.st_dev == device && st.st_ino == inode;
}

/* The journal's own protocol is NAME=value, a field a line; values here hold no line's end (log.c
 * sees to the text, proto/check.c to the client's name). A line for which there is no room is lost,
 * unless it is an error: the loop does not wait. */
static int send_to_journal(enum log_level level, const char *text, const char *const *fields)
{
	char packet[4096];
	size_t n;
	int r;

	n = (size_t)snprintf(packet, sizeof(packet),
			     "MESSAGE=%s\nPRIORITY=%d\nSYSLOG_IDENTIFIER=k3-iod\n", text,
			     (int)level);
	for (size_t i = 0; fields && fields[i]; i++) {
		int more = snprintf(packet + n, sizeof(packet) - n, "%s\n", fields[i]);

		if (more < 0 || n + (size_t)more >= sizeof(packet))
			break;
		n += (size_t)more;
	}
	r = iod_datagram_send(JOURNAL_SOCKET, packet, n);
	return r < 0 && level > LOG_LEVEL_ERROR ? 0 : r;
}

void iod_journal_open(void)
{
	if (is_journal_stream(STDERR_FILENO))
		log_set_sink(send_to_journal);
}

void iod_event_log(enum log_level level, enum iod_event event, const struct iod_client *c,
		   const char *fmt, ...)
{
	char buf[MAX_FIELDS - 1][64], text[2400];
	const char *fields[MAX_FIELDS + 1] = { event_ids[event] };
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (c) {
		(void)snprintf(buf[0], sizeof(buf[0]), "K3_CLIENT=%" PRIu32, c->number);
		(void)snprintf(buf[1], sizeof(buf[1]), "K3_CLIENT_NAME=%.32s", c->name);
		(void)snprintf(buf[2], sizeof(buf[2]), "K3_CLIENT_PID=%" PRIu32, c->pid);
		(void)snprintf(buf[3], sizeof(buf[3]), "K3_CLIENT_UID=%" PRIu32, c->uid);
		for (size_t i = 0; i < MAX_FIELDS - 1; i++)
			fields[i + 1] = buf[i];
	}
	log_fields(level, fields, "%s", text);
}

bool iod_daemon_may_complain(struct iod_daemon *d)
{
	uint64_t now = iod_daemon_now(d);

	if (now - d->complain_usec >= 1000000) {
		if (d->n_unprinted > 0)
			log_warning("%u more warnings were not printed", d->n_unprinted);
		d->complain_usec = now;
		d->n_complaints = d->n_unprinted = 0;
	}
	if (d->n_complaints++ >= COMPLAINTS_A_SECOND) {
		d->n_unprinted++;
		d->metrics.log_lines_dropped++;
		return false;
	}
	return true;
}

void iod_daemon_complain(struct iod_daemon *d, const char *fmt, ...)
{
	char text[1600];
	va_list ap;

	if (!iod_daemon_may_complain(d))
		return;
	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	log_warning("%s", text);
}
