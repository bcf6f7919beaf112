#pragma once
/* What k3 run demands of its options beyond their types. */
#include "compute/options.h"
#include "compute/text/tokenizer.h"
#include "shared/config.h"
#include "shared/err.h"

/* Exactly one prompt, exactly one of MODEL and --socket, no option that would have no effect.
 * takes_batch: --batch-file is one of the prompts. ERR_USAGE. */
int k3_run_check(const struct k3_command_line *line, bool takes_batch, struct err *err);
/* Numbers of --stop-id, "eos" replaced by the model's own. t may be NULL. */
int k3_run_stop_ids(const struct k3_options *o, const struct config *c, struct k3_tokenizer *t,
		    struct k3_ids *ret, struct err *err);
