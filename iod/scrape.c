#include "iod/scrape.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>
#include <systemd/sd-event.h>

#include "iod/daemon.h"
#include "iod/view.h"
#include "shared/fd.h"
#include "shared/list.h"

enum { MAX_VISITS = 8, MAX_REQUEST = 4096, VISIT_USEC = 5 * 1000000 };

struct iod_scrape {
	struct iod_daemon *daemon; /* borrowed: its owner */
	int fd;
	sd_event_source *source;
	struct list visits;
	unsigned n_visits;
	struct iod_socket_file file; /* of our own socket */
};

struct visit {
	struct list link;
	struct iod_scrape *scrape;
	int fd;
	sd_event_source *io, *timer;
	char request[MAX_REQUEST];
	size_t n_request;
	char *answer; /* NULL: the request is not complete */
	size_t answer_size, n_sent;
};

static void end_visit(struct visit *v)
{
	list_remove(&v->link);
	v->scrape->n_visits--;
	/* there is room again */
	(void)sd_event_source_set_enabled(v->scrape->source, SD_EVENT_ON);
	(void)sd_event_source_disable_unref(v->io);
	(void)sd_event_source_disable_unref(v->timer);
	(void)fd_close(v->fd);
	free(v->answer);
	free(v);
}

static int on_time_out(sd_event_source *source, uint64_t usec, void *data)
{
	(void)source;
	(void)usec;
	end_visit(data);
	return 0;
}

/* The first line decides: GET /metrics, or GET / for who does not know the way. */
static bool is_our_get(const char *request)
{
	return strncmp(request, "GET / ", 6) == 0 || strncmp(request, "GET /metrics ", 13) == 0 ||
	       strncmp(request, "GET /metrics?", 13) == 0;
}

static int make_answer(struct visit *v, const char *status, const char *body, size_t size)
{
	int n = asprintf(&v->answer,
			 "HTTP/1.0 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
			 "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
			 status, size, body);

	if (n < 0) {
		v->answer = NULL;
		return -ENOMEM;
	}
	v->answer_size = (size_t)n;
	return sd_event_source_set_io_events(v->io, EPOLLOUT);
}

static int refuse(struct visit *v, const char *status, const char *why)
{
	return make_answer(v, status, why, strlen(why));
}

/* The request is complete. */
static int answer(struct visit *v)
{
	CLEANUP(freep) char *body = NULL;
	size_t size = 0;

	if (!is_our_get(v->request))
		return refuse(v, "404 Not Found", "GET /metrics is all there is\n");
	body = iod_view_exposition(v->scrape->daemon, &size);
	return body ? make_answer(v, "200 OK", body, size) : -ENOMEM;
}

/* > 0 the visit goes on. */
static int read_request(struct visit *v)
{
	size_t room = sizeof(v->request) - 1 - v->n_request;
	ssize_t n = recv(v->fd, v->request + v->n_request, room, MSG_DONTWAIT);
	int r;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 1 : -errno;
	if (n == 0)
		return 0;
	v->n_request += (size_t)n;
	v->request[v->n_request] = '\0';
	if (strstr(v->request, "\r\n\r\n") || strstr(v->request, "\n\n"))
		r = answer(v);
	else if (v->n_request < sizeof(v->request) - 1)
		return 1;
	else
		r = refuse(v, "431 Request Header Fields Too Large",
			   "a request has less than 4096 bytes\n");
	return r < 0 ? r : 1;
}

static int write_answer(struct visit *v)
{
	ssize_t n = send(v->fd, v->answer + v->n_sent, v->answer_size - v->n_sent,
			 MSG_DONTWAIT | MSG_NOSIGNAL);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 1 : -errno;
	v->n_sent += (size_t)n;
	if (v->n_sent < v->answer_size)
		return 1;
	(void)shutdown(v->fd, SHUT_WR);
	return sd_event_source_set_io_events(v->io, EPOLLIN) < 0 ? -ENOMEM : 1;
}

/* All is said: what the visitor still sends is taken until it goes. Closing over it would look like
 * a reset, and the answer could be lost. */
static int drain(struct visit *v)
{
	ssize_t n = recv(v->fd, v->request, sizeof(v->request), MSG_DONTWAIT);

	return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)) ? 1 : 0;
}

static int on_visit(sd_event_source *source, int fd, uint32_t revents, void *data)
{
	struct visit *v = data;
	int r;

	(void)source;
	(void)fd;
	(void)revents;
	if (!v->answer)
		r = read_request(v);
	else
		r = v->n_sent < v->answer_size ? write_answer(v) : drain(v);
	if (r <= 0)
		end_visit(v);
	return 0;
}

