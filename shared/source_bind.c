/*
 * Binding: every header entry of every shard is matched with what the config wants, its shape and
 * dtype are checked, and its place is noted. Shapes are compared without their sides of 1, since
 * vectors are stored as [n], [1, n] or, for convolutions, [n, 1, taps].
 */
#include "shared/source_build.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/missing.h"
#include "shared/safetensors.h"

/* While one shard is scanned. */
struct binding {
	struct source_build *b;
	const char *path;
	uint32_t file;
};

static void shape_text(const struct st_entry *e, char text[128])
{
	size_t at = 0;

	for (uint32_t i = 0; i < e->rank && at < 100; i++)
		at += (size_t)snprintf(text + at, 128 - at, "%s%llu", i ? ", " : "",
				       (unsigned long long)e->shape[i]);
	text[at] = '\0';
}

static int fail_shape(const struct binding *k, const struct st_entry *e, uint32_t rows,
		      uint32_t cols)
{
	char text[128];

	shape_text(e, text);
	return err_set(k->b->err, ERR_BIND, "%s: %.*s has shape [%s], the config says [%u, %u]",
		       k->path, (int)e->name_len, e->name, text, rows, cols);
}

/* The two shapes agree when their sides other than 1 do. */
static bool is_shape(const struct st_entry *e, uint32_t rows, uint32_t cols)
{
	uint64_t sides[2], wanted[2] = { rows, cols };
	uint32_t n = 0, n_wanted = 0;

	for (uint32_t i = 0; i < e->rank; i++) {
		if (e->shape[i] == 1)
			continue;
		if (n == 2)
			return false;
		sides[n++] = e->shape[i];
	}
	for (uint32_t i = 0; i < 2; i++)
		if (wanted[i] != 1)
			wanted[n_wanted++] = wanted[i];
	for (uint32_t i = 0; i < n && i < n_wanted; i++)
		if (sides[i] != wanted[i])
			return false;
	return n == n_wanted;
}

static int fail_twice(const struct binding *k, const struct st_entry *e, uint32_t other_file)
{
	return err_set(k->b->err, ERR_BIND, "%s: %.*s is also in %s", k->path, (int)e->name_len,
		       e->name, k->b->s->files[other_file].path);
}

static int bind_trunk(const struct binding *k, const struct st_entry *e, const struct names_id *id)
{
	const struct config *c = &k->b->s->config;
	bool is_layer =
		role_layer_kind(id->role) != LAYER_HEAD && role_layer_kind(id->role) != LAYER_EMBED;
	uint32_t row = is_layer ? id->layer : k->b->n_layers, rows, cols;
	bool ok;
	struct source_tensor *t;

	if (is_layer && id->layer < c->n_layers && !role_in_layer(id->role, c, id->layer)) {
		if (id->role == ROLE_LATENT_NORM)
			return 0; /* the config says not to use it */
		return err_set(k->b->err, ERR_BIND,
			       "%s: %.*s does not belong into a layer of this kind; config.json "
			       "and shards are of different models",
			       k->path, (int)e->name_len, e->name);
	}
	if (is_layer && row >= k->b->n_layers)
		return 0; /* beyond --layers */
	role_shape(id->role, c, &rows, &cols);
	if (id->role == ROLE_KDA_A_LOG) /* padded beyond the heads in the release */
		ok = e->rank > 0 && e->shape[e->rank - 1] >= cols &&
		     is_shape(e, 1, (uint32_t)e->shape[e->rank - 1]) &&
		     e->shape[e->rank - 1] <= UINT32_MAX;
	else
		ok = is_shape(e, rows, cols);
	if (!ok)
		return fail_shape(k, e, rows, cols);
	if (e->dtype != ST_F32 && e->dtype != ST_BF16)
		return err_set(k->b->err, ERR_BIND, "%s: %.*s has dtype %s instead of BF16 or F32",
			       k->path, (int)e->name_len, e->name, st_dtype_name(e->dtype));
	t = source_tensor_at(k->b, row, id->role);
	if (t->file != UINT32_MAX)
		return fail_twice(k, e, t->file);
	*t = (struct source_tensor){ .off = e->offset,
				     .size = e->size,
				     .file = k->file,
				     .dtype = e->dtype == ST_F32 ? CATALOG_F32 : CATALOG_BF16 };
	return 0;
}

