#include "iod/socket_file.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"

int iod_socket_file_clear(const struct sockaddr_un *addr, int type, const char *option,
			  struct err *err)
{
	const char *path = addr->sun_path;
	CLEANUP(fd_closep) int fd = -1;
	struct stat st;

	if (lstat(path, &st) < 0) {
		if (errno == ENOENT)
			return 0;
		return err_set(err, ERR_SOCKET, "%s %s: %s", option, path, strerror(errno));
	}
	if (!S_ISSOCK(st.st_mode))
		return err_set(err, ERR_SOCKET, "%s exists and is no socket; choose another %s",
			       path, option);
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_set(err, ERR_SOCKET, "socket: %s", fd_strerror(errno));
	/* anything but "nobody listens" (a full queue, another type) means that somebody does */
	if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 || errno != ECONNREFUSED)
		return err_set(err, ERR_SOCKET,
			       "%s is served by another program; stop it, or choose another %s",
			       path, option);
	if (unlink(path) < 0)
		return err_set(err, ERR_SOCKET, "removing the stale socket %s: %s", path,
			       strerror(errno));
	return 0;
}

void iod_socket_file_note(struct iod_socket_file *f, const char *path)
{
	struct stat st;

	*f = (struct iod_socket_file){ 0 };
	if (strlen(path) >= sizeof(f->path) || lstat(path, &st) < 0)
		return;
	memcpy(f->path, path, strlen(path) + 1);
	f->device = st.st_dev;
	f->inode = st.st_ino;
}

void iod_socket_file_remove(struct iod_socket_file *f)
{
	struct stat st;

	if (f->path[0] != '\0' && lstat(f->path, &st) == 0 && st.st_dev == f->device &&
	    st.st_ino == f->inode)
		(void)unlink(f->path);
	f->path[0] = '\0';
}
