#pragma once
/*
 * The files of a model as the reader sees them: a descriptor to read from, O_DIRECT where one real
 * read proved it, and the device each file lies on.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "iod/read/read.h"

struct stat;

struct iod_file {
	int direct_fd;    /* owned; -1 when the file is read buffered */
	int fd;           /* direct_fd, or the source's own (borrowed) */
	uint64_t size;    /* when it was opened */
	int64_t mtime_ns; /* likewise */
	const char *path; /* borrowed */
	dev_t st_dev;     /* which file it is, whatever its name leads to later */
	ino_t st_ino;
	bool has_name;                /* it had one when it was opened */
	bool is_regular, has_changed; /* see change.h */
	uint32_t device;              /* index, 0 .. n_devices - 1 */
};

struct iod_device {
	dev_t st_dev;
	const char *first_path; /* borrowed: of the first file on it */
};

struct iod_devices {
	struct iod_file *files;
	uint32_t n_files;
	struct iod_device *devices;
	uint32_t n_devices;
	uint32_t n_direct;
	char why_buffered[120]; /* the first file without O_DIRECT and the reason; "" */
};

/*
 * Look at every file of src. direct = ON: ERR_UNSUPPORTED for a file without O_DIRECT. One small
 * read per file blocks: called once, before there are clients. src must outlive the result.
 */
int iod_devices_new(struct iod_devices **ret, const struct source *src, enum iod_direct direct,
		    struct err *err);
/* The device a file lies on; of a block device its own number. */
dev_t iod_device_number(const struct stat *st);
struct iod_devices *iod_devices_free(struct iod_devices *d);
