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
}

bool iod_file_has_changed(struct iod_file *f)
{
	struct stat st;

	if (f->has_changed || !f->is_regular)
		return f->has_changed;
	f->has_changed = fstat(f->fd, &st) < 0 || (uint64_t)st.st_size != f->size ||
			 mtime_ns(&st) != f->mtime_ns;
	return f->has_changed;
}

uint32_t iod_reader_find_changed(struct iod_reader *r)
{
	for (uint32_t i = 0; i < r->devices->n_files; i++)
		if (iod_file_has_changed(&r->devices->files[i]))
			return i;
	return UINT32_MAX;
}
