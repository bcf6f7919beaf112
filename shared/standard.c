#include "shared/standard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
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

int standard_flush(struct err *err)
{
	int failed = ferror(stdout) ? EIO : 0;

	if (fflush(stdout) != 0)
		failed = errno;
	if (failed == 0)
		return 0;
	return err_set(err, ERR_IO, "cannot write to standard output: %s", strerror(failed));
}
