#include "iod/socket_file.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
