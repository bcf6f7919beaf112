#pragma once
/*
 * The daemon's part of a timeline (shared/timeline.h): a span for each tile and expert that was
 * read, from its first chunk in flight to its landing, on tracks by class so that what flies
 * together lies side by side; and the bytes that the ring holds, as a curve.
 */
#include <stdbool.h>

#include "shared/err.h"

struct iod_daemon;
struct iod_timeline;

/* The reader and the trunk exist. begins: the file is this daemon's alone. */
int iod_timeline_new(struct iod_timeline **ret, struct iod_daemon *d, const char *path, bool begins,
		     struct err *err);
/* Write the file and free; takes NULL. */
int iod_timeline_finish(struct iod_timeline *t, struct err *err);
