#pragma once
/*
 * A source that is saved, so that the next start need not scan the headers again. One file, in a
 * directory that only its owner may write to. It is believed only when it is whole and everything
 * it was made of is as it was then: the options, config.json, the model's directories and index,
 * and every file, by device, inode, size and both times. So a changed, added or missing file is
 * noticed; all else is found by the checks that every catalog passes. Never a precondition.
 */
#include "shared/catalog.h"

/*
 * Like source_open, but from dir/catalog when that can be used, else saving it there. *ret_note: a
 * line for the log when a file that was there could not be used or none could be written; "".
 */
int source_open_saved(const struct source_want *want, const char *dir, struct source **ret,
		      char ret_note[400], struct err *err);
