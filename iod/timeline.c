#include "iod/timeline.h"

#include <stdio.h>
#include <stdlib.h>

#include "iod/daemon.h"
#include "shared/timeline.h"

/* Reads of a class that are shown side by side; more share the last track. */
enum { LANES = 48 };

struct iod_timeline {
	struct iod_daemon *daemon; /* borrowed: its owner */
	struct timeline *timeline;
	uint64_t lane_end[IOD_READ_CLASS_N_][LANES]; /* when its last span ended */
};

static const char *const class_names[] = {
	[IOD_READ_DEMAND] = "demanded read",
	[IOD_READ_TRUNK] = "trunk read",
	[IOD_READ_HINT] = "hinted read",
	[IOD_READ_BACKGROUND] = "background read",
};

/* The first lane that was free when the span began. */
static uint32_t choose_lane(struct iod_timeline *t, enum iod_read_class class, uint64_t begin)
{
	uint32_t lane = 0;

	while (lane + 1 < LANES && t->lane_end[class][lane] > begin)
		lane++;
	return lane;
}

static void add_ring(struct iod_timeline *t, uint64_t now)
{
	struct timeline_event e = {
		.name = "ring", .begin = now, .end = now, .value_name = "bytes", .is_level = true
	};
	const struct list *at;

	list_foreach (at, &t->daemon->trunk->ring)
		e.value += CONTAINER_OF(at, const struct iod_tile, ring_link)->size;
	timeline_add(t->timeline, &e);
}

static void on_read_over(void *data, const struct iod_read *r, uint32_t device)
{
	struct iod_timeline *t = data;
	struct timeline_event e = {
		.name = class_names[r->class],
		.begin = r->started_ns,
		.end = timeline_now(t->timeline),
		.id_name = "device",
		.id = device,
		.value_name = "bytes",
		.value = r->bytes_read,
	};
	uint32_t lane;

	if (r->started_ns == 0)
		return; /* nothing was read */
	lane = choose_lane(t, r->class, e.begin);
	t->lane_end[r->class][lane] = e.end;
	e.track = (uint32_t)r->class * LANES + lane;
	timeline_add(t->timeline, &e);
	if (r->class == IOD_READ_TRUNK)
		add_ring(t, e.end);
}

int iod_timeline_new(struct iod_timeline **ret, struct iod_daemon *d, const char *path, bool begins,
		     struct err *err)
{
	struct iod_timeline *t = calloc(1, sizeof(*t));
	char name[32];
	int r;

	if (!t)
		return err_set(err, ERR_NO_MEMORY, "no memory for a timeline");
	r = timeline_new(&t->timeline, path, "k3-iod", begins, err);
	if (r < 0) {
		free(t);
		return r;
	}
	t->daemon = d;
	for (uint32_t i = 0; i < IOD_READ_CLASS_N_; i++) {
		for (uint32_t lane = 0; lane < LANES; lane++) {
			(void)snprintf(name, sizeof(name), "%ss %u", class_names[i], lane + 1);
			timeline_name_track(t->timeline, i * LANES + lane, name);
		}
	}
	iod_reader_watch(d->reader, on_read_over, t);
	*ret = t;
	return 0;
}

int iod_timeline_finish(struct iod_timeline *t, struct err *err)
{
	int r;

	if (!t)
		return 0;
	r = timeline_finish(t->timeline, err);
	free(t);
	return r;
}
