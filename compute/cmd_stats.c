/*
 * k3 stats: a running daemon from outside. Each picture is a connection of its own: who looks is no
 * client, and a daemon that starts again in between is waited for.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "compute/iod_client.h"
#include "compute/options.h"
#include "compute/stats_show.h"
#include "proto/conn.h"
#include "shared/log.h"

enum { DEFAULT_SECONDS = 2, MAX_SECONDS = 3600 };

static void json_freep(json_t **o)
{
	json_decref(*o);
}

static int accept_picture(const struct proto_message *m, json_t **ret, struct err *err)
{
	if (m->type == PROTO_ERROR)
		return err_set(err, (enum err_code)m->body.error.code, "%.*s", (int)m->tail_size,
			       (const char *)m->tail);
	if (m->type == PROTO_VIEW_REPLY)
		*ret = json_loadb((const char *)m->tail, m->tail_size, 0, NULL);
	if (!*ret)
		return err_set(err, ERR_PROTOCOL, "k3-iod answered VIEW with something else");
	return 0;
}

static int fetch(const char *path, json_t **ret, struct err *err)
{
	CLEANUP(proto_conn_freep) struct proto_conn *conn = NULL;
	struct proto_message m = { .type = PROTO_VIEW };
	int fd, r;

	if (k3_iod_dial((void *)path, &fd, err) != 0)
		return -ECONNREFUSED;
	r = proto_conn_new(&conn, fd, PROTO_C2D);
	if (r < 0)
		return err_set(err, ERR_NO_MEMORY, "cannot set up a connection: %s", strerror(-r));
	/* refused before it was sent: the reason can be read all the same */
	(void)proto_conn_send(conn, &m, true);
	r = proto_conn_receive(conn, &m, true, err);
	if (r == PROTO_CLOSED)
		return err_set(err, ERR_GONE, "k3-iod closed the connection; its log says why");
	if (r < 0)
		return r;
	r = accept_picture(&m, ret, err);
	proto_message_close_fds(&m);
	return r;
}

static void show(const struct k3_options *o, const json_t *now, const json_t *before)
{
	if (o->json) {
		(void)json_dumpf(now, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
		(void)putchar('\n');
		return;
	}
	if (o->watch && isatty(STDOUT_FILENO))
		(void)fputs("\033[H\033[2J", stdout);
	k3_stats_show(now, before, stdout);
	if (!o->watch)
		k3_stats_show_counters(now, stdout);
}

/* "--watch" alone, or with the seconds as a word behind it. */
static int find_seconds(const struct k3_command_line *line, unsigned *ret, struct err *err)
{
	unsigned long n;
	char *end;

	*ret = DEFAULT_SECONDS;
	if (line->words.n == 0)
		return 0;
	n = strtoul(line->words.items[0], &end, 10);
	*ret = (unsigned)n;
	if (!line->options.watch || line->words.n > 1 || *end != '\0' || n < 1 || n > MAX_SECONDS)
		return err_set(err, ERR_USAGE,
			       "k3 stats takes --socket PATH, --json and --watch, and behind "
			       "--watch 1 to %d seconds",
			       MAX_SECONDS);
	return 0;
}

/* A daemon that was there is waited for: it is being started again, or was stopped for a while. */
static bool is_waited_for(struct err *err, bool *has_gone)
{
	if (err_class(err->code) != ERR_CLASS_RETRY)
		return false;
	if (!*has_gone)
		log_warning("%s; waiting for it", err->text);
	*has_gone = true;
	err_clear(err);
	return true;
}

static int watch(const struct k3_command_line *line, struct err *err)
{
	const struct k3_options *o = &line->options;
	CLEANUP(json_freep) json_t *before = NULL;
	bool has_gone = false, had_one = false;
	unsigned seconds;
	int r = find_seconds(line, &seconds, err);

	if (r < 0)
		return r;
	if (!o->socket)
		return err_set(err, ERR_USAGE, "k3 stats wants --socket PATH");
	for (;;) {
		struct timespec pause = { .tv_sec = seconds };
		json_t *now = NULL;

		r = fetch(o->socket, &now, err);
		if (r < 0 && !(had_one && is_waited_for(err, &has_gone)))
			return r;
		if (now) {
			/* rates over a restart would be of nothing */
			show(o, now, has_gone ? NULL : before);
			has_gone = false;
			had_one = o->watch;
			json_decref(before);
			before = now;
		}
		if (!o->watch)
			return 0;
		if (fflush(stdout) != 0)
			return err_set(err, ERR_IO, "standard output: %s", strerror(errno));
		(void)nanosleep(&pause, NULL);
	}
}

int k3_cmd_stats(const struct k3_command_line *line)
{
	struct err err = { 0 };

	if (watch(line, &err) == 0)
		return 0;
	log_error("%s", err.text);
	return err_exit_code(err.code);
}
