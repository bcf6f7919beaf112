#include "iod/store/left_alone.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "shared/attr.h"
#include "shared/fd.h"

static bool is_one_of(uint64_t magic, const uint64_t *magics, size_t n_magics)
{
	for (size_t i = 0; i < n_magics; i++)
		if (magic == magics[i])
			return true;
	return false;
}

int iod_store_check_replaced(const char *path, const uint64_t *magics, size_t n_magics,
			     const char *option, const char *kind, struct err *err)
{
	CLEANUP(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;
	uint64_t magic;

	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
		return 0; /* that it cannot be written shows then */
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	    (st.st_size == 0 || (fd_pread_all(fd, &magic, sizeof(magic), 0) == 0 &&
				 is_one_of(magic, magics, n_magics))))
		return 0;
	return err_set(err, ERR_USAGE,
		       "%s%s: another file stands there, and no %s; it is left alone: give another "
		       "name, or remove it",
		       option, path, kind);
}