static int bind_expert(const struct binding *k, const struct st_entry *e, const struct names_id *id)
{
	struct source_build *b = k->b;
	const struct config *c = &b->s->config;
	struct source_expert_part *part;
	uint32_t rows, cols;

	if (id->layer < c->n_layers &&
	    (id->expert >= c->n_experts || !config_layer_is_moe(c, id->layer)))
		return err_set(b->err, ERR_BIND,
			       "%s: %.*s: the config says %u experts, on layers from %u; "
			       "config.json and shards are of different models",
			       k->path, (int)e->name_len, e->name, c->n_experts, c->n_dense_layers);
	if (id->layer >= b->n_layers)
		return 0; /* beyond --layers */
	expert_part_shape(id->part, c, &rows, &cols);
	if (e->dtype != ST_U8)
		return err_set(b->err, ERR_BIND, "%s: %.*s has dtype %s instead of U8", k->path,
			       (int)e->name_len, e->name, st_dtype_name(e->dtype));
	if (e->rank != 2 || e->shape[0] != rows || e->shape[1] != cols)
		return fail_shape(k, e, rows, cols);
	if (!b->experts[id->layer]) {
		b->experts[id->layer] = calloc((size_t)c->n_experts * EXPERT_PARTS, sizeof(*part));
		if (!b->experts[id->layer])
			return err_set(b->err, ERR_NO_MEMORY, "no memory for %u experts",
				       c->n_experts);
	}
	part = &b->experts[id->layer][(size_t)id->expert * EXPERT_PARTS + id->part];
	if (part->file_plus_1)
		return fail_twice(k, e, part->file_plus_1 - 1);
	part->off = e->offset;
	part->file_plus_1 = k->file + 1;
	return 0;
}

static int bind_entry(void *data, const struct st_entry *e, struct err *err)
{
	static const char text_prefix[] = "language_model.";
	const struct binding *k = data;
	const struct config *c = &k->b->s->config;
	struct names_id id;

	k->b->s->n_tensors++;
	names_parse(e->name, e->name_len, c, &id);
	if (id.kind == NAMES_OTHER) {
		/* Vision is not ours; an unknown tensor of the text model would change its sense.
		 */
		if (e->name_len >= sizeof(text_prefix) - 1 &&
		    memcmp(e->name, text_prefix, sizeof(text_prefix) - 1) == 0)
			return err_set(err, ERR_BIND,
				       "%s: %.*s is no tensor of the model this engine runs",
				       k->path, (int)(e->name_len < 200 ? e->name_len : 200),
				       e->name);
		return 0;
	}
	if (id.layer >= c->n_layers)
		return err_set(err, ERR_BIND,
			       "%s: %.*s: the config says %u layers; config.json and shards are of "
			       "different models",
			       k->path, (int)e->name_len, e->name, c->n_layers);
	return id.kind == NAMES_TRUNK ? bind_trunk(k, e, &id) : bind_expert(k, e, &id);
}

/* Does an absent shard hold anything that is wanted? One that no index speaks of may. */
static bool costs_something(const struct source_build *b, const struct shards_content *c)
{
	for (uint32_t layer = 0; layer < b->n_layers; layer++)
		if (shards_content_has(c, layer))
			return true;
	return !c->is_known || c->has_others;
}

/* " (layers 2, 5 to 7 and the embedding, head or vision)" */
static void describe_content(const struct source_build *b, const struct shards_content *c,
			     char *text, size_t size)
{
	const char *lead = " (layer ";
	size_t at = 0;

	text[0] = '\0';
	for (uint32_t i = 0; i < b->s->config.n_layers && at + 60 < size; i++) {
		uint32_t last = i;

		if (!shards_content_has(c, i))
			continue;
		while (shards_content_has(c, last + 1))
			last++;
		at += (size_t)snprintf(text + at, size - at, last > i ? "%s%u to %u" : "%s%u", lead,
				       i, last);
		lead = ", ";
		i = last;
	}
	if (c->has_others)
		at += (size_t)snprintf(text + at, size - at, "%sembedding, head or vision",
				       at ? " and " : " (");
	if (at)
		(void)snprintf(text + at, size - at, ")");
}

