#pragma once
/* Standard input, output and error of a program: called by each main(), first and last. */
#include "shared/err.h"

/* Make sure that 0, 1 and 2 are taken: else the next file or socket opened becomes "standard
 * output", and text goes into it. One that was closed gives errors as before. */
void standard_open(void);
/* Write what stdout still holds: 0, or ERR_IO when any of the output could not be written. */
int standard_flush(struct err *err);
