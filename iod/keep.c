#include "iod/keep.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "iod/daemon.h"
#include "iod/notify.h"
#include "iod/start.h"
#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/log.h"

#define SLAB_NAME   "k3-slab"
#define PIPE_PREFIX "k3-reads-"

void iod_keep_init(struct iod_keep *k, struct iod_daemon *d)
{
	*k = (struct iod_keep){ .daemon = d, .slab_fd = -1, .own_pipe = -1 };
}

static void end_pipe(struct iod_keep_pipe *p)
{
	p->source = sd_event_source_disable_unref(p->source);
	p->fd = fd_close(p->fd);
}

void iod_keep_deinit(struct iod_keep *k)
{
	for (uint32_t i = 0; i < k->n_pipes; i++)
		end_pipe(&k->pipes[i]);
	k->n_pipes = k->n_open = 0;
	k->slab_fd = fd_close(k->slab_fd);
	k->own_pipe = fd_close(k->own_pipe);
}

/* ---- the plan's digest ----------------------------------------------------------------------- */

static int add_file(XXH3_state_t *hash, const struct source_file *f)
{
	uint64_t id[5];
	struct stat st;

	if (fstat(f->fd, &st) < 0)
		return -errno;
	id[0] = st.st_dev;
	id[1] = st.st_ino;
	id[2] = (uint64_t)st.st_size;
	id[3] = (uint64_t)st.st_mtim.tv_sec;
	id[4] = (uint64_t)st.st_mtim.tv_nsec;
	(void)XXH3_128bits_update(hash, id, sizeof(id));
	return 0;
}

static void add_plan(XXH3_state_t *hash, const struct iod_daemon *d)
{
	const struct slab_plan *p = &d->plan;
	uint64_t numbers[] = { SLAB_VERSION, p->pinned_size, p->ring_size, p->slots_size,
			       p->total_size, p->pinned_off, p->ring_off, p->slots_off,
			       p->slot_size, p->n_tiles, p->n_slots,
			       /* what nobody has checked is not taken over by who checks */
			       d->checks.sums != NULL };

	(void)XXH3_128bits_update(hash, numbers, sizeof(numbers));
	for (uint32_t i = 0; i < d->trunk->n_tiles; i++)
		(void)XXH3_128bits_update(hash, &d->trunk->tiles[i].is_pinned, sizeof(bool));
}

int iod_keep_sign_plan(struct iod_daemon *d, struct err *err)
{
	const struct source *s = d->source;
	XXH3_state_t *hash = XXH3_createState();
	XXH128_canonical_t digest;
	int r = 0;

	if (!hash)
		return err_set(err, ERR_NO_MEMORY, "no memory for a digest");
	(void)XXH3_128bits_reset(hash);
	add_plan(hash, d);
	(void)XXH3_128bits_update(hash, s->catalog_bytes, s->catalog_size);
	(void)XXH3_128bits_update(hash, s->segments, s->n_segments * sizeof(*s->segments));
	for (uint32_t i = 0; i < s->n_files && r == 0; i++)
		r = add_file(hash, &s->files[i]);
	XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(hash));
	(void)XXH3_freeState(hash);
	if (r < 0)
		return err_set(err, ERR_IO, "looking at the model's files: %s", strerror(-r));
	static_assert(sizeof(digest.digest) == sizeof(d->plan.digest), "digest size");
	memcpy(d->plan.digest, digest.digest, sizeof(d->plan.digest));
	return 0;
}

/* ---- the slab -------------------------------------------------------------------------------- */

static uint64_t pipe_id(int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 ? 0 : (uint64_t)st.st_ino;
}

/* The slab that was passed. Of two neither: the manager did not hear that the earlier one is of no
 * use, and would keep the memory of both. */
static int take_slab(struct iod_passed *p)
{
	int fd = iod_passed_take(p, SLAB_NAME, NULL);
	int other;

	while ((other = iod_passed_take(p, SLAB_NAME, NULL)) >= 0) {
		log_info("two slabs were left with the service manager; starting cold");
		iod_notify_unstore(SLAB_NAME);
		(void)fd_close(other);
		fd = fd_close(fd);
	}
	return fd;
}

void iod_keep_take(struct iod_daemon *d)
{
	struct iod_keep *k = &d->keep;
	const char *name;
	int fd;

	k->slab_fd = take_slab(&d->passed);
	while ((fd = iod_passed_take(&d->passed, PIPE_PREFIX, &name)) >= 0) {
		if (k->n_pipes == SLAB_PIPES_MAX || secure_getenv(IOD_KEEP_HASTE_VARIABLE)) {
			iod_notify_unstore(name);
			(void)fd_close(fd);
			continue;
		}
		k->pipes[k->n_pipes++] = (struct iod_keep_pipe){
			.keep = k, .fd = fd, .id = pipe_id(fd), .name = name
		};
	}
	k->n_open = k->n_pipes;
}

/* Every pipe that the slab names must be here, and there must be room for ours. */
static int check_pipes(struct iod_keep *k, struct slab_pipes *named, struct err *err)
{
	if (secure_getenv(IOD_KEEP_HASTE_VARIABLE))
		named->n = 0;
	if (named->n >= SLAB_PIPES_MAX)
		return err_set(err, ERR_STALE, "too many daemons before may still write to it");
	for (uint64_t i = 0; i < named->n; i++) {
		uint32_t at = 0;

		while (at < k->n_pipes && k->pipes[at].id != named->id[i])
			at++;
		if (at == k->n_pipes)
			return err_set(err, ERR_STALE,
				       "what tells the end of an earlier daemon's reads was not "
				       "passed with it");
	}
	return 0;
}

