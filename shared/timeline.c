#include "shared/timeline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "shared/attr.h"

enum { TRACKS_MAX = 256, TRACK_NAME_SIZE = 32 };

struct timeline {
	FILE *file;
	char *path;
	const char *process; /* a literal */
	bool begins;
	struct timeline_event *events; /* mapped: what is not used costs nothing */
	size_t n, n_dropped;
	char track_names[TRACKS_MAX][TRACK_NAME_SIZE];
};

static size_t events_size(void)
{
	return (size_t)TIMELINE_EVENTS_MAX * sizeof(struct timeline_event);
}

static struct timeline *timeline_free(struct timeline *t)
{
	if (!t)
		return NULL;
	if (t->file)
		(void)fclose(t->file);
	if (t->events)
		(void)munmap(t->events, events_size());
	free(t->path);
	free(t);
	return NULL;
}

static void timeline_freep(struct timeline **t)
{
	*t = timeline_free(*t);
}

int timeline_new(struct timeline **ret, const char *path, const char *process, bool begins,
		 struct err *err)
{
	CLEANUP(timeline_freep) struct timeline *t = calloc(1, sizeof(*t));
	void *p;

	if (!t)
		return err_set(err, ERR_NO_MEMORY, "no memory for a timeline");
	t->process = process;
	t->begins = begins;
	t->path = strdup(path);
	p = mmap(NULL, events_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p != MAP_FAILED)
		t->events = p;
	if (!t->path || !t->events)
		return err_set(err, ERR_NO_MEMORY, "no memory for a timeline");
	/* what others add must stay: everything goes to the end */
	if ((begins && truncate(path, 0) < 0 && errno != ENOENT) ||
	    !(t->file = fopen(path, "ae")) ||
	    (begins && (fputs("[\n", t->file) < 0 || fflush(t->file) != 0)))
		return err_set(err, ERR_IO, "cannot write %s: %s", path, strerror(errno));
	*ret = TAKE(t);
	return 0;
}

void timeline_name_track(struct timeline *t, uint32_t track, const char *name)
{
	if (track < TRACKS_MAX)
		(void)snprintf(t->track_names[track], TRACK_NAME_SIZE, "%s", name);
}

uint64_t timeline_now(const struct timeline *t)
{
	struct timespec now;

	if (!t)
		return 0;
	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void timeline_add(struct timeline *t, const struct timeline_event *event)
{
	if (!t)
		return;
	if (t->n == TIMELINE_EVENTS_MAX)
		t->n_dropped++;
	else
		t->events[t->n++] = *event;
}

void timeline_span(struct timeline *t, const char *name, uint64_t begin, const char *id_name,
		   uint32_t id)
{
	if (!t)
		return;
	timeline_add(t, &(struct timeline_event){ .name = name,
						  .begin = begin,
						  .end = timeline_now(t),
						  .id_name = id_name,
						  .id = id });
}

/* ---- the file: times are in microseconds there ------------------------------------------------
 */

static void write_event(const struct timeline *t, const struct timeline_event *e)
{
	FILE *f = t->file;

	(void)fprintf(f,
		      "{\"name\":\"%s\",\"ph\":\"%s\",\"pid\":%d,\"tid\":%" PRIu32
		      ",\"ts\":%" PRIu64 ".%03u",
		      e->name, e->is_level ? "C" : "X", (int)getpid(), e->track, e->begin / 1000,
		      (unsigned)(e->begin % 1000));
	if (!e->is_level)
		(void)fprintf(f, ",\"dur\":%" PRIu64 ".%03u", (e->end - e->begin) / 1000,
			      (unsigned)((e->end - e->begin) % 1000));
	(void)fputs(",\"args\":{", f);
	if (e->id_name)
		(void)fprintf(f, "\"%s\":%" PRIu32, e->id_name, e->id);
	if (e->value_name)
		(void)fprintf(f, "%s\"%s\":%" PRIu64, e->id_name ? "," : "", e->value_name,
			      e->value);
	(void)fputs("}},\n", f);
}

static void write_name(const struct timeline *t, const char *what, uint32_t track, const char *name)
{
	(void)fprintf(t->file,
		      "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%" PRIu32
		      ",\"args\":{\"name\":\"%s\"}},\n",
		      what, (int)getpid(), track, name);
}

int timeline_finish(struct timeline *t, struct err *err)
{
	CLEANUP(timeline_freep) struct timeline *owned = t;
	bool has_failed;
	FILE *f;

	if (!t)
		return 0;
	for (size_t i = 0; i < t->n; i++)
		write_event(t, &t->events[i]);
	write_name(t, "process_name", 0, t->process);
	for (uint32_t i = 0; i < TRACKS_MAX; i++)
		if (t->track_names[i][0])
			write_name(t, "thread_name", i, t->track_names[i]);
	if (t->begins) /* no comma behind the last */
		(void)fprintf(t->file,
			      "{\"name\":\"end\",\"ph\":\"M\",\"pid\":%d,\"args\":{}}\n]\n",
			      (int)getpid());
	f = TAKE(t->file);
	has_failed = ferror(f) != 0; /* a write before the last: errno is gone */
	errno = 0;
	if (fclose(f) != 0 || has_failed)
		return err_set(err, errno == ENOSPC ? ERR_SPACE : ERR_IO, "cannot write %s: %s",
			       t->path, strerror(errno ? errno : EIO));
	if (t->n_dropped == 0)
		return 0;
	(void)err_set(err, ERR_IO,
		      "%s has the first %zu spans, %zu more were left out: let the run be shorter",
		      t->path, t->n, t->n_dropped);
	return 1;
}
