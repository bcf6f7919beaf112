#pragma once
/*
 * Several prompts in one run (k3 run --batch-file): read from a file, one JSON object a line,
 * carried through the model together, and answered one JSON object a line. Each gets the bits of a
 * run of its own, since no row of a step depends on the others.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "compute/engine.h"
#include "compute/logits.h"
#include "compute/text/tokenizer.h"
#include "shared/err.h"

struct k3_job {
	json_t *id;           /* owned: as the line has it, or the line's number */
	struct k3_ids tokens; /* the prompt, then what was generated */
	size_t n_prompt;
	uint32_t n_generate; /* 0: evaluate the prompt only */
	struct k3_ids stop_ids;
	/* while it runs */
	struct k3_decoder decoder;
	char *text; /* owned; NULL: none yet, or no tokenizer */
	size_t text_len;
	struct k3_digest digest;
};

struct k3_jobs {
	struct k3_job *items; /* owned */
	size_t n, capacity;
};

/* What a line may leave out, and what its values are checked against. All borrowed. */
struct k3_jobs_want {
	struct k3_tokenizer *tokenizer; /* NULL: prompts are ids */
	uint32_t n_vocab;
	uint64_t max_positions; /* of the model */
	uint64_t n_generate;
	const struct k3_ids *stop_ids;
};

/* Read all lines of path ("-": standard input). ERR_USAGE with file, line and field. */
int k3_jobs_read(struct k3_jobs *jobs, const char *path, const struct k3_jobs_want *want,
		 struct err *err);
void k3_jobs_deinit(struct k3_jobs *jobs);
/* Positions that the longest takes; tokens of all prompts. */
uint64_t k3_jobs_positions(const struct k3_jobs *jobs);
uint64_t k3_jobs_prompt_tokens(const struct k3_jobs *jobs);

struct k3_jobs_run {
	/* all borrowed */
	struct k3_jobs *jobs;
	struct k3_engine *engine;
	const struct config *config;
	const struct k3_tokenizer *tokenizer; /* NULL: no text */
	uint32_t n_places;                    /* sequences at once */
	uint32_t max_rows;                    /* of a step, >= n_places */
	bool takes_memory;                    /* of all positions, from the start (--context) */
	FILE *out;                            /* a line for each job, as it ends */
	/* what came of it */
	size_t n_done;
	uint64_t n_steps, n_generated;
};

/* Carry all jobs to their ends. After an error or an interrupt (ERR_GONE) those that had ended have
 * their lines. */
int k3_jobs_carry(struct k3_jobs_run *r, struct err *err);
