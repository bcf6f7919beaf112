#include "shared/memlock.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

enum memlock memlock_parse(const char *text)
{
	if (!text || strcmp(text, "auto") == 0)
		return MEMLOCK_AUTO;
	return strcmp(text, "yes") == 0 ? MEMLOCK_YES : MEMLOCK_NO;
}

bool memlock_is_allowed(uint64_t size)
{
	void *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	bool is_allowed;

	if (at == MAP_FAILED)
		return false;
	is_allowed = mlock2(at, size, MLOCK_ONFAULT) == 0;
	(void)munmap(at, size);
	return is_allowed;
}

uint64_t memlock_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
		return UINT64_MAX;
	return limit.rlim_cur;
}

int memlock_check(uint64_t size, struct err *err)
{
	if (memlock_is_allowed(size))
		return 0;
	return err_set(err, ERR_BUDGET,
		       "a slab of %.6f GB is to be locked, the limit of locked memory "
		       "(RLIMIT_MEMLOCK, ulimit -l) is %.6f GB: raise LimitMEMLOCK=, or give "
		       "--lock auto to run without",
		       (double)size / 1e9, (double)memlock_limit() / 1e9);
}
