#include "compute/ring_rates.h"

#include "compute/model_files.h"
#include "compute/rates.h"
#include "shared/attr.h"
#include "shared/ring_size.h"
#include "shared/slab.h"
#include "shared/tuning.h"

/* A look at the disk: enough for a rate within a part of itself. */
#define DISK_SECONDS 0.1

/* Those that hold the trunk: the trunk files, or all. */
static int files_of_trunk(const struct k3_command_line *line, struct k3_model_files *ret,
			  struct err *err)
{
	static const struct option_list none = { .n = 0 };
	const struct option_list *trunk = &line->options.trunk;

	return k3_model_files_find(trunk->n ? &none : &line->words, trunk, ret, err);
}

static int profile_rate(const struct k3_command_line *line, const struct tuning *tuning,
			double *ret, struct err *err)
{
	CLEANUP(k3_model_files_deinit) struct k3_model_files files = { 0 };
	int r = tuning->n_rates > 0 ? files_of_trunk(line, &files, err) : 0;

	if (r == 0)
		*ret = tuning_rate(tuning, files.paths, files.n);
	return r;
}

int k3_ring_profile(const struct k3_command_line *line, double *ret_rate, uint64_t *ret_in_flight,
		    struct err *err)
{
	const struct k3_options *o = &line->options;
	CLEANUP(tuning_deinit) struct tuning tuning = { 0 };
	int r = tuning_read_profile(&tuning, o->profile, err);

	if (r == 0)
		r = tuning_add(&tuning, &o->queue_depth, &o->chunk, false, err);
	if (r < 0)
		return r;
	*ret_in_flight = tuning_in_flight(&tuning, SLAB_READ_DEPTH, SLAB_READ_CHUNK);
	return profile_rate(line, &tuning, ret_rate, err);
}

int k3_ring_rates_find(const struct k3_command_line *line, struct k3_memplan_want *want,
		       struct err *err)
{
	const struct k3_options *o = &line->options;
	double profile = 0;
	int r = k3_ring_profile(line, &profile, &want->in_flight, err);

	want->rates.disk = o->disk_rate > 0 ? o->disk_rate * 1e9 : profile;
	want->rates.memory = o->memory_rate > 0 ? o->memory_rate * 1e9 : 0;
	return r;
}

/* What is not known yet. A disk that cannot be measured stays unknown: the daemon will say why it
 * cannot be read. */
static void measure(const struct k3_command_line *line, struct ring_rates *rates)
{
	const struct k3_options *o = &line->options;
	CLEANUP(k3_model_files_deinit) struct k3_model_files files = { 0 };
	struct err unused = { 0 };
	int is_buffered;

	if (rates->memory <= 0)
		rates->memory = k3_rate_memory((unsigned)o->threads);
	if (rates->disk <= 0 && files_of_trunk(line, &files, &unused) == 0)
		(void)k3_rate_disk((const char *const *)files.paths, files.n, DISK_SECONDS,
				   &rates->disk, &is_buffered, &unused);
}

int k3_ring_plan(const struct k3_command_line *line, struct k3_memplan_want *want,
		 struct k3_memplan *ret, struct err *err)
{
	int r = want->has_daemon ? k3_ring_rates_find(line, want, err) : 0;

	if (r == 0)
		r = k3_memplan_make(want, ret, err);
	if (r < 0 || (want->rates.memory > 0 && want->rates.disk > 0) ||
	    ret->item[K3_MEMPLAN_daemon_pinned_tiles] == 0 ||
	    ret->item[K3_MEMPLAN_daemon_tile_ring] == 0 ||
	    !ring_size_depends_on_rates(ret->size.trunk_size, want->in_flight))
		return r;
	measure(line, &want->rates);
	return k3_memplan_make(want, ret, err);
}
