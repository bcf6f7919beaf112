#include "iod/tune.h"

#include "iod/options.h"
#include "shared/tuning.h"

int iod_tune_read(const struct iod_options *o, struct tuning *ret, struct err *err)
{
	int r;

	*ret = (struct tuning){ 0 };
	r = tuning_read_profile(ret, o->profile, err);
	return r < 0 ? r : tuning_add(ret, &o->queue_depth, &o->chunk, false, err);
}
