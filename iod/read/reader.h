#pragma once
/*
 * Private to read*.c: the reader's state.
 *
 *   request:  submit -> waiting in its device's list -> all chunks cut -> all landed -> finished
 *             -> done(); after a failure no more is cut, and what flies lands first
 *   chunk:    free -> in flight (the back end's) -> landed -> free
 *                        ^                          |
 *                        +---- short, or EIO after a pause ----+
 */
#include <stdbool.h>
#include <stdint.h>

#include <systemd/sd-event.h>

#include "iod/read/backend.h"
#include "iod/read/device.h"
#include "iod/read/fault.h"
#include "iod/read/queue.h"
#include "iod/read/read.h"

enum { READER_PIECE = 64 << 20, READER_PIECE_MAX = 1 << 30 };

enum reader_chunk_pause {
	CHUNK_RUNS,
	CHUNK_BACKS_OFF, /* tried again when due */
	CHUNK_HELD       /* by a fault: reported when due */
};

/* One read in flight for a request; keeps its place in the queue depth while it is retried. */
struct reader_chunk {
	struct iod_op io;
	struct iod_read *req;
	struct iod_queue *queue;
	enum iod_read_class class; /* the request's */
	uint64_t want_end;         /* the file offset up to which bytes must come */
	uint32_t n_tries;
	enum reader_chunk_pause pause;
	uint64_t due_ns;
	uint64_t started_ns;
	bool is_stall_told;
	struct list link; /* in free_chunks or paused, else in none */
};

struct iod_reader {
	struct iod_devices *devices;
	struct iod_backend *backend;
	struct iod_queue *queues; /* one per device */
	struct reader_chunk *chunks;
	uint32_t n_chunks; /* most in flight, ever */
	uint32_t n_usual;  /* in flight with the depths it was made with */
	struct list free_chunks;
	struct list paused;   /* by due_ns */
	struct list finished; /* struct iod_read.link: done() is owed */
	sd_event_source *pump_source;
	sd_event_source *timer;
	bool is_delivering;
	bool needs_pump;
	bool needs_flush;
	uint64_t n_requests[IOD_READ_CLASS_N_]; /* submitted and not done */
	struct iod_reader_counts counts;
	iod_reader_watch_fn *watch; /* NULL: nobody */
	void *watch_data;
	struct iod_fault fault;
	void (*prepare)(void *data, uint8_t *at, uint64_t size); /* NULL: nobody */
	void *prepare_data;
	/* registered memory */
	uint8_t *slab;
	uint64_t slab_size;
	uint64_t piece_size;
	uint32_t n_pieces, n_registered;
	int register_error;
	/* words */
	char why_threads[160];
	char fault_text[160];
	char text[1024];
	char text_short[32];
};

/* read_tune.c. Choose depth and chunk of each of r->devices; queues[n_devices] are only set. */
int iod_reader_tune(const struct iod_reader *r, const struct iod_reader_settings *settings,
		    struct iod_queue *queues, struct err *err);
void iod_reader_describe_tuning(const struct iod_reader *r, char *text, size_t size);

/* read.c, for the others */
void iod_reader_wake(struct iod_reader *r); /* start what may start, in this turn or the next */
void iod_reader_on_landed(void *data, struct iod_op *io);
void iod_reader_on_settled(void *data);
int iod_reader_on_pump(sd_event_source *source, void *data);
int iod_reader_on_timer(sd_event_source *source, uint64_t usec, void *data);
