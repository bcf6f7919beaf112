#pragma once
/*
 * What the disks give, by the daemon's own reader: for each device that the files lie on a grid of
 * chunk sizes and depths, once as random aligned reads of one chunk and once one after the other.
 * Nothing is written but to memory.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"

struct source;

enum iod_bench_pattern { IOD_BENCH_RANDOM, IOD_BENCH_SEQUENTIAL, IOD_BENCH_PATTERN_N_ };
enum { IOD_BENCH_CHUNKS = 5, IOD_BENCH_DEPTHS = 5 };
extern const uint32_t iod_bench_chunks[IOD_BENCH_CHUNKS]; /* bytes */
extern const uint32_t iod_bench_depths[IOD_BENCH_DEPTHS];
extern const char *const iod_bench_patterns[IOD_BENCH_PATTERN_N_];

struct iod_bench_device {
	unsigned major, minor;
	char *path; /* owned: of the first file on it, absolute and without links */
	uint32_t n_files;
	uint64_t size; /* of all files on it */
	char *reading; /* owned: how the reader reads there */
	double rate[IOD_BENCH_PATTERN_N_][IOD_BENCH_DEPTHS][IOD_BENCH_CHUNKS]; /* 10^9 bytes a s */
	uint32_t best_depth, best_chunk;                                       /* indices */
};

struct iod_bench_want {
	const struct source *files;
	double seconds; /* for all devices together */
	/* Before each of n_all measurements; may be NULL. */
	void (*progress)(void *data, const struct iod_bench_device *d, uint32_t n_done,
			 uint32_t n_all);
	void *data;
};

/* Files, the regular ones of directories, and block devices, as the files of a source and nothing
 * else. ERR_USAGE when nothing large enough is there, ERR_IO. */
int iod_bench_open(const char *const *paths, uint32_t n_paths, struct source **ret,
		   struct err *err);
/* *ret: n devices, freed with iod_bench_free. */
int iod_bench(const struct iod_bench_want *want, struct iod_bench_device **ret, uint32_t *ret_n,
	      struct err *err);
void iod_bench_free(struct iod_bench_device *devices, uint32_t n);

/* Of the points that are within three in a hundred of the best in both patterns the one with the
 * fewest bytes in flight: a demanded expert waits behind them. */
void iod_bench_choose(struct iod_bench_device *d);
