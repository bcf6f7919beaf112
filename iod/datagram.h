#pragma once
/* One datagram to a Unix socket that somebody else owns, sent only when there is room: the loop
 * never waits for a manager or a journal. */
#include <stddef.h>

/* path: absolute, or @name for an abstract one. 0 sent, -EAGAIN no room, -errno. */
int iod_datagram_send(const char *path, const char *text, size_t size);