static int adopt(struct iod_daemon *d, int fd, struct err *err)
{
	int r = slab_adopt(&d->slab, fd, &d->plan, d->source->model_digest, err);

	if (r < 0)
		return r;
	r = check_pipes(&d->keep, slab_pipes(d->slab), err);
	if (r == 0)
		r = iod_keep_check_directory(d, err);
	if (r < 0) {
		d->slab->fd = -1; /* the caller's */
		d->slab = slab_free(d->slab);
	}
	return r;
}

int iod_keep_make_slab(struct iod_daemon *d, struct err *err)
{
	struct iod_keep *k = &d->keep;
	struct err why = { 0 };
	int fd = TAKE_FD(k->slab_fd);

	if (fd >= 0 && adopt(d, fd, &why) == 0) {
		k->is_adopted = true;
		return 0;
	}
	if (fd >= 0) {
		log_info("the slab of the daemon before is not used: %s; starting cold", why.text);
		iod_notify_unstore(SLAB_NAME);
		(void)fd_close(fd);
	}
	return slab_new(&d->slab, &d->plan, d->source->model_digest, err);
}

bool iod_keep_is_draining(const struct iod_daemon *d)
{
	return !d->keep.is_adopted && d->keep.n_open > 0;
}

/* ---- pipes ----------------------------------------------------------------------------------- */

int iod_keep_make_pipe(struct iod_daemon *d)
{
	struct slab_pipes *named = slab_pipes(d->slab);
	int fds[2];

	if (d->options->embedded_fd > 0 || !getenv("NOTIFY_SOCKET"))
		return 0;
	if (pipe2(fds, O_CLOEXEC) < 0) {
		log_warning("no pipe (%s): a restart will be cold", strerror(errno));
		return 0;
	}
	d->keep.own_pipe = fds[0];
	/* before the first read, and before the manager knows: see keep.h */
	named->id[named->n] = pipe_id(fds[0]);
	atomic_thread_fence(memory_order_release);
	named->n++;
	return fds[1];
}

/* At no moment may one that is still open be missing: a daemon can be killed at any. */
static void forget_pipe(struct slab_pipes *named, uint64_t id)
{
	uint64_t i = 0;

	while (i < named->n && named->id[i] != id)
		i++;
	if (i == named->n)
		return;
	named->id[i] = named->id[named->n - 1];
	atomic_signal_fence(memory_order_seq_cst);
	named->n--;
}

static void all_landed(struct iod_daemon *d)
{
	struct iod_keep *k = &d->keep;

	if (!k->is_adopted) {
		iod_start_go_on(d);
		return;
	}
	iod_trunk_settle(d->trunk);
	iod_experts_settle(d->experts);
	if (k->n_waiting > 0)
		log_info("the reads of the daemon before have landed: %u places are free again",
			 k->n_waiting);
	k->n_waiting = 0;
	iod_daemon_wake(d);
}

static int on_hangup(sd_event_source *source, int fd, uint32_t revents, void *data)
{
	struct iod_keep_pipe *p = data;
	struct iod_keep *k = p->keep;

	(void)source;
	(void)fd;
	(void)revents;
	/* this order: a pipe that is named must be with the manager, or the slab is lost */
	if (k->is_adopted)
		forget_pipe(slab_pipes(k->daemon->slab), p->id);
	iod_notify_unstore(p->name);
	end_pipe(p);
	if (--k->n_open == 0)
		all_landed(k->daemon);
	return 0;
}

/* ---- start ----------------------------------------------------------------------------------- */

static void take_over(struct iod_daemon *d)
{
	struct iod_keep *k = &d->keep;
	struct iod_kept tiles = { 0 }, experts = { 0 };

	iod_trunk_adopt(d->trunk, &tiles);
	iod_experts_adopt(d->experts, &experts);
	k->n_waiting = tiles.n_loading + experts.n_loading;
	log_info(
		"kept from the daemon before: %u of %u pinned tiles, %u other tiles, %u experts in "
		"%u slots; %u places wait for its reads to land",
		d->trunk->n_pinned_ready, d->trunk->n_pinned,
		tiles.n_ready - d->trunk->n_pinned_ready, experts.n_ready, d->plan.n_slots,
		k->n_waiting);
}

static void leave_with_manager(struct iod_daemon *d)
{
	struct iod_keep *k = &d->keep;
	char name[64];

	if (k->own_pipe < 0)
		return;
	if (!iod_reader_keeps_alive_fd(d->reader)) {
		log_info("io_uring registers no files here: a restart will be cold");
		return;
	}
	(void)snprintf(name, sizeof(name), PIPE_PREFIX "%" PRIu64, pipe_id(k->own_pipe));
	iod_notify_store(k->own_pipe, name);
	if (!k->is_adopted)
		iod_notify_store(d->slab->fd, SLAB_NAME);
	k->own_pipe = fd_close(k->own_pipe);
}

int iod_keep_start(struct iod_daemon *d)
{
	struct iod_keep *k = &d->keep;
	int r = 0;

	if (k->is_adopted)
		take_over(d);
	leave_with_manager(d);
	for (uint32_t i = 0; i < k->n_pipes && r >= 0; i++)
		r = sd_event_add_io(d->event, &k->pipes[i].source, k->pipes[i].fd, 0, on_hangup,
				    &k->pipes[i]); /* hanging up is always told */
	if (r >= 0 && k->n_open == 0 && k->is_adopted)
		all_landed(d);
	return r < 0 ? r : 0;
}