static int let_in(struct iod_scrape *s, int fd)
{
	struct visit *v = calloc(1, sizeof(*v));
	int r;

	if (!v) {
		(void)fd_close(fd);
		return -ENOMEM;
	}
	v->scrape = s;
	v->fd = fd;
	list_init(&v->link);
	list_push_tail(&s->visits, &v->link);
	s->n_visits++;
	r = sd_event_add_io(s->daemon->event, &v->io, fd, EPOLLIN, on_visit, v);
	if (r >= 0)
		r = sd_event_add_time_relative(s->daemon->event, &v->timer, CLOCK_MONOTONIC,
					       VISIT_USEC, 0, on_time_out, v);
	if (r < 0)
		end_visit(v);
	return r;
}

static int on_connect(sd_event_source *source, int fd, uint32_t revents, void *data)
{
	struct iod_scrape *s = data;
	int conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)revents;
	if (conn < 0) {
		if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
			return 0;
		iod_daemon_complain(
			s->daemon, "a visitor of --metrics could not be accepted: %s; trying again",
			fd_strerror(errno));
		/* it stays readable: not again and again, but when the timer says so */
		(void)sd_event_source_set_enabled(source, SD_EVENT_OFF);
		return 0;
	}
	(void)let_in(s, conn);
	/* full: those that come now wait until a visit ends */
	if (s->n_visits >= MAX_VISITS)
		(void)sd_event_source_set_enabled(source, SD_EVENT_OFF);
	return 0;
}

void iod_scrape_listen_again(struct iod_scrape *s)
{
	if (s && s->n_visits < MAX_VISITS)
		(void)sd_event_source_set_enabled(s->source, SD_EVENT_ON);
}

static int adopt(struct iod_scrape **ret, struct iod_daemon *d, int fd, struct err *err)
{
	struct iod_scrape *s = calloc(1, sizeof(*s));
	int r;

	if (!s) {
		(void)fd_close(fd);
		return err_set(err, ERR_NO_MEMORY, "no memory for the metrics socket");
	}
	s->daemon = d;
	s->fd = fd;
	list_init(&s->visits);
	if (sd_is_socket(fd, AF_UNSPEC, SOCK_STREAM, 1) <= 0) {
		(void)iod_scrape_free(s);
		return err_set(err, ERR_SOCKET,
			       "the socket called metrics is no listening stream socket "
			       "(ListenStream=)");
	}
	(void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	r = sd_event_add_io(d->event, &s->source, fd, EPOLLIN, on_connect, s);
	if (r < 0) {
		(void)iod_scrape_free(s);
		return err_set(err, ERR_SOCKET, "the metrics socket: %s", strerror(-r));
	}
	*ret = s;
	return 0;
}

static int bind_path(struct iod_scrape **ret, struct iod_daemon *d, const char *path,
		     struct err *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	CLEANUP(fd_closep) int fd = -1;
	int r;

	if (path[0] == '\0' || strlen(path) >= sizeof(addr.sun_path))
		return err_set(err, ERR_SOCKET, "--metrics: a path has 1 to %zu bytes",
			       sizeof(addr.sun_path) - 1);
	memcpy(addr.sun_path, path, strlen(path) + 1);
	/* two daemons cannot meet here: each has the lock of its clients' socket */
	r = iod_socket_file_clear(&addr, SOCK_STREAM, "--metrics", err);
	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    listen(fd, SOMAXCONN) < 0)
		return err_set(err, ERR_SOCKET, "--metrics %s: %s", path, strerror(errno));
	(void)chmod(path, 0660);
	r = adopt(ret, d, TAKE_FD(fd), err);
	if (r == 0)
		iod_socket_file_note(&(*ret)->file, path);
	return r;
}

int iod_scrape_open(struct iod_daemon *d, struct err *err)
{
	int fd = iod_passed_take(&d->passed, "metrics", NULL);

	if (fd >= 0)
		return adopt(&d->scrape, d, fd, err);
	if (!d->options->metrics)
		return 0;
	return bind_path(&d->scrape, d, d->options->metrics, err);
}

struct iod_scrape *iod_scrape_free(struct iod_scrape *s)
{
	struct list *at, *next;

	if (!s)
		return NULL;
	list_foreach_safe (at, next, &s->visits)
		end_visit(list_entry(at, struct visit, link));
	(void)sd_event_source_disable_unref(s->source);
	iod_socket_file_remove(&s->file);
	(void)fd_close(s->fd);
	free(s);
	return NULL;
}
