#pragma once
/* What each main() calls first and last: standard input, output and error, and the stack. */
#include "shared/err.h"

/* Make sure that 0, 1 and 2 are taken: else the next file or socket opened becomes "standard
 * output", and text goes into it. One that was closed gives errors as before. */
void standard_open(void);
/* Every thread's stack: for a kernel (KERN_STACK) and its callers, or the deepest JSON that is
 * read, some 200 KB. */
enum { STANDARD_STACK_LEAST = 1024 << 10 };
/* 0, or ERR_UNSUPPORTED when the limit of the stack (ulimit -s) is below that: a step would end in
 * a crash. */
int standard_check_stack(struct err *err);
/* Write what stdout still holds: 0, or ERR_IO when any of the output could not be written. */
int standard_flush(struct err *err);
