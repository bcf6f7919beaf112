#pragma once
/*
 * The only place with threads in the client. Work is split by outputs (rows, heads), never inside a
 * sum, so results do not depend on the number of threads. Every thread checks that subnormals are
 * kept and rounding is to nearest (order contract, rule 1).
 */
#include <stddef.h>

#include "shared/err.h"

struct k3_team;

/* Work on items [begin, end) of a run. worker: 0 ... n_threads - 1. */
typedef void k3_team_fn(void *data, size_t begin, size_t end, unsigned worker);

/* n_threads 0: physical cores this process may use (affinity, cgroup quota). ERR_UNSUPPORTED when a
 * thread flushes subnormals to zero. */
int k3_team_new(struct k3_team **ret, unsigned n_threads, struct err *err);
struct k3_team *k3_team_free(struct k3_team *t);
unsigned k3_team_n_threads(const struct k3_team *t);

/* Split [0, n) into contiguous runs whose borders are multiples of grain (>= 1) and run fn on the
 * team; returns when all are done. Small n runs on the caller alone. */
void k3_team_run(struct k3_team *t, size_t n, size_t grain, k3_team_fn *fn, void *data);
