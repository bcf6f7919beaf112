/* See sums_write.h. */
#include "iod/store/sums_write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "iod/expert_check.h"
#include "iod/store/units.h"
#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/sums.h"

enum { SAVE_SECONDS = 2 };

static int fail_save(const char *path, int r, struct err *err)
{
	bool is_full = r == -ENOSPC || r == -EDQUOT || r == -EFBIG;

	return err_set(err, is_full ? ERR_SPACE : ERR_IO, "%s: writing failed: %s", path,
		       strerror(-r));
}

static int settle(struct sums *m, const struct iod_unit *u, const uint8_t *bytes, struct err *err)
{
	switch (u->kind) {
	case IOD_UNIT_TILE:
		sums_set_tile(m, u->s, u->index, bytes);
		break;
	case IOD_UNIT_EXPERT:
		if (iod_expert_check(u->s, u->layer, u->expert, bytes, err) < 0)
			return -EIO;
		sums_set_expert(m, u->s, u->layer, u->expert, bytes);
		break;
	case IOD_UNIT_ROWS:
		sums_set_rows(m, u->s, u->index, u->n_rows, bytes);
		break;
	}
	return 0;
}

static int read_all(const struct iod_sums_want *want, const struct iod_units *units, struct sums *m,
		    const char *partial, struct err *err)
{
	CLEANUP(iod_unit_reader_deinit) struct iod_unit_reader reader = { .fd = -1 };
	time_t saved = time(NULL);
	uint64_t done = 0;
	int r = iod_unit_reader_init(&reader, units, want->rate, err);

	for (uint32_t i = 0; i < m->header.n_done; i++)
		done += units->items[i].size;
	for (uint32_t i = (uint32_t)m->header.n_done; r == 0 && i < units->n; i++) {
		const uint8_t *bytes;

		r = iod_unit_read(&reader, &units->items[i], &bytes, err);
		if (r == 0)
			r = settle(m, &units->items[i], bytes, err);
		if (r < 0)
			break;
		done += units->items[i].size;
		if (want->progress)
			want->progress(want->data, done, units->size);
		if (time(NULL) - saved < SAVE_SECONDS)
			continue;
		saved = time(NULL);
		r = sums_save(m, partial, i + 1);
		if (r < 0)
			return fail_save(partial, r, err);
	}
	return r;
}

int iod_sums_write(const struct iod_sums_want *want, struct iod_sums_result *ret, struct err *err)
{
	CLEANUP(source_freep) struct source *s = NULL;
	CLEANUP(iod_units_deinit) struct iod_units units = { 0 };
	CLEANUP(sums_freep) struct sums *m = NULL;
	CLEANUP(freep) char *partial = NULL;
	int r = source_open(&want->model, &s, err);

	if (r == 0)
		r = iod_units_add(&units, s, true, err);

	if (r < 0)
		return r;
	if (asprintf(&partial, "%s.partial", want->out) < 0) {
		partial = NULL;
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	}
	r = sums_load_partial(s, partial, &m);
	if (r == 0 &&
	    (m->header.n_done > units.n || m->header.n_layers != s->catalog.header->n_layers)) {
		m = sums_free(m);
		r = -ENODATA;
	}
	if (r < 0)
		r = sums_new(s, &m, err);
	if (r < 0)
		return r;
	ret->size = units.size;
	ret->resumed_size = 0;
	for (uint32_t i = 0; i < m->header.n_done; i++)
		ret->resumed_size += units.items[i].size;
	r = read_all(want, &units, m, partial, err);
	if (r < 0)
		return r;
	r = sums_save(m, want->out, UINT64_MAX);
	if (r < 0)
		return fail_save(want->out, r, err);
	(void)unlink(partial);
	return 0;
}
