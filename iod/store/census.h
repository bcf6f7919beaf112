#pragma once
/*
 * What a checkpoint consists of, counted from its headers: tensors and bytes by kind, by layer and
 * by file. Counts what is there, complete or not, and says what is absent. Called by cmd_census.c;
 * never logs.
 */
#include <stdint.h>

#include "shared/config.h"
#include "shared/err.h"
#include "shared/shards.h"

#define CENSUS(name, key, sentence) IOD_CENSUS_##name,
enum iod_census_kind {
#include "iod/store/census.def"
	IOD_CENSUS_KINDS
};
#undef CENSUS

struct iod_census_sum {
	uint64_t tensors, bytes;
};

struct iod_census_file {
	char *path;           /* owned */
	uint64_t size;        /* of the file */
	uint64_t header_size; /* length prefix and JSON */
};

struct iod_census {
	struct config config;
	uint32_t n_layers; /* counted: --layers, or all */
	struct iod_census_sum kinds[IOD_CENSUS_KINDS];
	struct iod_census_sum (*layers)[IOD_CENSUS_KINDS]; /* owned: [config.n_layers] */
	uint64_t left_out;                                 /* bytes of layers from n_layers on */
	struct iod_census_file *files;                     /* owned */
	uint32_t n_files;
	struct shards shards;
};

struct iod_census_want {
	const char *const *model_dirs;
	uint32_t n_model_dirs;
	const char *config_path; /* NULL: the model's */
	uint32_t max_layers;     /* 0: all */
};

const char *iod_census_key(enum iod_census_kind kind);
const char *iod_census_sentence(enum iod_census_kind kind);

/* ERR_CONFIG, ERR_CHECKPOINT, ERR_IO. Only headers, index and config.json are read. */
int iod_census_take(const struct iod_census_want *want, struct iod_census *ret, struct err *err);
void iod_census_deinit(struct iod_census *c);

/* Sums over kinds of one layer or of the whole (c->kinds). */
struct iod_census_sum iod_census_experts(const struct iod_census_sum kinds[IOD_CENSUS_KINDS]);
/* What every token reads of a layer; without experts. */
struct iod_census_sum iod_census_trunk(const struct iod_census_sum kinds[IOD_CENSUS_KINDS]);
struct iod_census_sum iod_census_all(const struct iod_census_sum kinds[IOD_CENSUS_KINDS]);
/* Does the layer have as many tensors as the config says? */
bool iod_census_is_whole(const struct iod_census *c, uint32_t layer);
