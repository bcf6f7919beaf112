#pragma once
/*
 * Where clients come in: a socket of our own, one that the service manager has opened for us, or an
 * already connected one (embedded mode: no listener at all). One daemon a path: the owner holds a
 * lock on PATH.lock for its life; a socket that answers is never unlinked, one that nobody serves
 * any more is replaced.
 */
#include "iod/socket_file.h"
#include "shared/err.h"

struct iod_passed;

struct iod_listener {
	int fd;      /* owned; -1 = none */
	int lock_fd; /* owned; -1 = not ours to lock */
	struct iod_socket_file file,
		lock;    /* of our own socket, and beside it; removed at the end */
	char where[128]; /* for the log */
};

void iod_listener_init(struct iod_listener *l); /* none */
/* Bind path. ERR_SOCKET: another daemon serves it, or it is no socket, or cannot be made. */
int iod_listener_bind(struct iod_listener *l, const char *path, struct err *err);
/* Take the socket that the service manager passes: > 0 taken, 0 it passes none. ERR_SOCKET when
 * what it passes is not one listening SOCK_SEQPACKET Unix socket. */
int iod_listener_inherit(struct iod_listener *l, struct iod_passed *passed, struct err *err);
/* The daemon does not come up: tell those that wait to be let in why, except where the manager will
 * start another one for them. */
void iod_listener_turn_away(const struct iod_listener *l, const struct err *err);
void iod_listener_deinit(struct iod_listener *l);
