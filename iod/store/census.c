/* See census.h. */
#include "iod/store/census.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/attr.h"
#include "shared/catalog.h"
#include "shared/fd.h"
#include "shared/safetensors.h"

#define CENSUS(name, key, sentence) { key, sentence },
static const struct {
	const char *key, *sentence;
} kinds[IOD_CENSUS_KINDS] = {
#include "iod/store/census.def"
};
#undef CENSUS

const char *iod_census_key(enum iod_census_kind kind)
{
	return kinds[kind].key;
}

const char *iod_census_sentence(enum iod_census_kind kind)
{
	return kinds[kind].sentence;
}

void iod_census_deinit(struct iod_census *c)
{
	for (uint32_t i = 0; i < c->n_files; i++)
		free(c->files[i].path);
	free(c->files);
	free(c->layers);
	shards_deinit(&c->shards);
	memset(c, 0, sizeof(*c));
}

static enum iod_census_kind kind_of_role(enum role role)
{
	switch (role) {
	case ROLE_ROUTER:
	case ROLE_ROUTER_BIAS:
		return IOD_CENSUS_ROUTER;
	case ROLE_LATENT_NORM:
	case ROLE_LATENT_DOWN:
	case ROLE_LATENT_UP:
		return IOD_CENSUS_LATENT;
	case ROLE_LM_HEAD:
		return IOD_CENSUS_HEAD;
	default:
		break;
	}
	switch (role_layer_kind(role)) {
	case LAYER_KDA:
		return IOD_CENSUS_KDA;
	case LAYER_MLA:
		return IOD_CENSUS_MLA;
	case LAYER_DENSE:
		return IOD_CENSUS_DENSE;
	case LAYER_MOE:
		return IOD_CENSUS_SHARED;
	case LAYER_HEAD:
		return IOD_CENSUS_HEAD_MIX;
	case LAYER_EMBED:
		return IOD_CENSUS_EMBED;
	case LAYER_ANY:
		break;
	}
	return IOD_CENSUS_MIX;
}

static bool begins_with(const struct st_entry *e, const char *prefix)
{
	size_t n = strlen(prefix);

	return e->name_len > n && memcmp(e->name, prefix, n) == 0;
}

static enum iod_census_kind kind_of(const struct st_entry *e, const struct names_id *id)
{
	switch (id->kind) {
	case NAMES_TRUNK:
		return kind_of_role(id->role);
	case NAMES_EXPERT:
		return id->part == EXPERT_GATE_SCALE || id->part == EXPERT_DOWN_SCALE ||
				       id->part == EXPERT_UP_SCALE
			       ? IOD_CENSUS_EXPERT_SCALES
			       : IOD_CENSUS_EXPERT_WEIGHTS;
	case NAMES_OTHER:
		break;
	}
	return begins_with(e, "vision_tower.") || begins_with(e, "mm_projector.")
		       ? IOD_CENSUS_VISION
		       : IOD_CENSUS_UNKNOWN;
}

static void count(struct iod_census_sum *sum, uint64_t bytes)
{
	sum->tensors++;
	sum->bytes += bytes;
}

static int count_entry(void *data, const struct st_entry *e, struct err *err)
{
	struct iod_census *c = data;
	enum iod_census_kind kind;
	struct names_id id;
	bool is_layer;

	names_parse(e->name, e->name_len, &c->config, &id);
	kind = kind_of(e, &id);
	is_layer = kind <= IOD_CENSUS_MIX;
	if (is_layer && id.layer >= c->config.n_layers)
		return err_set(err, ERR_BIND,
			       "%.*s: the config says %u layers; config.json and shards are of "
			       "different models",
			       (int)e->name_len, e->name, c->config.n_layers);
	if (is_layer && id.layer >= c->n_layers) {
		c->left_out += e->size;
		return 0;
	}
	count(&c->kinds[kind], e->size);
	if (is_layer)
		count(&c->layers[id.layer][kind], e->size);
	return 0;
}

static int count_file(struct iod_census *c, const char *path, struct err *err)
{
	struct iod_census_file *f = &c->files[c->n_files];
	CLEANUP(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	uint8_t prefix[8];
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(err, ERR_IO, "%s: %s", path, fd_strerror(errno));
	r = st_scan(fd, path, count_entry, c, NULL, err);
	if (r < 0)
		return r;
	r = fd_pread_all(fd, prefix, sizeof(prefix), 0);
	if (r < 0)
		return err_set(err, ERR_IO, "%s: %s", path, strerror(-r));
	f->path = strdup(path);
	if (!f->path)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	f->size = (uint64_t)st.st_size;
	f->header_size = sizeof(prefix);
	for (unsigned i = 0; i < sizeof(prefix); i++)
		f->header_size += (uint64_t)prefix[i] << 8 * i;
	c->n_files++;
	return 0;
}

static int take(const struct iod_census_want *want, struct iod_census *c, struct err *err)
{
	int r = source_read_config(want->config_path, want->model_dirs, want->n_model_dirs,
				   &c->config, err);

	if (r < 0)
		return r;
	if (want->max_layers > c->config.n_layers)
		return err_set(err, ERR_USAGE, "%u layers are asked for, the model has %u",
			       want->max_layers, c->config.n_layers);
	c->n_layers = want->max_layers ? want->max_layers : c->config.n_layers;
	r = shards_find(want->model_dirs, want->n_model_dirs, &c->shards, err);
	if (r < 0)
		return r;
	c->layers = calloc(c->config.n_layers, sizeof(*c->layers));
	c->files = calloc(c->shards.n_paths, sizeof(*c->files));
	if (!c->layers || !c->files)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	for (uint32_t i = 0; r == 0 && i < c->shards.n_paths; i++)
		r = count_file(c, c->shards.paths[i], err);
	return r;
}

int iod_census_take(const struct iod_census_want *want, struct iod_census *ret, struct err *err)
{
	int r;

	memset(ret, 0, sizeof(*ret));
	r = take(want, ret, err);
	if (r < 0)
		iod_census_deinit(ret);
	return r;
}

static struct iod_census_sum add(const struct iod_census_sum sums[IOD_CENSUS_KINDS],
				 enum iod_census_kind first, enum iod_census_kind last)
{
	struct iod_census_sum total = { 0 };

	for (enum iod_census_kind k = first; k <= last; k++) {
		total.tensors += sums[k].tensors;
		total.bytes += sums[k].bytes;
	}
	return total;
}

struct iod_census_sum iod_census_experts(const struct iod_census_sum sums[IOD_CENSUS_KINDS])
{
	return add(sums, IOD_CENSUS_EXPERT_WEIGHTS, IOD_CENSUS_EXPERT_SCALES);
}

struct iod_census_sum iod_census_trunk(const struct iod_census_sum sums[IOD_CENSUS_KINDS])
{
	return add(sums, IOD_CENSUS_KDA, IOD_CENSUS_MIX);
}

struct iod_census_sum iod_census_all(const struct iod_census_sum sums[IOD_CENSUS_KINDS])
{
	return add(sums, 0, IOD_CENSUS_UNKNOWN);
}

bool iod_census_is_whole(const struct iod_census *c, uint32_t layer)
{
	bool is_moe = config_layer_is_moe(&c->config, layer);
	uint64_t wanted = is_moe ? (uint64_t)c->config.n_experts * EXPERT_PARTS : 0;

	for (unsigned role = 0; role < ROLE_N_; role++)
		wanted += role_in_layer((enum role)role, &c->config, layer);
	return iod_census_all(c->layers[layer]).tensors >= wanted;
}
