#include "iod/tune.h"

#include <string.h>

#include "iod/options.h"
#include "shared/attr.h"
#include "shared/tuning.h"

/* A profile is a configuration file with these two options. */
struct profile {
	struct option_list queue_depth, chunk;
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
};

static const struct option_program profile_program = {
	.name = "k3-iod",
	.options = profile_table,
	.n_options = N_ELEMENTS(profile_table),
};

int iod_tune_read(const struct iod_options *o, struct tuning *ret, struct err *err)
{
	struct profile profile = { 0 };
	int r = 0;

	*ret = (struct tuning){ 0 };
	if (o->profile)
		r = option_parse_file(&profile_program, o->profile, &profile, err);
	if (r == 0)
		r = tuning_add(ret, &profile.queue_depth, &profile.chunk, true, err);
	if (r < 0)
		return r;
	return tuning_add(ret, &o->queue_depth, &o->chunk, false, err);
}
