#pragma once
/* Locked memory: which of it this process may have. Asked of the kernel, since what lifts the limit
 * (CAP_IPC_LOCK) counts in some namespaces only. */
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"

/* The values of --lock, in its order. */
enum memlock { MEMLOCK_AUTO, MEMLOCK_YES, MEMLOCK_NO };

/* The value of an option that has been parsed; NULL is auto. */
enum memlock memlock_parse(const char *text);
/* May size bytes be locked beside what is locked already? Nothing is allocated for the question. */
bool memlock_is_allowed(uint64_t size);
/* RLIMIT_MEMLOCK in bytes; UINT64_MAX is none. CAP_IPC_LOCK is not looked at. */
uint64_t memlock_limit(void);
/* 0 when a slab of size bytes may be locked as a whole; ERR_BUDGET with both numbers. */
int memlock_check(uint64_t size, struct err *err);
