#pragma once
#include <stdlib.h>
#include <time.h>

/* Seconds. */
static inline double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline int compare(const void *a, const void *b)
{
	double x = *(const double *)a, z = *(const double *)b;

	return x < z ? -1 : x > z;
}

/* Sorts v: the best is the last then. */
static inline double median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), compare);
	return v[n / 2];
}
