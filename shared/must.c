#include "shared/must.h"

#include <stdio.h>
#include <stdlib.h>

void must_fail(const char *expr, const char *file, int line)
{
	(void)fprintf(stderr, "<0>k3: invariant broken: %s (%s:%d); stopping\n", expr, file, line);
	abort();
}
