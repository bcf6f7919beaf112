#pragma once
/*
 * The reader: turns requests (segments of files into slab memory) into chunked reads at a queue
 * depth per device, by class, through one of two back ends. Short reads are continued, EIO retried
 * a bounded number of times. All calls come from the loop thread and none blocks; completions are
 * delivered from the loop (an sd-event source), never from inside iod_reader_submit.
 */
#include <stdbool.h>
#include <stdint.h>

#include <systemd/sd-event.h>

#include "shared/catalog.h"
#include "shared/err.h"
#include "shared/list.h"

/* In order of urgency. A demand overtakes the trunk stream, that overtakes hints, those background
 * work. */
enum iod_read_class {
	IOD_READ_DEMAND,
	IOD_READ_TRUNK,
	IOD_READ_HINT,
	IOD_READ_BACKGROUND,
	IOD_READ_CLASS_N_
};

struct iod_read {
	/* set by the caller; the struct is the caller's and must live until done */
	enum iod_read_class class;
	const struct source_segment *segments; /* borrowed */
	uint32_t n_segments;
	uint8_t *dst; /* start of the tile or slot (or any 4 KiB aligned buffer); segment.slab_off
			 is added */
	uint64_t dst_size; /* room there: nothing is written past it */
	/* result: 0, or -errno of the first segment that failed for good (all chunks have then
	 * landed: the memory is quiet). file/file_off of the failure are in the fields below. */
	void (*done)(struct iod_read *r, int result);
	void *data;
	/* filled on failure */
	uint32_t bad_file;
	uint64_t bad_offset;
	/* private to the reader */
	struct list link;
	uint32_t next_segment, n_in_flight;
	uint64_t next_offset; /* within the segment's page-aligned range */
	int result;
	bool is_queued;
	uint64_t bytes_read; /* landed so far, pages included */
	uint64_t started_ns; /* its first chunk, CLOCK_MONOTONIC; 0: none yet, or nobody watches */
};

enum iod_direct { IOD_DIRECT_AUTO, IOD_DIRECT_ON, IOD_DIRECT_OFF };
enum iod_backend_choice { IOD_BACKEND_AUTO, IOD_BACKEND_URING, IOD_BACKEND_THREADS };

struct tuning_row;

struct iod_reader_settings {
	enum iod_backend_choice backend;
	enum iod_direct direct;
	/* for each device without a row of its own */
	uint32_t queue_depth;          /* chunks in flight; 0 = the default */
	uint64_t chunk;                /* bytes, multiple of 4096; 0 = the default */
	const struct tuning_row *rows; /* borrowed during the call; later ones win */
	uint32_t n_rows;
	/* Told of memory in the slab before it is read into, chunk by chunk; NULL: nobody. */
	void (*prepare)(void *data, uint8_t *at, uint64_t size);
	void *prepare_data;
	/* A descriptor that is to stay open until no read of this process can land any more, also
	 * when it is killed: owned by the reader from a successful iod_reader_new on. 0: none. */
	int alive_fd;
};

struct iod_reader;

/*
 * Opens each file's O_DIRECT twin (probing one real aligned read per file; buffered where that
 * fails), sets up io_uring or the threads. slab/slab_size: the memory registered as fixed buffers
 * (in pieces of at most 1 GiB); registration happens in iod_reader_register_some. direct = ON: a
 * file without O_DIRECT is an error (ERR_UNSUPPORTED). backend = URING: the same.
 */
int iod_reader_new(struct iod_reader **ret, sd_event *event, const struct source *src,
		   uint8_t *slab, uint64_t slab_size, const struct iod_reader_settings *settings,
		   struct err *err);
/* What is promised of settings.alive_fd holds: the kernel took it. */
bool iod_reader_keeps_alive_fd(const struct iod_reader *r);
/* Waits for what is in flight, so that the memory is quiet; requests not done never will be. */
struct iod_reader *iod_reader_free(struct iod_reader *r);
/*
 * Other depths and chunks (the rest of settings is not looked at) for what is cut from now on; what
 * flies lands as it is. Says in changes what is different, "" when nothing is. On an error, which
 * is ERR_USAGE, everything stays as it was.
 */
int iod_reader_retune(struct iod_reader *r, const struct iod_reader_settings *settings,
		      char *changes, size_t size, struct err *err);
/* Register the next piece of the slab, when it lies in the first resident bytes, since registering
 * faults in small pages; > 0 more to do, 0 done (also when registration is impossible: reads then
 * go unregistered and iod_reader_describe says so). */
int iod_reader_register_some(struct iod_reader *r, uint64_t resident);

/* Queue a request; done() comes later, always. */
void iod_reader_submit(struct iod_reader *r, struct iod_read *req);
/* Raise the class of a queued or running request (a demand met a hint). */
void iod_reader_promote(struct iod_reader *r, struct iod_read *req, enum iod_read_class class);
/* Nothing queued or in flight in classes up to and including class. */
bool iod_reader_is_idle(const struct iod_reader *r, enum iod_read_class class);

/* fn is told of each request that is over, before its done(). */
typedef void iod_reader_watch_fn(void *data, const struct iod_read *r, uint32_t device);
void iod_reader_watch(struct iod_reader *r, iod_reader_watch_fn *fn, void *data);

/* One line for the log and WELCOME: "io_uring, O_DIRECT, registered buffers, depth 32, chunk 1
 * MiB", with the reason for each fallback. Short form fits 31 bytes. */
const char *iod_reader_describe(const struct iod_reader *r);
const char *iod_reader_describe_short(const struct iod_reader *r);

/* The next read that has been away for longer than limit_ns and was not told of before; false when
 * there is none. Counted once. */
struct iod_stall {
	uint32_t file;   /* index into the source's files */
	uint64_t offset; /* in it */
	double seconds;  /* since it was started */
};
bool iod_reader_find_stalled(struct iod_reader *r, uint64_t limit_ns, struct iod_stall *ret);

struct iod_reader_counts {
	uint64_t reads, reads_short, reads_retried, reads_failed, reads_stalled;
	uint64_t bytes[IOD_READ_CLASS_N_];
};
const struct iod_reader_counts *iod_reader_counts(const struct iod_reader *r);

/* One device: false when there are not so many. */
struct iod_reader_device {
	const char *first_path; /* of a file on it */
	uint32_t depth, chunk, n_in_flight;
	const uint64_t *bytes; /* [IOD_READ_CLASS_N_]: landed so far */
};
bool iod_reader_device(const struct iod_reader *r, uint32_t i, struct iod_reader_device *ret);
