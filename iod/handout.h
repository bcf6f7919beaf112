#pragma once
/*
 * The descriptors that WELCOME hands out: the slab reopened read-only, and sealed copies of the
 * catalog, config.json and the tokenizer files, so that a client needs no access to the model's
 * files and they cannot change under it.
 */
#include "shared/catalog.h"
#include "shared/err.h"
#include "shared/slab.h"

struct iod_handout {
	int slab_fd, catalog_fd, config_fd;     /* owned; -1 = none */
	int vocabulary_fd, tokenizer_config_fd; /* -1: not found */
};

struct iod_handout_want {
	const struct source *source;
	const char *config_path;       /* NULL: config.json of the first directory that has one */
	const char *tokenizer_dir;     /* NULL: the first model directory that has the files */
	const char *const *model_dirs; /* [n_model_dirs] */
	size_t n_model_dirs;
};

void iod_handout_init(struct iod_handout *h); /* all none */
/* Everything but the slab, which comes later. ERR_VOCABULARY when tokenizer_dir lacks the files. */
int iod_handout_open(struct iod_handout *h, const struct iod_handout_want *want, struct err *err);
int iod_handout_add_slab(struct iod_handout *h, const struct slab *slab, struct err *err);
void iod_handout_deinit(struct iod_handout *h);
