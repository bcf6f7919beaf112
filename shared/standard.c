#include "shared/standard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

void standard_open(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		/* the wrong way round, so that its use stays an error */
		int flags = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;

		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", flags) != fd)
			_exit(1); /* nothing can be said, and nothing must be opened */
	}
}

int standard_check_stack(struct err *err)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_STACK, &limit) < 0 || limit.rlim_cur >= STANDARD_STACK_LEAST)
		return 0;
	return err_set(err, ERR_UNSUPPORTED,
		       "the stack may grow to %llu KiB, %d KiB are the least: raise the limit "
		       "(RLIMIT_STACK) with ulimit -s 8192, or LimitSTACK=8M in a unit",
		       (unsigned long long)limit.rlim_cur >> 10, STANDARD_STACK_LEAST >> 10);
}

int standard_flush(struct err *err)
{
	int failed = ferror(stdout) ? EIO : 0;

	if (fflush(stdout) != 0)
		failed = errno;
	if (failed == 0)
		return 0;
	return err_set(err, ERR_IO, "cannot write to standard output: %s", strerror(failed));
}
