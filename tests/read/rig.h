#pragma once
/*
 * What the tests of the reader stand on: files of known bytes, memory of known poison, a reader on
 * an event loop of its own. Expected bytes come from pread of the same files.
 */
#include "iod/read/read.h"
#include "shared/slab_layout.h"
#include "tests/harness/test.h"

enum { RIG_FILES_MAX = 8, RIG_SEGMENTS_MAX = 64 };
enum { RIG_POISON = 0xa5 };

struct rig {
	struct source src;
	struct source_file files[RIG_FILES_MAX];
	uint8_t *slab; /* poisoned by rig_start */
	uint64_t slab_size;
	sd_event *event;
	struct iod_reader *reader;
	struct iod_reader_settings settings;
	struct err err;
	uint64_t random;
};

/* A request and what it waits for. */
struct rig_read {
	struct iod_read read;
	struct source_segment segments[RIG_SEGMENTS_MAX];
	uint64_t dst_used; /* bytes of the pages of all segments */
	bool is_done;
	int result;
	uint32_t order; /* 1 = the first request of the rig that was done */
};

uint64_t rig_random(struct rig *rig, uint64_t below);
/* File number n_files in dir: size bytes, different in every file. */
void rig_add_file(struct rig *rig, const char *dir, uint64_t size);
/* Set faults (NULL: none) and make the reader; returns what iod_reader_new does. */
int rig_start(struct rig *rig, const char *faults);
void rig_register_all(struct rig *rig);
void rig_stop(struct rig *rig); /* reader, loop and slab */
void rig_free(struct rig *rig); /* the files too */

/* Segment of file at the next free page of the request's memory. */
void rig_add_segment(struct rig_read *r, uint32_t file, uint64_t offset, uint64_t size);
void rig_submit(struct rig *rig, struct rig_read *r, enum iod_read_class class, uint8_t *dst);
void rig_wait(struct rig *rig, struct rig_read *r);
void rig_run_for(struct rig *rig, uint64_t usec);
/* Every byte of every segment equals the file's; what lies behind the request is still poison. */
void rig_check(struct rig *rig, const struct rig_read *r);
double rig_seconds(void);
