#pragma once
/* Brief measurements that a plan's seconds stand on: how fast memory and disks are read. */
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"
#include "shared/option.h"

/* Bytes per second that n_threads (0: as a run would take) read from memory together: the best of
 * some passes over 512 MiB, or an eighth of what may be allocated. 0: could not be measured.
 */
double k3_rate_memory(unsigned n_threads);

/*
 * Bytes per second of direct reads of 512 KiB, 16 at a time, at random places of the files: at most
 * seconds long and 4 GiB. files: paths; those that cannot be read are left out. buffered: at least
 * one file took no direct read. 0: nothing could be read. ERR_NO_MEMORY.
 */
int k3_rate_disk(const char *const *files, size_t n_files, double seconds, double *ret_rate,
		 int *ret_is_buffered, struct err *err);
