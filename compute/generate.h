#pragma once
/*
 * Greedy generation: the prompt in chunks of rows, then a token at a time, the highest logit each
 * time and of equal ones the lowest id. Text goes out as soon as it is whole UTF-8.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "compute/engine.h"
#include "compute/report.h"
#include "compute/text/tokenizer.h"
#include "shared/err.h"

struct k3_generation {
	/* what to do; all borrowed */
	struct k3_engine *engine;
	struct k3_sequence *sequence;
	struct k3_iod *iod;
	const struct config *config;
	const struct k3_tokenizer *tokenizer; /* NULL: no text */
	const struct k3_ids *prompt;
	const uint32_t *stop_ids;
	size_t n_stop_ids;
	uint32_t n_generate; /* 0: evaluate the prompt only */
	uint32_t n_layers;
	uint32_t max_rows;
	bool recompute;
	bool verbose;
	FILE *text_out;     /* NULL: none */
	FILE *first_logits; /* row of the last prompt position; NULL: none */
	FILE *all_logits;   /* a row for every position; NULL: none */
	FILE *trace;        /* JSONL of the routing; NULL: none */
	struct k3_report *report;
	/* what came of it; owned by the caller */
	struct k3_ids *generated;
	char *text; /* heap, NULL when there is no tokenizer or no text */
	size_t text_len;
};

/* 0; or < 0 with err. What was generated before an error stays in generated and text. */
int k3_generate(struct k3_generation *g, struct err *err);
/* From here on the first Ctrl-C stops after the step that runs, the second ends the process; so do
 * SIGTERM and a terminal that goes. What the process was started to ignore (nohup, a shell's
 * background) stays ignored. */
void k3_generate_catch_interrupts(void);
bool k3_generate_was_interrupted(void);
