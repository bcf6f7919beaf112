#pragma once
/*
 * The report of a run in a few numbers: how fast, what the expert cache was worth, how much of the
 * time went into waiting for disks, how near computing came to the speed of memory, and what would
 * make it faster. Printed after every run; the same under "summary" in run.json.
 */
#include <jansson.h>
#include <stdio.h>

#include "compute/report.h"

struct k3_summary {
	size_t n_decode;          /* steps after the first; with none, the first stands for them */
	double first_seconds;     /* the prompt, and what had to be read before it */
	double seconds_per_token; /* mean of the decode steps */
	double wait_share;        /* of their time in which the client waited for the daemon */
	double hit_rate; /* experts that were in memory when asked for; < 0: none asked for */
	/* all steps */
	uint64_t trunk_read, experts_read, rows_read;
	double read_rate; /* bytes a second of the decode steps' whole time */
	/* of a decode step, < 0 when not known (several rows, or memory not measured) */
	double weights_rate; /* weights computed on a second of computing */
	double memory_rate;  /* plain read by as many threads, measured after the run */
	const char *advice;  /* static */
};

/* memory_rate: measured, or 0. */
void k3_summary_make(const struct k3_report *r, double memory_rate, struct k3_summary *ret);
void k3_summary_print(const struct k3_summary *s, const struct k3_report *r, FILE *out);
json_t *k3_summary_json(const struct k3_summary *s);
/* Print the summary of a run that has ended; measures memory after a long one. */
void k3_summary_say(struct k3_report *r, unsigned n_threads, FILE *out);
