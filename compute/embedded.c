/*
 * Starting a private daemon. The child gets the socket as descriptor 3, its own process group (so
 * that Ctrl-C reaches k3 alone, which then ends the connection) and a signal for the case that k3
 * dies. Its standard error is ours: what it has to say, it says itself. Called before any thread
 * exists: between fork and exec only calls that are safe there.
 */
#include "compute/embedded.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/must.h"

enum { EMBEDDED_FD = 3 };
enum { ARGS_MAX = 8 * OPTION_LIST_MAX + 40 };
enum { END_WAIT_MS = 30000 }; /* giving back a large slab takes seconds */

struct k3_embedded {
	pid_t pid;
};

struct args {
	const char *argv[ARGS_MAX + 1];
	size_t n;
	char numbers[8][32]; /* texts of the numbers */
	size_t n_numbers;
};

static void push(struct args *a, const char *name, const char *value)
{
	if (!value)
		return;
	must(a->n + 2 <= ARGS_MAX);
	a->argv[a->n++] = name;
	a->argv[a->n++] = value;
}

static void push_list(struct args *a, const char *name, const struct option_list *values)
{
	for (size_t i = 0; i < values->n; i++)
		push(a, name, values->items[i]);
}

static void push_flag(struct args *a, const char *name)
{
	must(a->n + 1 <= ARGS_MAX);
	a->argv[a->n++] = name;
}

static char *next_number(struct args *a)
{
	must(a->n_numbers < N_ELEMENTS(a->numbers));
	return a->numbers[a->n_numbers++];
}

static void push_uint(struct args *a, const char *name, uint64_t value)
{
	char *text = next_number(a);

	(void)snprintf(text, sizeof(a->numbers[0]), "%" PRIu64, value);
	push(a, name, value ? text : NULL);
}

static void push_gb(struct args *a, const char *name, double value)
{
	char *text = next_number(a);

	(void)snprintf(text, sizeof(a->numbers[0]), "%.9f", value);
	push(a, name, text);
}

static void build_args(struct args *a, const char *program, const struct k3_embedded_settings *s)
{
	a->argv[a->n++] = program;
	push(a, "--embedded-fd", "3");
	push_list(a, "--model", s->model_dirs);
	push_list(a, "--trunk", s->trunk);
	push(a, "--config", s->config);
	push(a, "--tok", s->tok);
	push(a, "--backend", s->backend);
	push(a, "--direct", s->direct);
	push(a, "--policy", s->policy);
	push(a, "--lock", s->lock);
	push(a, "--huge-pages", s->huge_pages);
	push(a, "--timeline", s->timeline);
	push_gb(a, "--trunk-gb", s->trunk_gb);
	push_gb(a, "--cache-gb", s->cache_gb);
	if (s->disk_rate > 0)
		push_gb(a, "--disk-rate", s->disk_rate);
	if (s->memory_rate > 0)
		push_gb(a, "--memory-rate", s->memory_rate);
	push(a, "--profile", s->profile);
	push_list(a, "--queue-depth", s->queue_depth);
	push_list(a, "--chunk", s->chunk);
	push_uint(a, "--tile", s->tile);
	push_uint(a, "--layers", s->layers);
	push(a, "--sums", s->sums);
	if (s->verify_reads)
		push_flag(a, "--verify-reads");
	a->argv[a->n] = NULL;
}

/* Path of the daemon; "k3-iod" alone: search PATH. Caller frees. */
static char *find_daemon(void)
{
	static const char *const beside[] = { "k3-iod", "../iod/k3-iod", "../sbin/k3-iod" };
	const char *given = getenv("K3_IOD");
	char self[4096], *path;
	ssize_t len;

	if (given && *given)
		return strdup(given);
	len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	while (len > 0 && self[len - 1] != '/')
		len--;
	for (size_t i = 0; len > 0 && i < N_ELEMENTS(beside); i++) {
		if (asprintf(&path, "%.*s%s", (int)len, self, beside[i]) < 0)
			return NULL;
		if (access(path, X_OK) == 0)
			return path;
		free(path);
	}
	return strdup("k3-iod");
}

