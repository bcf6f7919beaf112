#pragma once
/*
 * How deep and in what pieces each device is read: the values of --queue-depth and --chunk. A plain
 * value is for every device; PATH=VALUE for the one that holds PATH (a directory or file on it, or
 * the block device itself), and goes before a plain one wherever it stands.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"
#include "shared/option.h"

enum { TUNING_ROWS_MAX = 4 * OPTION_LIST_MAX };
enum { TUNING_DEPTH_MAX = 4096, TUNING_CHUNK_MAX = 64 << 20 };

struct tuning_row {
	char *path;           /* owned */
	uint64_t depth;       /* 0: not said by this row */
	uint64_t chunk;       /* bytes; 0: the same */
	bool is_from_profile; /* then it may name a device that the model does not lie on */
};

/* What a profile says that a device delivers. */
struct tuning_rate {
	char *path;     /* owned */
	uint64_t bytes; /* a second, by sequential reads */
};

struct tuning {
	uint64_t depth, chunk; /* for every device without a row; 0: the default */
	struct tuning_row rows[TUNING_ROWS_MAX]; /* later ones win */
	uint32_t n_rows;
	struct tuning_rate rates[OPTION_LIST_MAX];
	uint32_t n_rates;
};

/*
 * Lay the options over what is there: first those of a profile, then those that were given. A plain
 * value takes the place of all rows there were. ERR_USAGE names the option and the value.
 */
int tuning_add(struct tuning *t, const struct option_list *depths, const struct option_list *chunks,
	       bool is_profile, struct err *err);
/* The profile that k3-store bench has written: a configuration file of queue-depth, chunk and rate,
 * all as PATH=VALUE. path NULL: nothing. ERR_USAGE names file and line. */
int tuning_read_profile(struct tuning *t, const char *path, struct err *err);
/* What the devices on which these files lie deliver together, bytes a second; 0: one of them has no
 * rate. */
double tuning_rate(const struct tuning *t, char *const *paths, size_t n_paths);
void tuning_deinit(struct tuning *t);
/* Bytes in flight when every device that is named, and one that is not, is busy. */
uint64_t tuning_in_flight(const struct tuning *t, uint64_t usual_depth, uint64_t usual_chunk);
