#include "shared/tuning.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

/* ---- profiles -------------------------------------------------------------------------------- */

struct profile {
	struct option_list queue_depth, chunk, rate;
};

static const struct option profile_table[] = {
	{ .name = "queue-depth",
	  .type = OPTION_LIST,
	  .offset = offsetof(struct profile, queue_depth),
	  .value = "PATH=N" },
	{ .name = "chunk",
	  .type = OPTION_LIST,
	  .offset = offsetof(struct profile, chunk),
	  .value = "PATH=BYTES" },
	{ .name = "rate",
	  .type = OPTION_LIST,
	  .offset = offsetof(struct profile, rate),
	  .value = "PATH=BYTES" },
};

static const struct option_program profile_program = {
	.name = "k3-iod",
	.options = profile_table,
	.n_options = N_ELEMENTS(profile_table),
};

static int add_rate(struct tuning *t, const char *item, struct err *err)
{
	struct tuning_rate *rate = &t->rates[t->n_rates];
	const char *equals = strrchr(item, '=');

	if (!equals || equals == item || !option_parse_bytes(equals + 1, &rate->bytes) ||
	    rate->bytes == 0)
		return err_set(err, ERR_USAGE, "--rate %.200s: give PATH=BYTES a second", item);
	rate->path = strndup(item, (size_t)(equals - item));
	if (!rate->path)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	t->n_rates++;
	return 0;
}

int tuning_read_profile(struct tuning *t, const char *path, struct err *err)
{
	struct profile profile = { 0 };
	int r = path ? option_parse_file(&profile_program, path, &profile, err) : 0;

	if (r == 0)
		r = tuning_add(t, &profile.queue_depth, &profile.chunk, true, err);
	for (size_t i = 0; r == 0 && i < profile.rate.n; i++)
		r = add_rate(t, profile.rate.items[i], err);
	return r;
}

/* Of the file system on which path lies, or of the disk that it is; 0: there is none. */
static dev_t device_of(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return 0;
	return S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev;
}

static uint64_t rate_of(const struct tuning *t, dev_t device)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < t->n_rates; i++)
		if (device_of(t->rates[i].path) == device)
			bytes = t->rates[i].bytes;
	return bytes;
}

double tuning_rate(const struct tuning *t, char *const *paths, size_t n_paths)
{
	dev_t seen[OPTION_LIST_MAX];
	size_t n_seen = 0;
	double sum = 0;

	for (size_t i = 0; t->n_rates > 0 && i < n_paths; i++) {
		dev_t device = device_of(paths[i]);
		uint64_t bytes = device ? rate_of(t, device) : 0;
		size_t k = 0;

		while (k < n_seen && seen[k] != device)
			k++;
		if (k < n_seen)
			continue;
		if (bytes == 0 || n_seen == N_ELEMENTS(seen))
			return 0;
		seen[n_seen++] = device;
		sum += (double)bytes;
	}
	return sum;
}

/* ---------------------------------------------------------------------------------------------- */

void tuning_deinit(struct tuning *t)
{
	for (uint32_t i = 0; i < t->n_rates; i++)
		free(t->rates[i].path);
	t->n_rates = 0;
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
