#pragma once
/* The name of a Unix socket in a directory, which whoever made it removes at the end; but never
 * what another program has put in its place since. */
#include <sys/types.h>

#include "shared/err.h"

struct sockaddr_un;

struct iod_socket_file {
	char path[120]; /* of a socket, or of a lock beside it; "" = none */
	dev_t device;
	ino_t inode;
};

/* Before binding addr: there must be nothing, or a socket of this type that nobody serves, which is
 * removed. option: which names the path. ERR_SOCKET. */
int iod_socket_file_clear(const struct sockaddr_un *addr, int type, const char *option,
			  struct err *err);
/* path was just made. It is copied; one that is too long for a socket is none. */
void iod_socket_file_note(struct iod_socket_file *f, const char *path);
/* Remove it, if it is still the one. */
void iod_socket_file_remove(struct iod_socket_file *f);
