/*
 * O_DIRECT fails or lies on some file systems, so what statx claims is not believed: the last page
 * of each file is read both ways and compared. The last page, since a direct read there also shows
 * that the end of the file may lie inside a page.
 */
#include "iod/read/device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "iod/read/backend.h"
#include "iod/read/change.h"
#include "shared/attr.h"
#include "shared/fd.h"

/* NULL, or why pages cannot be the unit of direct reads here. */
static const char *alignment_objection(int fd)
{
#ifdef STATX_DIOALIGN
	struct statx stx;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) < 0)
		return NULL;
	if (!(stx.stx_mask & STATX_DIOALIGN))
		return NULL;
	if (stx.stx_dio_offset_align == 0)
		return "the file system has no direct reads for it";
	if (IOD_PAGE % stx.stx_dio_offset_align != 0 || IOD_PAGE % stx.stx_dio_mem_align != 0)
		return "direct reads need more than 4 KiB alignment";
#else
	(void)fd;
#endif
	return NULL;
}

/* NULL, or why direct_fd is not to be used. */
static const char *probe_objection(int direct_fd, int buffered_fd, uint64_t size)
{
	CLEANUP(freep) uint8_t *direct = aligned_alloc(IOD_PAGE, 2 * IOD_PAGE);
	uint64_t offset = (size - 1) / IOD_PAGE * IOD_PAGE;
	size_t want = (size_t)(size - offset);
	uint8_t *buffered = direct + IOD_PAGE;
	ssize_t n;

	if (!direct)
		return "no memory for the probe";
	n = pread(direct_fd, direct, IOD_PAGE, (off_t)offset);
	if (n < 0)
		return errno == EINVAL ? "the probe read was refused" : "the probe read failed";
	if ((size_t)n != want)
		return "the probe read was short";
	if (fd_pread_all(buffered_fd, buffered, want, offset) < 0 ||
	    memcmp(direct, buffered, want) != 0)
		return "the probe read returned other bytes";
	return NULL;
}

/* Open the O_DIRECT twin of the same inode; on an objection direct_fd stays -1. */
static const char *open_direct(struct iod_file *f)
{
	CLEANUP(fd_closep) int fd = -1;
	const char *objection;
	char path[64];

	objection = alignment_objection(f->fd);
	if (objection)
		return objection;
	/* By descriptor, not by path: the name may lead elsewhere by now. */
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", f->fd);
	fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return errno == EINVAL ? "the file system refuses O_DIRECT"
				       : "it cannot be opened again with O_DIRECT";
	if (f->size > 0) {
		objection = probe_objection(fd, f->fd, f->size);
		if (objection)
			return objection;
	}
	f->direct_fd = TAKE_FD(fd);
	return NULL;
}

dev_t iod_device_number(const struct stat *st)
{
	return S_ISBLK(st->st_mode) ? st->st_rdev : st->st_dev;
}

static void find_device(struct iod_devices *d, struct iod_file *f, dev_t st_dev, const char *path)
{
	for (f->device = 0; f->device < d->n_devices; f->device++) {
		if (d->devices[f->device].st_dev == st_dev)
			return;
	}
	d->devices[d->n_devices++] = (struct iod_device){ .st_dev = st_dev, .first_path = path };
}

static int add_file(struct iod_devices *d, struct iod_file *f, const struct source_file *from,
		    enum iod_direct direct, struct err *err)
{
	const char *objection, *slash = strrchr(from->path, '/');
	struct stat st;

	f->fd = from->fd;
	if (fstat(from->fd, &st) < 0)
		return err_set(err, ERR_IO, "%s: fstat: %s", from->path, strerror(errno));
	/* A block device has no size of its own in st. */
	f->size = S_ISBLK(st.st_mode) ? from->size : (uint64_t)st.st_size;
	f->path = from->path;
	iod_file_note(f, &st);
	find_device(d, f, iod_device_number(&st), from->path);
	if (direct == IOD_DIRECT_OFF)
		return 0;
	objection = open_direct(f);
	if (!objection) {
		f->fd = f->direct_fd;
		d->n_direct++;
		return 0;
	}
	if (direct == IOD_DIRECT_ON)
		return err_set(err, ERR_UNSUPPORTED,
			       "%s cannot be read with O_DIRECT: %s; use --direct auto to read it "
			       "through the page cache",
			       from->path, objection);
	if (d->why_buffered[0] == '\0')
		(void)snprintf(d->why_buffered, sizeof(d->why_buffered), "%.50s: %s",
			       slash ? slash + 1 : from->path, objection);
	return 0;
}

int iod_devices_new(struct iod_devices **ret, const struct source *src, enum iod_direct direct,
		    struct err *err)
{
	struct iod_devices *d;
	int r;

	d = calloc(1, sizeof(*d));
	if (d) {
		d->files = calloc(src->n_files + 1, sizeof(*d->files));
		d->devices = calloc(src->n_files + 1, sizeof(*d->devices));
	}
	if (!d || !d->files || !d->devices) {
		iod_devices_free(d);
		return err_set(err, ERR_NO_MEMORY, "out of memory for %u files", src->n_files);
	}
	for (uint32_t i = 0; i < src->n_files; i++) {
		d->files[i].direct_fd = -1;
		d->n_files++;
		r = add_file(d, &d->files[i], &src->files[i], direct, err);
		if (r < 0) {
			iod_devices_free(d);
			return r;
		}
	}
	*ret = d;
	return 0;
}

struct iod_devices *iod_devices_free(struct iod_devices *d)
{
	if (!d)
		return NULL;
	for (uint32_t i = 0; i < d->n_files; i++)
		fd_close(d->files[i].direct_fd);
	free(d->files);
	free(d->devices);
	free(d);
	return NULL;
}
