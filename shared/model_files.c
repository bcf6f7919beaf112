#include "shared/model_files.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <sys/stat.h>

#include "shared/attr.h"
#include "shared/fd.h"

static bool is_at(const char *path, const struct stat *st)
{
	struct stat other;

	return stat(path, &other) == 0 && other.st_dev == st->st_dev && other.st_ino == st->st_ino;
}

static bool is_in(const char *dir, const struct stat *st)
{
	static const char *const patterns[] = { "*.safetensors", "config.json",
						"*.safetensors.index.json", "tiktoken.model",
						"tokenizer_config.json" };
	DIR *d = opendir(dir);
	const struct dirent *entry;
	bool found = false;

	while (d && !found && (entry = readdir(d)) != NULL) {
		CLEANUP(freep) char *name = NULL;

		for (size_t i = 0; i < N_ELEMENTS(patterns) && !name; i++)
			if (fnmatch(patterns[i], entry->d_name, 0) == 0 &&
			    asprintf(&name, "%s/%s", dir, entry->d_name) < 0)
				name = NULL;
		found = name && is_at(name, st);
	}
	if (d)
		(void)closedir(d);
	return found;
}

bool model_files_has(const struct option_list *dirs, const struct option_list *trunk,
		     const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0 || !S_ISREG(st.st_mode))
		return false;
	for (size_t i = 0; i < dirs->n; i++)
		if (is_in(dirs->items[i], &st))
			return true;
	for (size_t i = 0; i < trunk->n; i++)
		if (is_at(trunk->items[i], &st))
			return true;
	return false;
}
