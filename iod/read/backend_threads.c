/*
 * Reads by a pool of threads that pread, for kernels and sandboxes without io_uring. The threads
 * touch operations and the memory they fill, nothing else: two lists under one mutex lead in and
 * out, and an eventfd wakes the loop. Signals stay with the loop thread.
 */
#include "iod/read/backend.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/must.h"

enum { THREADS_MAX = 128 };
enum { STACK_SIZE = 256 << 10 };

struct threads {
	struct iod_backend backend;
	struct iod_backend_setup setup;
	sd_event_source *source;
	int wake_fd;
	int *fds;
	pthread_t threads[THREADS_MAX];
	uint32_t n_threads;
	struct list queued; /* loop thread only: not yet flushed */
	uint32_t n_queued;
	pthread_mutex_t lock; /* guards the rest */
	pthread_cond_t has_work;
	struct list todo;   /* struct iod_op.link */
	struct list landed; /* the same, with a result */
	bool is_stopping;
};

static struct threads *threads_of(struct iod_backend *b)
{
	return CONTAINER_OF(b, struct threads, backend);
}

static int32_t read_once(int fd, const struct iod_op *op)
{
	ssize_t n;

	do {
		n = pread(fd, op->dst, op->size, (off_t)op->offset);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : (int32_t)n;
}

static void *thread_main(void *data)
{
	struct threads *t = data;

	(void)pthread_mutex_lock(&t->lock);
	for (;;) {
		struct iod_op *op;
		int32_t result;
		bool was_empty;

		while (list_is_empty(&t->todo) && !t->is_stopping)
			(void)pthread_cond_wait(&t->has_work, &t->lock);
		if (t->is_stopping)
			break;
		op = list_entry(t->todo.next, struct iod_op, link);
		list_remove(&op->link);
		(void)pthread_mutex_unlock(&t->lock);
		result = read_once(t->fds[op->file], op);
		(void)pthread_mutex_lock(&t->lock);
		op->result = result;
		was_empty = list_is_empty(&t->landed);
		list_push_tail(&t->landed, &op->link);
		/* The counter cannot overflow: at most one write per emptying of the list. */
		if (was_empty)
			must(eventfd_write(t->wake_fd, 1) == 0);
	}
	(void)pthread_mutex_unlock(&t->lock);
	return NULL;
}

static int on_wake(sd_event_source *source, int fd, uint32_t revents, void *data)
{
	struct threads *t = data;
	struct list landed;
	eventfd_t n;
	bool is_any = false;

	(void)source;
	(void)revents;
	(void)eventfd_read(fd, &n);
	list_init(&landed);
	(void)pthread_mutex_lock(&t->lock);
	if (!list_is_empty(&t->landed)) {
		list_push_head(&t->landed, &landed);
		list_remove(&t->landed);
	}
	(void)pthread_mutex_unlock(&t->lock);
	while (!list_is_empty(&landed)) {
		struct iod_op *op = list_entry(landed.next, struct iod_op, link);

		list_remove(&op->link);
		t->setup.landed(t->setup.data, op);
		is_any = true;
	}
	if (is_any)
		t->setup.settled(t->setup.data);
	return 0;
}

static struct iod_backend *threads_free(struct iod_backend *b)
{
	struct threads *t;

	if (!b)
		return NULL;
	t = threads_of(b);
	(void)sd_event_source_disable_unref(t->source);
	(void)pthread_mutex_lock(&t->lock);
	t->is_stopping = true;
	(void)pthread_cond_broadcast(&t->has_work);
	(void)pthread_mutex_unlock(&t->lock);
	for (uint32_t i = 0; i < t->n_threads; i++)
		(void)pthread_join(t->threads[i], NULL);
	(void)pthread_cond_destroy(&t->has_work);
	(void)pthread_mutex_destroy(&t->lock);
	fd_close(t->wake_fd);
	if (t->backend.keeps_alive_fd)
		fd_close(t->setup.alive_fd);
	free(t->fds);
	free(t);
	return NULL;
}

static void threads_queue(struct iod_backend *b, struct iod_op *op)
{
	struct threads *t = threads_of(b);

	list_push_tail(&t->queued, &op->link);
	t->n_queued++;
}

static int threads_flush(struct iod_backend *b)
{
	struct threads *t = threads_of(b);

	if (t->n_queued == 0)
		return 0;
	(void)pthread_mutex_lock(&t->lock);
	while (!list_is_empty(&t->queued)) {
		struct list *node = t->queued.next;

		list_remove(node);
		list_push_tail(&t->todo, node);
		(void)pthread_cond_signal(&t->has_work);
	}
	(void)pthread_mutex_unlock(&t->lock);
	t->n_queued = 0;
	return 0;
}

/* Up to n threads in all; those that are there stay. */
static int start_threads(struct threads *t, uint32_t n)
{
	sigset_t all, before;
	pthread_attr_t attr;
	int r;

	r = pthread_attr_init(&attr);
	if (r != 0)
		return -r;
	(void)pthread_attr_setstacksize(&attr, STACK_SIZE);
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	while (t->n_threads < n && t->n_threads < THREADS_MAX) {
		r = pthread_create(&t->threads[t->n_threads], &attr, thread_main, t);
		if (r != 0)
			break;
		t->n_threads++;
	}
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	(void)pthread_attr_destroy(&attr);
	/* Fewer threads than wished only read with less depth. */
	return t->n_threads > 0 ? 0 : -r;
}

static void threads_set_depth(struct iod_backend *b, uint32_t n)
{
	(void)start_threads(threads_of(b), n);
}

static const struct iod_backend_class threads_class = {
	.name = "threads",
	.free = threads_free,
	.queue = threads_queue,
	.flush = threads_flush,
	.set_depth = threads_set_depth,
};

static int threads_init(struct threads *t)
{
	int r;

	t->fds = malloc((t->setup.n_fds + 1) * sizeof(*t->fds));
	if (!t->fds)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->setup.n_fds; i++)
		t->fds[i] = t->setup.fds[i];
	t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (t->wake_fd < 0)
		return -errno;
	r = sd_event_add_io(t->setup.event, &t->source, t->wake_fd, EPOLLIN, on_wake, t);
	if (r < 0)
		return r;
	return start_threads(t, t->setup.n_usual);
}

int iod_backend_threads_new(struct iod_backend **ret, const struct iod_backend_setup *setup)
{
	struct threads *t;
	int r;

	must(setup->n_ops > 0 && setup->n_ops <= IOD_OPS_MAX);
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->backend.class = &threads_class;
	t->setup = *setup;
	t->wake_fd = -1;
	list_init(&t->queued);
	list_init(&t->todo);
	list_init(&t->landed);
	(void)pthread_mutex_init(&t->lock, NULL);
	(void)pthread_cond_init(&t->has_work, NULL);
	r = threads_init(t);
	if (r < 0) {
		threads_free(&t->backend);
		return r;
	}
	/* threads end with their process, each after the read that it is in: any descriptor does */
	t->backend.keeps_alive_fd = setup->alive_fd > 0;
	*ret = &t->backend;
	return 0;
}
