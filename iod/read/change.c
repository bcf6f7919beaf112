#include "iod/read/change.h"

#include <sys/stat.h>

#include "iod/read/reader.h"

static int64_t mtime_ns(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

void iod_file_note(struct iod_file *f, const struct stat *st)
{
	f->is_regular = S_ISREG(st->st_mode);
	f->mtime_ns = mtime_ns(st);
	f->st_dev = st->st_dev;
	f->st_ino = st->st_ino;
	f->has_name = st->st_nlink > 0;
}

bool iod_file_has_changed(struct iod_file *f)
{
	struct stat st;

	if (f->has_changed || !f->is_regular)
		return f->has_changed;
	f->has_changed = fstat(f->fd, &st) < 0 || (uint64_t)st.st_size != f->size ||
			 mtime_ns(&st) != f->mtime_ns || (f->has_name && st.st_nlink == 0);
	return f->has_changed;
}

/* Does its name lead to another file? One without the name is as good as before: its directory may
 * have been moved. */
static bool is_replaced(const struct iod_file *f)
{
	struct stat st;

	return f->is_regular && f->has_name && stat(f->path, &st) == 0 &&
	       (st.st_ino != f->st_ino || st.st_dev != f->st_dev);
}

uint32_t iod_reader_find_changed(struct iod_reader *r)
{
	for (uint32_t i = 0; i < r->devices->n_files; i++) {
		struct iod_file *f = &r->devices->files[i];

		f->has_changed |= is_replaced(f);
		if (iod_file_has_changed(f))
			return i;
	}
	return UINT32_MAX;
}
