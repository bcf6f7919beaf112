#include "compute/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "compute/layers.h"
#include "shared/attr.h"
#include "shared/must.h"

/* The latents start at this many positions and double. */
enum { FIRST_CAPACITY = 256 };

static size_t recurrent_len(const struct config *c)
{
	return (size_t)c->n_kda_heads * c->kda_dim * c->kda_dim;
}

static size_t conv_len(const struct config *c)
{
	return (size_t)(c->conv_size - 1) * config_kda_width(c);
}

static size_t kda_layer_size(const struct config *c)
{
	return (recurrent_len(c) + K3_STREAM_N_ * conv_len(c)) * sizeof(float);
}

void k3_state_plan(const struct config *c, uint32_t n_layers, uint32_t max_positions,
		   struct k3_state_size *ret)
{
	uint64_t position = ((uint64_t)c->kv_lora_rank + c->qk_rope_dim) * sizeof(float);

	*ret = (struct k3_state_size){ 0 };
	for (uint32_t l = 0; l < n_layers; l++) {
		if (c->is_mla[l])
			ret->mla += max_positions * position;
		else
			ret->kda += kda_layer_size(c);
	}
}

static void lay_out_kda(struct k3_sequence *s)
{
	const struct config *c = s->config;
	float *at = s->memory;

	for (uint32_t l = 0; l < s->n_layers; l++) {
		if (c->is_mla[l])
			continue;
		s->layers[l].recurrent = at;
		at += recurrent_len(c);
		for (unsigned i = 0; i < K3_STREAM_N_; i++) {
			s->layers[l].conv[i] = at;
			at += conv_len(c);
		}
	}
}

int k3_sequence_new(struct k3_sequence **ret, const struct k3_engine *e, struct err *err)
{
	CLEANUP(k3_sequence_freep) struct k3_sequence *s = calloc(1, sizeof(*s));
	struct k3_state_size size;
	void *p;

	if (!s)
		return err_set(err, ERR_NO_MEMORY, "no memory for a sequence");
	s->config = e->config;
	s->n_layers = e->n_layers;
	s->max_positions = e->max_positions;
	s->layers = calloc(s->n_layers, sizeof(*s->layers));
	k3_state_plan(s->config, s->n_layers, s->max_positions, &size);
	if (size.kda > 0) {
		p = mmap(NULL, size.kda, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			 0);
		if (p != MAP_FAILED) {
			s->memory = p;
			s->memory_size = size.kda;
			/* Every token reads and writes all of it: huge pages nearly double the
			 * rate. */
			(void)madvise(p, size.kda, MADV_HUGEPAGE);
		}
	}
	if (!s->layers || (size.kda > 0 && !s->memory))
		return err_set(err, ERR_NO_MEMORY,
			       "no memory for the state of a sequence (%llu bytes)",
			       (unsigned long long)size.kda);
	lay_out_kda(s);
	*ret = TAKE(s);
	return 0;
}

struct k3_sequence *k3_sequence_free(struct k3_sequence *s)
{
	if (!s)
		return NULL;
	for (uint32_t l = 0; s->layers && l < s->n_layers; l++) {
		free(s->layers[l].latents);
		free(s->layers[l].ropes);
	}
	free(s->layers);
	if (s->memory)
		(void)munmap(s->memory, s->memory_size);
	free(s);
	return NULL;
}

void k3_sequence_freep(struct k3_sequence **s)
{
	*s = k3_sequence_free(*s);
}

int k3_sequence_take(struct k3_sequence *s, struct err *err)
{
	const struct config *c = s->config;
	int r = k3_sequence_reserve(s, s->max_positions, err);

	if (r < 0)
		return r;
	must(s->position == 0); /* nothing to lose */
	if (s->memory)
		memset(s->memory, 0, s->memory_size);
	for (uint32_t l = 0; l < s->n_layers; l++) {
		struct k3_layer_state *layer = &s->layers[l];
		size_t n = layer->capacity * sizeof(float);

		if (!c->is_mla[l])
			continue;
		memset(layer->latents, 0, n * c->kv_lora_rank);
		memset(layer->ropes, 0, n * c->qk_rope_dim);
	}
	return 0;
}

void k3_sequence_reset(struct k3_sequence *s)
{
	/* Latents beyond the position are never read. */
	if (s->memory)
		memset(s->memory, 0, s->memory_size);
	s->position = 0;
}

uint32_t k3_sequence_position(const struct k3_sequence *s)
{
	return s->position;
}

static int grow(float **p, size_t capacity, size_t width)
{
	float *bigger = realloc(*p, capacity * width * sizeof(float));

	if (!bigger)
		return -1;
	*p = bigger;
	return 0;
}

int k3_sequence_reserve(struct k3_sequence *s, uint32_t n_positions, struct err *err)
{
	const struct config *c = s->config;

	for (uint32_t l = 0; l < s->n_layers; l++) {
		struct k3_layer_state *layer = &s->layers[l];
		uint64_t capacity = layer->capacity ? layer->capacity : FIRST_CAPACITY;

		if (!c->is_mla[l] || layer->capacity >= n_positions)
			continue;
		while (capacity < n_positions)
			capacity *= 2;
		if (capacity > s->max_positions)
			capacity = s->max_positions;
		if (grow(&layer->latents, capacity, c->kv_lora_rank) < 0 ||
		    grow(&layer->ropes, capacity, c->qk_rope_dim) < 0)
			return err_set(err, ERR_NO_MEMORY,
				       "no memory for the latents of %u positions", n_positions);
		layer->capacity = (uint32_t)capacity;
	}
	return 0;
}
