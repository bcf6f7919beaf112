#pragma once
/*
 * Files that change under a running daemon. What it knows of them (headers, digests, sizes) is then
 * of no use, and bytes of two states must never meet: each read that has come whole is looked at
 * once more before it counts, and a file that has changed is not read again until the daemon is
 * restarted.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct stat;
struct iod_file;
struct iod_reader;

/* Remember what it is like when it is opened. */
void iod_file_note(struct iod_file *f, const struct stat *st);
/* Is its size or time another one by now, or has it lost its last name? Stays so once it was. */
bool iod_file_has_changed(struct iod_file *f);
/* Look at all files, and where their names lead: the index of the first that has changed or was
 * replaced, UINT32_MAX: none. */
uint32_t iod_reader_find_changed(struct iod_reader *r);
/* The words for a failed read: strerror, and for -ESTALE that the file has changed and what to do.
 */
static inline const char *iod_read_strerror(int error)
{
	if (error == -ESTALE)
		return "the file has changed since k3-iod opened it; restart k3-iod, and make a "
		       "packed trunk file again";
	return strerror(-error);
}