/* "; not there: A (layer 2), B (layer 3), and 4 more" */
static void note_absent(const struct source_build *b, char *note, size_t size)
{
	const struct shards *s = &b->shards;
	uint32_t n = 0;
	size_t at = 0;

	note[0] = '\0';
	for (uint32_t i = 0; i < s->n_absent; i++) {
		char content[200];

		if (!costs_something(b, &s->absent_content[i]) || ++n > 3)
			continue;
		describe_content(b, &s->absent_content[i], content, sizeof(content));
		at += (size_t)snprintf(note + at, size - at, "%s%.100s%s",
				       n == 1 ? "; not there: " : ", ", s->absent[i], content);
	}
	if (n > 3)
		at += (size_t)snprintf(note + at, size - at, ", and %u more", n - 3);
	if (n > 0)
		(void)snprintf(note + at, size - at, "; fetch %s", n == 1 ? "it" : "them");
}

/* "; with --layers 3 what is here suffices": for a checkpoint whose first layers and head are
 * there. */
static void note_layers(const struct missing *m, char *note, size_t size)
{
	size_t at = strlen(note);
	uint32_t layer = 0;

	while (layer < CONFIG_LAYERS_MAX && !m->is_layer_hit[layer])
		layer++;
	if (layer > 0 && layer < CONFIG_LAYERS_MAX && !missing_has_global(m))
		(void)snprintf(note + at, size - at, "%s --layers %u needs only what is here",
			       at ? ", or" : ";", layer);
}

/* What the config wants and no shard has. */
static int report_missing(struct source_build *b)
{
	CLEANUP(freep) struct missing *m = calloc(1, sizeof(*m));
	const struct config *c = &b->s->config;
	unsigned n_names;
	char note[1200];

	if (!m)
		return err_set(b->err, ERR_NO_MEMORY, "out of memory");
	for (uint32_t layer = 0; layer <= b->n_layers; layer++)
		for (unsigned role = 0; role < ROLE_N_; role++) {
			enum layer_kind kind = role_layer_kind((enum role)role);
			bool is_global = kind == LAYER_HEAD || kind == LAYER_EMBED;
			bool is_wanted = layer == b->n_layers
						 ? is_global
						 : role_in_layer((enum role)role, c, layer);

			if (is_wanted &&
			    source_tensor_at(b, layer, (enum role)role)->file == UINT32_MAX)
				missing_add(m, (enum role)role, layer);
		}
	for (uint32_t layer = 0; layer < b->n_layers; layer++) {
		const struct source_expert_part *p = b->experts[layer];

		if (!config_layer_is_moe(c, layer))
			continue;
		for (uint32_t i = 0; i < c->n_experts * EXPERT_PARTS; i++)
			if (!p || !p[i].file_plus_1)
				missing_add_expert(m, layer, i / EXPERT_PARTS,
						   (enum expert_part)(i % EXPERT_PARTS));
	}
	note_absent(b, note, sizeof(note));
	/* An absent shard says it all; tensors that its file should have are each named. */
	n_names = note[0] ? 3 : MISSING_CLASSES;
	note_layers(m, note, sizeof(note));
	return missing_report(m, b->shards.index_path ? b->shards.index_path : "the model", note,
			      n_names, b->err);
}

int source_bind(struct source_build *b)
{
	size_t n = (size_t)(b->n_layers + 1) * ROLE_N_;

	b->tensors = calloc(n, sizeof(*b->tensors));
	b->experts = calloc(b->n_layers, sizeof(struct source_expert_part *));
	b->digests = calloc(b->s->n_files, sizeof(*b->digests));
	if (!b->tensors || !b->experts || !b->digests)
		return err_set(b->err, ERR_NO_MEMORY, "no memory for the tensors' places");
	for (size_t i = 0; i < n; i++)
		b->tensors[i].file = UINT32_MAX;
	for (uint32_t i = 0; i < b->s->n_files; i++) {
		const struct source_file *f = &b->s->files[i];
		struct binding k = { .b = b, .path = f->path, .file = i };
		int r = st_scan(f->fd, f->path, bind_entry, &k, b->digests[i], b->err);

		if (r < 0)
			return r;
	}
	return report_missing(b);
}
