#pragma once
/* The name of a Unix socket in a directory, which whoever made it removes at the end; but never
 * what another program has put in its place since. */
#include <sys/types.h>

struct iod_socket_file {
	char path[120]; /* of a socket, or of a lock beside it; "" = none */
	dev_t device;
	ino_t inode;
};

/* path was just made. It is copied; one that is too long for a socket is none. */
void iod_socket_file_note(struct iod_socket_file *f, const char *path);
/* Remove it, if it is still the one. */
void iod_socket_file_remove(struct iod_socket_file *f);
