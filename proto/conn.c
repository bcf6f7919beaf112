/*
 * Packets and descriptors in and out of the socket. Received descriptors are closed on every path
 * on which the caller does not get them.
 */
#include "proto/conn.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "proto/table.h"
#include "shared/attr.h"
#include "shared/fd.h"

/* Room in the socket: a window of a few hundred messages, and some rows, on their way. */
enum { SOCKET_BUFFER = 1 << 20 };

struct proto_conn {
	int fd; /* owned */
	enum proto_direction own;
	size_t buf_size;
	uint8_t buf[]; /* the packet received last */
};

/* The plain options are capped by sysctl; the forcing ones work for a privileged daemon. */
static void set_buffers(int fd)
{
	int size = SOCKET_BUFFER;

	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) < 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

int proto_conn_new(struct proto_conn **ret, int fd, enum proto_direction own)
{
	size_t buf_size = proto_packet_max(own == PROTO_C2D ? PROTO_D2C : PROTO_C2D);
	struct proto_conn *c = malloc(sizeof(*c) + buf_size);

	if (!c) {
		(void)fd_close(fd);
		return -ENOMEM;
	}
	c->fd = fd;
	c->own = own;
	c->buf_size = buf_size;
	set_buffers(fd);
	*ret = c;
	return 0;
}

struct proto_conn *proto_conn_free(struct proto_conn *c)
{
	if (c) {
		(void)fd_close(c->fd);
		free(c);
	}
	return NULL;
}

void proto_conn_freep(struct proto_conn **c)
{
	*c = proto_conn_free(*c);
}

int proto_conn_fd(const struct proto_conn *c)
{
	return c->fd;
}

static int wait_for(int fd, short events)
{
	struct pollfd p = { .fd = fd, .events = events };

	if (poll(&p, 1, -1) < 0 && errno != EINTR)
		return -errno;
	return 0;
}

union control {
	char bytes[CMSG_SPACE(sizeof(int) * PROTO_FDS_MAX)];
	struct cmsghdr align;
};

static void put_fds(struct msghdr *msg, union control *control, const struct proto_message *m)
{
	struct cmsghdr *cmsg;

	memset(control, 0, sizeof(*control));
	msg->msg_control = control->bytes;
	msg->msg_controllen = CMSG_SPACE(sizeof(int) * m->n_fds);
	cmsg = CMSG_FIRSTHDR(msg);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int) * m->n_fds);
	memcpy(CMSG_DATA(cmsg), m->fds, sizeof(int) * m->n_fds);
}

int proto_conn_send(struct proto_conn *c, const struct proto_message *m, bool wait)
{
	struct wire_header h = {
		.size = (uint32_t)proto_packet_size(m),
		.type = (uint16_t)m->type,
	};
	struct iovec iov[3] = {
		{ .iov_base = &h, .iov_len = sizeof(h) },
		{ .iov_base = (void *)&m->body, .iov_len = proto_struct_size(m->type) },
		{ .iov_base = (void *)m->tail, .iov_len = m->tail_size },
	};
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = m->tail_size > 0 ? 3 : 2 };
	union control control;

	if (proto_direction(m->type) != c->own || iov[1].iov_len == 0 || m->n_fds > PROTO_FDS_MAX)
		return -EINVAL;
	if (m->n_fds > 0)
		put_fds(&msg, &control, m);
	for (;;) {
		ssize_t n = sendmsg(c->fd, &msg, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));

		if (n >= 0)
			return 0;
		if (errno == EINTR)
			continue;
		if (errno == EPIPE || errno == ECONNRESET)
			return PROTO_CLOSED;
		if (errno != EAGAIN)
			return -errno;
		if (!wait)
			return PROTO_AGAIN;
		if (wait_for(c->fd, POLLOUT) < 0)
			return -errno;
	}
}

/* Collect what came along; returns how many, also those that found no place and were closed. */
static uint32_t get_fds(struct msghdr *msg, int fds[PROTO_FDS_MAX])
{
	uint32_t n_fds = 0;

	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		size_t n;

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(int));
			if (n_fds < PROTO_FDS_MAX)
				fds[n_fds] = fd;
			else
				(void)fd_close(fd);
			n_fds++;
		}
	}
	return n_fds;
}

static ssize_t receive_packet(struct proto_conn *c, struct msghdr *msg, bool wait)
{
	bool was_reset = false;

	for (;;) {
		ssize_t n = recvmsg(c->fd, msg, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));

		if (n >= 0)
			return n;
		if (errno == EINTR)
			continue;
		/* a peer that closed with our messages unread: told once, and what it had sent
		 * before, an ERROR perhaps, is still there */
		if (errno == ECONNRESET && !was_reset) {
			was_reset = true;
			continue;
		}
		if (errno != EAGAIN || !wait)
			return -errno;
		if (wait_for(c->fd, POLLIN) < 0)
			return -errno;
	}
}

int proto_conn_receive(struct proto_conn *c, struct proto_message *ret, bool wait, struct err *err)
{
	struct iovec iov = { .iov_base = c->buf, .iov_len = c->buf_size };
	union control control;
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct proto_message m = { 0 };
	int fds[PROTO_FDS_MAX] = { -1, -1, -1, -1, -1 };
	uint32_t n_fds;
	ssize_t n;
	int r;

	static_assert(PROTO_FDS_MAX == 5, "one initialiser each");
	msg.msg_control = control.bytes;
	msg.msg_controllen = sizeof(control.bytes);
	n = receive_packet(c, &msg, wait);
	if (n == -EAGAIN)
		return PROTO_AGAIN;
	/* an empty packet looks like the end and is treated so: nobody of ours sends one */
	if (n == 0 || n == -ECONNRESET)
		r = PROTO_CLOSED;
	else if (n < 0)
		return err_set(err, ERR_IO, "receiving from the socket: %s", strerror((int)-n));
	else
		r = 0;
	n_fds = get_fds(&msg, fds);
	if (r == 0 && (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
		r = err_set(err, ERR_PROTOCOL, "a packet or its descriptors are too large");
	if (r == 0)
		r = proto_check(c->buf, (size_t)n, n_fds,
				c->own == PROTO_C2D ? PROTO_D2C : PROTO_C2D, &m, err);
	memcpy(m.fds, fds, sizeof(fds));
	m.n_fds = n_fds < PROTO_FDS_MAX ? n_fds : PROTO_FDS_MAX;
	if (r != 0) {
		proto_message_close_fds(&m);
		return r;
	}
	*ret = m;
	return 0;
}

void proto_message_close_fds(struct proto_message *m)
{
	for (size_t i = 0; i < m->n_fds; i++)
		m->fds[i] = fd_close(m->fds[i]);
	m->n_fds = 0;
}
