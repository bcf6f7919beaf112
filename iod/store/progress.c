/* See progress.h. */
#include "iod/store/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void iod_progress_init(struct iod_progress *p, bool is_quiet)
{
	memset(p, 0, sizeof(*p));
	p->is_quiet = is_quiet;
	p->is_terminal = isatty(STDERR_FILENO) == 1;
}

void iod_progress_end(struct iod_progress *p)
{
	if (p->is_line_open)
		(void)fputc('\n', stderr);
	p->is_line_open = false;
}

void iod_progress_show(struct iod_progress *p, const char *what, uint64_t done, uint64_t total)
{
	double t = now(), rate;
	uint64_t left;

	if (p->is_quiet)
		return;
	if (p->what != what) {
		iod_progress_end(p);
		p->what = what;
		p->started = t;
		p->shown = t;
		p->first = done;
		return;
	}
	if (t - p->shown < (p->is_terminal ? 0.5 : 10) && !(p->is_line_open && done == total))
		return;
	p->shown = t;
	rate = (double)(done - p->first) / (t - p->started);
	left = rate > 0 ? (uint64_t)((double)(total - done) / rate) : 0;
	(void)fprintf(stderr, "%s%s: %.1f of %.1f GB, %.0f MB/s, %llu:%02llu left%s",
		      p->is_terminal ? "\r" : "", what, (double)done / 1e9, (double)total / 1e9,
		      rate / 1e6, (unsigned long long)left / 60, (unsigned long long)left % 60,
		      p->is_terminal ? "  " : "\n");
	p->is_line_open = p->is_terminal;
}
