#pragma once
/* The texts of a model that a client reads: config.json and the tokenizer's files, from the model's
 * directories or from a daemon's descriptors. */
#include "compute/iod_client.h"
#include "compute/options.h"
#include "compute/text/tokenizer.h"
#include "shared/config.h"
#include "shared/err.h"

/* From the directories of the command line, --config and --tok. *ret_tokenizer stays NULL when
 * there is none. ERR_CONFIG, ERR_VOCABULARY. */
int k3_model_texts_read(const struct k3_command_line *line, struct config *ret_config,
			struct k3_tokenizer **ret_tokenizer, struct err *err);
/* From what WELCOME brought, and --tok. */
int k3_model_texts_take(const struct k3_iod *iod, const struct k3_command_line *line,
			struct config *ret_config, struct k3_tokenizer **ret_tokenizer,
			struct err *err);
