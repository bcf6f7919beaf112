/* See verify_journal.h. */
#include "iod/store/verify_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"

#define FIRST_LINE "k3-store verify 1\n"

enum { JOURNAL_MAX = 64 << 20, SAVE_SECONDS = 2 };

void iod_verify_journal_deinit(struct iod_verify_journal *j)
{
	free(j->bad);
	j->bad = NULL;
}

int iod_verify_journal_add(struct iod_verify_journal *j, const char *sentence, struct err *err)
{
	char *grown;

	if (asprintf(&grown, "%s%s\n", j->bad ? j->bad : "", sentence) < 0)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	free(j->bad);
	j->bad = grown;
	j->n_bad++;
	return 0;
}

int iod_verify_journal_open(struct iod_verify_journal *j, const char *path, uint64_t key,
			    struct err *err)
{
	CLEANUP(freep) char *text = NULL;
	uint64_t its_key = 0, done = 0;
	size_t size = 0;
	int at = 0, r = 0;

	*j = (struct iod_verify_journal){ .path = path, .key = key, .saved = time(NULL) };
	if (path)
		r = fd_read_file(AT_FDCWD, path, JOURNAL_MAX, &text, &size);
	if (!path || r == -ENOENT || (r == 0 && size == 0))
		return 0;
	if (r < 0 || strncmp(text, FIRST_LINE, strlen(FIRST_LINE)) != 0)
		return err_set(err, ERR_USAGE,
			       "the journal %s: %s; it is left alone: give another name with "
			       "--journal, or remove it",
			       path, r < 0 ? fd_why(r) : "another file stands there");
	j->is_there = true;
	if (sscanf(text, FIRST_LINE "of %" SCNx64 "\ndone %" SCNu64 "\n%n", &its_key, &done, &at) !=
		    2 ||
	    at == 0 || its_key != key)
		return 0;
	for (char *line = text + at, *next; r == 0 && line && *line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		if (strncmp(line, "bad ", 4) == 0)
			r = iod_verify_journal_add(j, line + 4, err);
	}
	j->done = done;
	return r;
}

int iod_verify_journal_save(struct iod_verify_journal *j, int is_now)
{
	CLEANUP(freep) char *lines = NULL;
	size_t size = 0;
	FILE *f;
	struct fd_piece piece;
	int r;

	if (!j->path || (!is_now && time(NULL) - j->saved < SAVE_SECONDS))
		return 0;
	j->saved = time(NULL);
	f = open_memstream(&lines, &size);
	if (!f)
		return 0;
	(void)fprintf(f, FIRST_LINE "of %016" PRIx64 "\ndone %" PRIu64 "\n", j->key, j->done);
	for (const char *line = j->bad; line && *line; line = strchr(line, '\n') + 1)
		(void)fprintf(f, "bad %.*s\n", (int)strcspn(line, "\n"), line);
	if (fclose(f) != 0)
		return 0;
	piece = (struct fd_piece){ lines, size };
	r = fd_replace_file(j->path, &piece, 1);
	if (r < 0)
		j->path = NULL;
	else
		j->is_there = true;
	return r;
}

void iod_verify_journal_remove(struct iod_verify_journal *j)
{
	if (j->path && j->is_there)
		(void)unlink(j->path);
}
