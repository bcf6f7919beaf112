#include "compute/plan_rates.h"

#include "compute/model_files.h"
#include "compute/rates.h"
#include "compute/ring_rates.h"
#include "shared/attr.h"

#define MEASURE_SECONDS 1.0
/* By id: the released vocabulary takes 8 MB. */
enum { VOCABULARY_BYTES = 50 };

uint64_t k3_plan_vocabulary_size(const struct config *c)
{
	return (uint64_t)c->vocab_size * VOCABULARY_BYTES;
}

int k3_plan_rates_find(struct k3_plan_rates *ret, const struct k3_command_line *line,
		       struct err *err)
{
	const struct k3_options *o = &line->options;
	CLEANUP(k3_model_files_deinit) struct k3_model_files files = { 0 };
	double disk = o->disk_rate > 0 ? o->disk_rate * 1e9 : 0, profile = 0;
	uint64_t in_flight;
	int is_buffered = 0, r = k3_ring_profile(line, &profile, &in_flight, err);

	if (o->measure && line->words.n == 0)
		return err_set(err, ERR_USAGE, "--measure needs MODEL: its disks are measured");
	if (o->measure && o->disk_rate >= 0)
		return err_set(err, ERR_USAGE, "--measure and --disk-rate exclude each other");
	if (o->measure)
		r = k3_model_files_find(&line->words, &o->trunk, &files, err);
	if (r == 0 && o->measure)
		r = k3_rate_disk((const char *const *)files.paths, files.n, MEASURE_SECONDS, &disk,
				 &is_buffered, err);
	if (r == 0 && o->measure && disk <= 0)
		r = err_set(err, ERR_IO, "no file of the model could be read to measure its disk");
	if (r < 0)
		return r;
	if (disk <= 0)
		disk = profile;
	k3_plan_rates_init(ret, disk, o->memory_rate * 1e9, (unsigned)o->threads);
	if (!o->measure && o->disk_rate <= 0 && profile > 0)
		(void)snprintf(ret->disk_note, sizeof(ret->disk_note), "from the profile");
	if (o->measure)
		(void)snprintf(ret->disk_note, sizeof(ret->disk_note), "measured now%s",
			       is_buffered ? ", not by O_DIRECT: the page cache may answer" : "");
	return 0;
}
