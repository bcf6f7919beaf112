#pragma once
/*
 * A progress line on standard error: rewritten twice a second on a terminal, a line every ten
 * seconds elsewhere.
 */
#include <stdbool.h>
#include <stdint.h>

struct iod_progress {
	const char *what; /* borrowed: of the phase now shown */
	bool is_quiet, is_terminal, is_line_open;
	double started, shown; /* seconds */
	uint64_t first;        /* bytes that were done when the phase began */
};

void iod_progress_init(struct iod_progress *p, bool is_quiet);
/* what is compared by pointer: another one begins another phase. */
void iod_progress_show(struct iod_progress *p, const char *what, uint64_t done, uint64_t total);
void iod_progress_end(struct iod_progress *p);
