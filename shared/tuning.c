#include "shared/tuning.h"

#include <stdlib.h>
#include <string.h>

#include "shared/attr.h"

enum what { DEPTH, CHUNK };
static const struct {
	const char *name, *wanted;
	uint64_t max, multiple;
} quantities[] = {
	[DEPTH] = { "queue-depth", "between 1 and 4096", TUNING_DEPTH_MAX, 1 },
	[CHUNK] = { "chunk", "a multiple of 4096 up to 64M", TUNING_CHUNK_MAX, 4096 },
};

static uint64_t *field(struct tuning_row *row, enum what what)
{
	return what == DEPTH ? &row->depth : &row->chunk;
}

/* The value of an item, and where its path ends (0: it has none). A path may hold a '='. */
static int parse_item(enum what what, const char *item, size_t *ret_path_len, uint64_t *ret,
		      struct err *err)
{
	const char *equals = strrchr(item, '=');
	const char *value = equals ? equals + 1 : item;

	if (equals == item || !option_parse_bytes(value, ret) || *ret == 0 ||
	    *ret > quantities[what].max || *ret % quantities[what].multiple != 0)
		return err_set(err, ERR_USAGE,
			       "--%s %.200s: the value must be %s, alone or after PATH=",
			       quantities[what].name, item, quantities[what].wanted);
	*ret_path_len = equals ? (size_t)(equals - item) : 0;
	return 0;
}

static int add_row(struct tuning *t, enum what what, const char *path, size_t path_len,
		   uint64_t value, bool is_profile, struct err *err)
{
	struct tuning_row *row = &t->rows[t->n_rows];

	if (t->n_rows == TUNING_ROWS_MAX)
		return err_set(err, ERR_USAGE, "--%s: more than %d values for single devices",
			       quantities[what].name, TUNING_ROWS_MAX);
	*row = (struct tuning_row){ .path = strndup(path, path_len),
				    .is_from_profile = is_profile };
	if (!row->path)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	*field(row, what) = value;
	t->n_rows++;
	return 0;
}

/* Plain values in one pass, rows in another: so that their order does not matter. */
static int add_list(struct tuning *t, enum what what, const struct option_list *list,
		    bool is_profile, struct err *err)
{
	for (int pass = 0; pass < 2; pass++) {
		for (size_t i = 0; i < list->n; i++) {
			size_t path_len = 0;
			uint64_t value = 0;
			int r = parse_item(what, list->items[i], &path_len, &value, err);

			if (r == 0 && pass == 1 && path_len > 0)
				r = add_row(t, what, list->items[i], path_len, value, is_profile,
					    err);
			if (r < 0)
				return r;
			if (pass == 1 || path_len > 0)
				continue;
			*(what == DEPTH ? &t->depth : &t->chunk) = value;
			for (uint32_t k = 0; k < t->n_rows; k++)
				*field(&t->rows[k], what) = 0;
		}
	}
	return 0;
}

int tuning_add(struct tuning *t, const struct option_list *depths, const struct option_list *chunks,
	       bool is_profile, struct err *err)
{
	int r = add_list(t, DEPTH, depths, is_profile, err);

	return r < 0 ? r : add_list(t, CHUNK, chunks, is_profile, err);
}

void tuning_deinit(struct tuning *t)
{
	for (uint32_t i = 0; i < t->n_rows; i++)
		free(t->rows[i].path);
	t->n_rows = 0;
}

uint64_t tuning_in_flight(const struct tuning *t, uint64_t usual_depth, uint64_t usual_chunk)
{
	uint64_t depth = t->depth ? t->depth : usual_depth;
	uint64_t chunk = t->chunk ? t->chunk : usual_chunk;
	uint64_t bytes = depth * chunk;

	for (uint32_t i = 0; i < t->n_rows; i++) {
		const struct tuning_row *row = &t->rows[i];
		struct tuning_row all = *row;
		bool is_seen = false;

		/* Depth and chunk of one path are two rows. */
		for (uint32_t k = 0; k < t->n_rows; k++) {
			if (strcmp(t->rows[k].path, row->path) != 0)
				continue;
			is_seen |= k < i;
			all.depth = t->rows[k].depth ? t->rows[k].depth : all.depth;
			all.chunk = t->rows[k].chunk ? t->rows[k].chunk : all.chunk;
		}
		if (!is_seen)
			bytes += (all.depth ? all.depth : depth) * (all.chunk ? all.chunk : chunk);
	}
	return bytes;
}
