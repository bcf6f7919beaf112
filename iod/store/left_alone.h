#pragma once
/* A name given by mistake costs nobody a file: what stands there is replaced only when it is of the
 * kind that would be written. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"

/*
 * 0 when path may be replaced: nothing or an empty file is there, or a regular file that begins
 * with one of these magic numbers. Else ERR_USAGE; option ("--sums ", or "") and kind
 * ("checksums") are for the sentence.
 */
int iod_store_check_replaced(const char *path, const uint64_t *magics, size_t n_magics,
			     const char *option, const char *kind, struct err *err);
