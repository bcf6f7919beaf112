#pragma once
/* run.json: what a run did, gathered while it runs and written at its end. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "compute/kernel/kernel.h"
#include "compute/logits.h"
#include "compute/memplan.h"
#include "compute/text/tokenizer.h"
#include "shared/err.h"

/* One step: the whole prompt, or one generated token. */
struct k3_step_report {
	double seconds, wait_seconds;
	uint64_t trunk_bytes_read, expert_bytes_read;
	uint64_t experts_resident, experts_read;
};

struct k3_report {
	const struct k3_ids *prompt, *generated; /* borrowed */
	const char *text;                        /* borrowed; NULL: no tokenizer */
	size_t text_len;
	struct k3_step_report *steps; /* owned */
	size_t n_steps, steps_capacity;
	struct k3_digest digest; /* over the rows of logits that chose a token */
	uint64_t slab_bytes;
	uint64_t client_peak_rss_bytes;   /* private pages; the slab is the daemon's */
	uint64_t daemon_peak_rss_bytes;   /* slab included */
	uint64_t row_bytes_read;          /* embedding rows, by the daemon, for all clients */
	bool has_lasting_daemon;          /* --socket */
	double memory_rate;               /* measured after a run; 0: not */
	const struct k3_memplan *plan;    /* borrowed; NULL: the run did not get so far */
	const struct kern_table *kernels; /* borrowed; NULL likewise */
	const char *backend;              /* borrowed; NULL likewise */
	int exit_code;
};

int k3_report_init(struct k3_report *r, struct err *err);
void k3_report_deinit(struct k3_report *r);
int k3_report_step(struct k3_report *r, const struct k3_step_report *step, struct err *err);
/* Note the private memory in use now. */
void k3_report_sample_memory(struct k3_report *r);
/* Can a report be written there? Asked before a long run. ERR_IO, ERR_SPACE. */
int k3_report_try(const char *path, struct err *err);
/* Write it; an existing regular file is replaced whole or not at all. ERR_IO, ERR_SPACE. */
int k3_report_write(const struct k3_report *r, const char *path, struct err *err);
/* A new array of n ids. */
json_t *k3_json_ids(const uint32_t *ids, size_t n);
