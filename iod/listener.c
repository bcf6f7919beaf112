#include "iod/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "iod/client.h"
#include "iod/passed.h"
#include "proto/conn.h"
#include "shared/attr.h"
#include "shared/fd.h"

void iod_listener_init(struct iod_listener *l)
{
	*l = (struct iod_listener){ .fd = -1, .lock_fd = -1 };
}

void iod_listener_deinit(struct iod_listener *l)
{
	/* the lock is still held: nobody else has bound the path, unless it was taken from us */
	iod_socket_file_remove(&l->file);
	iod_socket_file_remove(&l->lock);
	(void)fd_close(l->fd);
	(void)fd_close(l->lock_fd);
	iod_listener_init(l);
}

/* Take the lock. The holder unlinks the file when it ends, so a lock on a file that has lost its
 * name is worth nothing and taken again. */
static int take_lock(struct iod_listener *l, const char *path, struct err *err)
{
	char lock[sizeof(l->lock.path)];

	(void)snprintf(lock, sizeof(lock), "%s.lock", path);
	for (;;) {
		CLEANUP(fd_closep)
		int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		struct stat by_fd, by_name;

		if (fd < 0 && errno == ENOENT)
			return err_set(err, ERR_SOCKET,
				       "the directory of the socket %s does not exist; make it, or "
				       "choose another --socket",
				       path);
		if (fd < 0)
			return err_set(err, ERR_SOCKET, "%s: %s", lock, strerror(errno));
		if (flock(fd, LOCK_EX | LOCK_NB) < 0)
			return err_set(err, ERR_SOCKET,
				       "another k3-iod serves %s (it holds %s); use that one, stop "
				       "it, or choose another --socket",
				       path, lock);
		if (fstat(fd, &by_fd) < 0)
			return err_set(err, ERR_SOCKET, "%s: %s", lock, strerror(errno));
		if (stat(lock, &by_name) < 0 || by_fd.st_ino != by_name.st_ino ||
		    by_fd.st_dev != by_name.st_dev)
			continue;
		l->lock_fd = TAKE_FD(fd);
		iod_socket_file_note(&l->lock, lock);
		return 0;
	}
}

int iod_listener_bind(struct iod_listener *l, const char *path, struct err *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int r;

	if (path[0] == '\0' || strlen(path) >= sizeof(addr.sun_path))
		return err_set(err, ERR_SOCKET, "--socket: a path has 1 to %zu bytes",
			       sizeof(addr.sun_path) - 1);
	memcpy(addr.sun_path, path, strlen(path) + 1);
	r = take_lock(l, path, err);
	if (r < 0)
		return r;
	/* with the lock held */
	r = iod_socket_file_clear(&addr, SOCK_SEQPACKET, "--socket", err);
	if (r < 0)
		return r;
	l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0)
		return err_set(err, ERR_SOCKET, "socket: %s", strerror(errno));
	/* bind takes the mode from here: owner and group from the first moment */
	(void)fchmod(l->fd, 0660);
	if (bind(l->fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0) {
		r = err_set(err, ERR_SOCKET, "%s: %s", path, strerror(errno));
		l->fd = fd_close(l->fd);
		return r;
	}
	(void)chmod(path, 0660);
	iod_socket_file_note(&l->file, path);
	if (listen(l->fd, SOMAXCONN) < 0)
		return err_set(err, ERR_SOCKET, "%s: %s", path, strerror(errno));
	(void)snprintf(l->where, sizeof(l->where), "%s", path);
	return 0;
}

int iod_listener_inherit(struct iod_listener *l, struct iod_passed *passed, struct err *err)
{
	unsigned left;

	l->fd = iod_passed_take_listener(passed);
	left = iod_passed_left(passed);
	if (l->fd < 0 && left == 0)
		return 0;
	if (l->fd < 0 || left > 0)
		return err_set(err, ERR_SOCKET,
			       "the service manager passed %u descriptors that are not known here; "
			       "one listening Unix socket (ListenSequentialPacket=) is wanted",
			       left);
	(void)fcntl(l->fd, F_SETFL, fcntl(l->fd, F_GETFL) | O_NONBLOCK);
	(void)snprintf(l->where, sizeof(l->where), "a socket of the service manager");
	return 1;
}

void iod_listener_turn_away(const struct iod_listener *l, const struct err *err)
{
	bool is_final = l->lock_fd >= 0 || err_exit_code(err->code) == 2;
	int fd;

	if (l->fd < 0 || !is_final)
		return;
	(void)fcntl(l->fd, F_SETFL, fcntl(l->fd, F_GETFL) | O_NONBLOCK);
	while ((fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
		CLEANUP(proto_conn_freep) struct proto_conn *conn = NULL;
		struct proto_message m;

		if (proto_conn_new(&conn, fd, PROTO_D2C) < 0)
			return;
		iod_client_make_error(&m, err, WIRE_ERROR_CLOSING);
		(void)proto_conn_send(conn, &m, false);
	}
}
