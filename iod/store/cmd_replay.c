/* k3-store replay: a routing trace against the policies of the expert cache. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "iod/store/options.h"
#include "iod/store/replay_table.h"
#include "shared/attr.h"
#include "shared/log.h"

enum { TOP_K = 16 }; /* of the released model */

static void file_closep(FILE **f)
{
	if (*f)
		(void)fclose(*f);
}

static void table_freep(struct iod_replay_table **t)
{
	free(*t);
}

/* The sizes of "a,b,c", as slots or as GB of memory. */
static int read_sizes(struct iod_replay_table *t, const char *name, const char *text, bool in_gb,
		      struct err *err)
{
	const char *at = text;

	for (;;) {
		char *end;
		double x = strtod(at, &end), slots = x;

		if (in_gb)
			slots = floor(x * 1e9 / (double)t->expert_bytes);
		if (end == at || (*end != ',' && *end != 0) || !(slots >= 1 && slots <= 1 << 30) ||
		    slots != floor(slots))
			return err_set(err, ERR_USAGE,
				       "--%s %s: '%.*s' is no %s; numbers with commas between them "
				       "are wanted, as in --%s %s",
				       name, text, (int)strcspn(at, ","), at,
				       in_gb ? "number of GB that holds an expert (--expert-bytes)"
					     : "number of slots from 1 on",
				       name, in_gb ? "8,16,32" : "208,416,832");
		if (t->n == IOD_REPLAY_SIZES)
			return err_set(err, ERR_USAGE, "--%s: at most %d sizes", name,
				       IOD_REPLAY_SIZES);
		t->slots[t->n] = (uint32_t)slots;
		t->gb[t->n++] = in_gb ? x : 0;
		if (*end == 0)
			return 0;
		at = end + 1;
	}
}

/* Without sizes: parts and multiples of what one token asks for. */
static void choose_sizes(struct iod_replay_table *t)
{
	static const double sweeps[] = { 0.25, 0.5, 0.75, 1, 1.5, 2, 4 };
	double per_token = (double)t->routing->n / t->routing->n_tokens;

	if (t->n_clients > 1)
		per_token /= t->n_clients;
	for (size_t i = 0; i < N_ELEMENTS(sweeps); i++) {
		t->slots[i] = (uint32_t)(sweeps[i] * per_token + 0.5);
		if (t->slots[i] == 0)
			t->slots[i] = 1;
	}
	t->n = N_ELEMENTS(sweeps);
}

static int replay(struct iod_replay_table *t, struct err *err)
{
	for (size_t i = 0; i < t->n; i++) {
		struct iod_replay_want want = {
			.routing = t->routing,
			.n_slots = t->slots[i],
			.warm = t->warm,
		};
		int r = iod_replay_policy(&want, &iod_policy_lru, &t->found[IOD_REPLAY_LRU][i]);

		want.keep_announced = true;
		if (r == 0)
			r = iod_replay_policy(&want, &iod_policy_decay,
					      &t->found[IOD_REPLAY_DEFAULT][i]);
		if (r == 0)
			r = iod_replay_belady(&want, &t->found[IOD_REPLAY_BELADY][i]);
		if (r == 0)
			r = iod_replay_pinned(&want, &t->found[IOD_REPLAY_PINNED][i]);
		if (r < 0)
			return err_set(err, ERR_NO_MEMORY, "no memory to replay %u slots",
				       t->slots[i]);
	}
	return 0;
}

static int plot(const struct iod_replay_table *t, const char *path, struct err *err)
{
	CLEANUP(file_closep) FILE *f = fopen(path, "we");
	bool has_failed;

	if (!f)
		return err_set(err, ERR_IO, "cannot write %s: %s", path, strerror(errno));
	iod_replay_plot(t, f);
	errno = 0;
	has_failed = ferror(f);
	if (fclose(TAKE(f)) != 0 || has_failed)
		return err_set(err, errno == ENOSPC ? ERR_SPACE : ERR_IO, "cannot write %s: %s",
			       path, strerror(errno ? errno : EIO));
	return 0;
}

static int run(const struct iod_store_line *line, struct iod_routing *routing, struct err *err)
{
	const struct iod_store_options *o = &line->options;
	CLEANUP(table_freep) struct iod_replay_table *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return err_set(err, ERR_NO_MEMORY, "no memory for the table");
	t->path = line->words.items[0];
	t->routing = routing;
	t->n_clients = (uint32_t)o->clients;
	t->warm = (uint32_t)o->warm;
	t->expert_bytes = o->expert_bytes;
	r = iod_routing_read(routing, t->path, o->top_k ? (uint32_t)o->top_k : TOP_K, err);
	if (r == 0 && t->n_clients > 1)
		r = iod_routing_split(routing, t->n_clients, err);
	if (r == 0 && o->slots)
		r = read_sizes(t, "slots", o->slots, false, err);
	if (r == 0 && o->cache_gb)
		r = read_sizes(t, "cache-gb", o->cache_gb, true, err);
	if (r < 0)
		return r;
	if (t->n == 0)
		choose_sizes(t);
	if (t->warm >= routing->n_tokens)
		return err_set(err, ERR_USAGE,
			       "--warm %u: the trace has %u tokens%s, and after the warm-up one "
			       "must be left",
			       t->warm, routing->n_tokens, t->n_clients > 1 ? " a client" : "");
	r = replay(t, err);
	if (r < 0)
		return r;
	if (o->json)
		iod_replay_print_json(t, stdout);
	else
		iod_replay_print(t, stdout);
	return o->plot ? plot(t, o->plot, err) : 0;
}

int iod_store_cmd_replay(const struct iod_store_line *line)
{
	CLEANUP(iod_routing_deinit) struct iod_routing routing = { 0 };
	struct err err = { 0 };

	if (line->words.n != 1) {
		log_error("replay takes one trace: %s", line->program->usage);
		return err_exit_code(ERR_USAGE);
	}
	if (run(line, &routing, &err) < 0) {
		log_error("%s", err.text);
		return err_exit_code(err.code);
	}
	return 0;
}
