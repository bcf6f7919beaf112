/*
 * Special tokens: 256 ids after the last rank. The named ones stand in tokenizer_config.json under
 * added_tokens_decoder ({"163584": {"content": "[BOS]", ...}, ...}); every other id N of the 256 is
 * "<|reserved_token_N|>". The "special" flag there is about hiding a token when text is shown; for
 * encoding all of them are control tokens alike.
 */
#include "compute/text/vocabulary.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/attr.h"

static int take_entry(struct k3_vocabulary *v, const char *key, const json_t *entry,
		      struct err *err)
{
	const char *name = json_string_value(json_object_get(entry, "content"));
	char *end = NULL;
	unsigned long id = strtoul(key, &end, 10);
	char **place;

	if (key[0] < '0' || key[0] > '9' || *end)
		return err_set(err, ERR_VOCABULARY,
			       "tokenizer_config.json: added_tokens_decoder has the key \"%s\", "
			       "which is no token id",
			       key);
	if (id < v->n_ranks || id >= (unsigned long)v->n_ranks + K3_N_SPECIALS)
		return err_set(err, ERR_VOCABULARY,
			       "tokenizer_config.json: added token %s is not one of the %d ids "
			       "after the %u ranks of tiktoken.model; both files must be of the "
			       "same model",
			       key, K3_N_SPECIALS, v->n_ranks);
	if (!name || !name[0])
		return err_set(err, ERR_VOCABULARY,
			       "tokenizer_config.json: added token %s has no content", key);
	place = &v->special[id - v->n_ranks];
	if (*place)
		return err_set(err, ERR_VOCABULARY,
			       "tokenizer_config.json: added token %s is given twice", key);
	*place = strdup(name);
	return *place ? 0 : err_set(err, ERR_NO_MEMORY, "no memory for a token's name");
}

static int take_config(struct k3_vocabulary *v, const char *config, size_t size, struct err *err)
{
	json_error_t je;
	CLEANUP(json_decrefp) json_t *root = json_loadb(config, size, JSON_REJECT_DUPLICATES, &je);
	json_t *added, *entry;
	const char *key;

	if (!root)
		return err_set(err, ERR_VOCABULARY, "tokenizer_config.json line %d: %s", je.line,
			       je.text);
	added = json_object_get(root, "added_tokens_decoder");
	if (!json_is_object(added))
		return err_set(err, ERR_VOCABULARY,
			       "tokenizer_config.json has no object added_tokens_decoder, so the "
			       "names of the special tokens are unknown");
	json_object_foreach(added, key, entry)
	{
		int r = take_entry(v, key, entry, err);

		if (r < 0)
			return r;
	}
	v->has_names = true;
	return 0;
}

/* Longest names first, so that the first hit at a place is the longest. */
static void sort_by_size(struct k3_vocabulary *v)
{
	for (unsigned i = 0; i < K3_N_SPECIALS; i++) {
		unsigned k = i;

		for (; k > 0; k--) {
			if (strlen(v->special[v->by_size[k - 1]]) >= strlen(v->special[i]))
				break;
			v->by_size[k] = v->by_size[k - 1];
		}
		v->by_size[k] = (uint8_t)i;
		v->starts_special[(unsigned char)v->special[i][0]] = true;
	}
}

static int check_distinct(const struct k3_vocabulary *v, struct err *err)
{
	for (unsigned i = 0; i < K3_N_SPECIALS; i++)
		for (unsigned k = i + 1; k < K3_N_SPECIALS; k++)
			if (strcmp(v->special[i], v->special[k]) == 0)
				return err_set(err, ERR_VOCABULARY,
					       "tokenizer_config.json: ids %u and %u are both "
					       "named \"%s\"",
					       v->n_ranks + i, v->n_ranks + k, v->special[i]);
	return 0;
}

int k3_vocabulary_name_specials(struct k3_vocabulary *v, const char *config, size_t config_size,
				struct err *err)
{
	if (config) {
		int r = take_config(v, config, config_size, err);

		if (r < 0)
			return r;
	}
	for (unsigned i = 0; i < K3_N_SPECIALS; i++) {
		char name[40];

		if (v->special[i])
			continue;
		(void)snprintf(name, sizeof(name), "<|reserved_token_%u|>", v->n_ranks + i);
		v->special[i] = strdup(name);
		if (!v->special[i])
			return err_set(err, ERR_NO_MEMORY, "no memory for a token's name");
	}
	sort_by_size(v);
	return check_distinct(v, err);
}

uint32_t k3_vocabulary_special_at(const struct k3_vocabulary *v, const char *text, size_t size,
				  size_t *ret_size)
{
	if (size == 0 || !v->starts_special[(unsigned char)text[0]])
		return K3_NO_RANK;
	for (unsigned i = 0; i < K3_N_SPECIALS; i++) {
		const char *name = v->special[v->by_size[i]];
		size_t n = strlen(name);

		if (n <= size && memcmp(name, text, n) == 0) {
			*ret_size = n;
			return v->n_ranks + v->by_size[i];
		}
	}
	return K3_NO_RANK;
}