/* In the child; never returns. report: written the errno when exec fails. */
static _Noreturn void become_daemon(const struct args *a, int socket_fd, int report, pid_t parent,
				    const cpu_set_t *cpus)
{
	sigset_t none;
	int e;

	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	(void)signal(SIGPIPE, SIG_DFL);
	(void)setpgid(0, 0);
	if (cpus)
		(void)sched_setaffinity(0, sizeof(*cpus), cpus);
	(void)prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(1); /* k3 died before the line above */
	if (report == EMBEDDED_FD)
		report = fcntl(report, F_DUPFD_CLOEXEC, EMBEDDED_FD + 1);
	if (socket_fd == EMBEDDED_FD)
		(void)fcntl(socket_fd, F_SETFD, 0);
	else if (dup2(socket_fd, EMBEDDED_FD) < 0)
		_exit(1);
	(void)execvp(a->argv[0], (char *const *)a->argv);
	e = errno;
	(void)!write(report, &e, sizeof(e));
	_exit(127);
}

static int start(struct k3_embedded *e, const struct args *a, int socket_fd, const cpu_set_t *cpus,
		 struct err *err)
{
	CLEANUP(fd_closep) int reader = -1;
	CLEANUP(fd_closep) int writer = -1;
	pid_t self = getpid();
	int pipe_fds[2], failed = 0;
	ssize_t n;

	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return err_set(err, ERR_UNSUPPORTED, "cannot make a pipe: %s", fd_strerror(errno));
	reader = pipe_fds[0];
	writer = pipe_fds[1];
	e->pid = fork();
	if (e->pid < 0)
		return err_set(err, ERR_NO_MEMORY, "cannot start a process for k3-iod: %s",
			       strerror(errno));
	if (e->pid == 0)
		become_daemon(a, socket_fd, writer, self, cpus);
	fd_closep(&writer);
	writer = -1;
	do
		n = read(reader, &failed, sizeof(failed));
	while (n < 0 && errno == EINTR);
	if (n == (ssize_t)sizeof(failed))
		return err_set(err, ERR_UNSUPPORTED,
			       "cannot start the daemon %s: %s; install k3-iod, or name it in "
			       "$K3_IOD, or use --socket with one that runs",
			       a->argv[0], strerror(failed));
	return 0;
}

int k3_embedded_start(struct k3_embedded **ret, const struct k3_embedded_settings *settings,
		      int *ret_fd, struct err *err)
{
	CLEANUP(k3_embedded_freep) struct k3_embedded *e = calloc(1, sizeof(*e));
	CLEANUP(freep) char *program = find_daemon();
	CLEANUP(fd_closep) int ours = -1;
	CLEANUP(fd_closep) int theirs = -1;
	struct args args = { 0 };
	int pair[2], r;

	if (!e || !program)
		return err_set(err, ERR_NO_MEMORY, "no memory to start k3-iod");
	build_args(&args, program, settings);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return err_set(err, ERR_SOCKET, "cannot make a pair of sockets: %s",
			       fd_strerror(errno));
	ours = pair[0];
	theirs = pair[1];
	r = start(e, &args, theirs, settings->cpus, err);
	if (r < 0)
		return r;
	*ret_fd = TAKE_FD(ours);
	*ret = TAKE(e);
	return 0;
}

/* waitpid with an end: after END_WAIT_MS the daemon is killed. */
static int wait_bounded(pid_t pid)
{
	struct timespec nap = { .tv_nsec = 1000000 };
	int status = 0;

	for (int ms = 0; ms < END_WAIT_MS; ms++) {
		pid_t got = waitpid(pid, &status, WNOHANG);

		if (got == pid)
			return status;
		if (got < 0 && errno != EINTR)
			return 0;
		(void)nanosleep(&nap, NULL);
	}
	(void)kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

int k3_embedded_finish(struct k3_embedded *e)
{
	int status = 0;

	if (!e)
		return 0;
	if (e->pid > 0)
		status = wait_bounded(e->pid);
	free(e);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void k3_embedded_freep(struct k3_embedded **e)
{
	(void)k3_embedded_finish(*e);
	*e = NULL;
}
