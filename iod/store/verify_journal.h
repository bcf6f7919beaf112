#pragma once
/*
 * How far a deep verification came, in a small text file, so that one that was stopped goes on:
 *
 *   k3-store verify 1
 *   of KEY              what is verified, as one number; another one: the file is not used
 *   done N              steps that are over
 *   bad SENTENCE        one line for each fault so far
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"

struct iod_verify_journal {
	const char *path; /* borrowed; NULL: no journal */
	uint64_t key;
	uint64_t done;
	char *bad; /* owned: sentences, a newline after each */
	uint64_t n_bad;
	int64_t saved; /* seconds */
	bool is_there; /* a file of ours */
};

/* Take up the file at path when it is of this key. ERR_USAGE when something else than a journal is
 * there. */
int iod_verify_journal_open(struct iod_verify_journal *j, const char *path, uint64_t key,
			    struct err *err);
void iod_verify_journal_deinit(struct iod_verify_journal *j);
int iod_verify_journal_add(struct iod_verify_journal *j, const char *sentence, struct err *err);
/* Save now, or when some seconds have gone by. A failure is no error: the path is given up, and
 * said by the returned -errno once. */
int iod_verify_journal_save(struct iod_verify_journal *j, int is_now);
void iod_verify_journal_remove(struct iod_verify_journal *j);
