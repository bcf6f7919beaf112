#include "iod/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "iod/client.h"
#include "shared/attr.h"
#include "shared/catalog.h"
#include "shared/fd.h"
#include "shared/log.h"

struct iod_recorder {
	const struct source *source; /* borrowed */
	FILE *file;                  /* NULL: the recording has ended */
	char *path;
	uint64_t size; /* written so far */
	size_t n_words;
};

static void recorder_freep(struct iod_recorder **r)
{
	*r = iod_recorder_free(*r);
}

/* Emptied only when it is ours alone: another daemon's recording stays. A pipe that nobody reads is
 * not waited for. */
static FILE *open_alone(const char *path)
{
	CLEANUP(fd_closep)
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
	struct stat st;
	FILE *f;

	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &st) < 0 ||
	    (S_ISREG(st.st_mode) && ftruncate(fd, 0) < 0))
		return NULL;
	f = fdopen(fd, "w");
	if (f)
		(void)TAKE_FD(fd);
	return f;
}

int iod_recorder_new(struct iod_recorder **ret, const struct source *source, const char *path,
		     struct err *err)
{
	CLEANUP(recorder_freep) struct iod_recorder *r = calloc(1, sizeof(*r));

	if (!r)
		return err_set(err, ERR_NO_MEMORY, "no memory for a recording");
	r->source = source;
	r->n_words = ((size_t)source->n_experts + 63) / 64;
	r->path = strdup(path);
	if (!r->path)
		return err_set(err, ERR_NO_MEMORY, "no memory for a recording");
	r->file = open_alone(path);
	if (!r->file)
		return err_set(err, ERR_IO, "cannot write %s: %s", path,
			       errno == EWOULDBLOCK ? "another k3-iod records there; give "
						      "--record-trace another name"
						    : strerror(errno));
	*ret = TAKE(r);
	return 0;
}

struct iod_recorder *iod_recorder_free(struct iod_recorder *r)
{
	if (!r)
		return NULL;
	if (r->file)
		(void)fclose(r->file);
	free(r->path);
	free(r);
	return NULL;
}

/* The daemon goes on without. */
static void stop(struct iod_recorder *r, const char *why)
{
	log_warning("%s: %s; the recording ends after %" PRIu64 " bytes", r->path, why, r->size);
	(void)fclose(r->file);
	r->file = NULL;
}

static void put_layer(FILE *f, const struct source *s, const struct iod_record *step,
		      uint32_t layer)
{
	const char *comma = "";

	for (uint32_t i = 0; i < s->config.n_experts; i++) {
		uint32_t number = s->expert_base[layer] + i;

		if ((step->asked[number / 64] >> number % 64 & 1) == 0)
			continue;
		(void)fprintf(f, "%s%" PRIu32, comma, i);
		comma = ",";
	}
}

/* The step as a line; NULL: no memory. The caller frees it. */
static char *make_line(const struct source *s, const struct iod_client *c, size_t *ret_size)
{
	const struct iod_record *step = &c->experts.record;
	const char *comma = "";
	char *line = NULL;
	FILE *f = open_memstream(&line, ret_size);

	if (!f)
		return NULL;
	(void)fprintf(f, "{\"client\":%" PRIu32 ",\"step\":%" PRIu32 ",\"layers\":[", c->number,
		      step->n_steps);
	for (uint32_t l = 0; l < s->catalog.header->n_layers; l++) {
		if (s->expert_base[l] == UINT32_MAX)
			continue;
		(void)fprintf(f, "%s[", comma);
		put_layer(f, s, step, l);
		(void)fputc(']', f);
		comma = ",";
	}
	(void)fputs("]}\n", f);
	if (fclose(f) != 0)
		free(TAKE(line));
	return line;
}

/* One line, and out with it: what is recorded survives whatever comes. */
static void write_step(struct iod_recorder *r, const struct iod_client *c)
{
	size_t size = 0;
	CLEANUP(freep) char *line = make_line(r->source, c, &size);

	if (!line)
		return; /* a step less */
	errno = 0;
	if (fwrite(line, 1, size, r->file) != size || fflush(r->file) != 0) {
		stop(r, strerror(errno));
		return;
	}
	r->size += size;
	if (r->size >= IOD_RECORD_SIZE_MAX)
		stop(r, "it is long enough");
}

static void finish_step(struct iod_recorder *r, struct iod_client *c)
{
	struct iod_record *step = &c->experts.record;

	if (step->is_begun && r->file) {
		write_step(r, c);
		step->n_steps++;
	}
	step->is_begun = false;
}

void iod_record_begin(struct iod_recorder *r, struct iod_client *c)
{
	struct iod_record *step = &c->experts.record;

	if (!r || !r->file)
		return;
	finish_step(r, c);
	if (!step->asked)
		step->asked = calloc(r->n_words, sizeof(*step->asked));
	if (!step->asked)
		return; /* a step less */
	memset(step->asked, 0, r->n_words * sizeof(*step->asked));
	step->is_begun = true;
}

void iod_record_ask(struct iod_recorder *r, struct iod_client *c, uint32_t number)
{
	if (r && c->experts.record.is_begun)
		c->experts.record.asked[number / 64] |= 1ull << number % 64;
}

void iod_record_end(struct iod_recorder *r, struct iod_client *c)
{
	if (r)
		finish_step(r, c);
	free(TAKE(c->experts.record.asked));
}
