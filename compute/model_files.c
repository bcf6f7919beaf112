#include "compute/model_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/attr.h"
#include "shared/fd.h"

static int add_file(struct k3_model_files *f, const char *dir, const char *name, struct err *err)
{
	char **paths = realloc(f->paths, (f->n + 1) * sizeof(*paths));
	uint64_t *sizes = realloc(f->sizes, (f->n + 1) * sizeof(*sizes));
	struct stat st;
	char *path;

	f->paths = paths ? paths : f->paths;
	f->sizes = sizes ? sizes : f->sizes;
	if (!paths || !sizes || asprintf(&path, "%s%s%s", dir, *dir ? "/" : "", name) < 0)
		return err_set(err, ERR_NO_MEMORY, "no memory for a path");
	if (stat(path, &st) < 0) {
		int e = errno;
		int r = err_set(err, ERR_IO, "cannot look at %s: %s", path, strerror(e));

		free(path);
		return r;
	}
	f->paths[f->n] = path;
	f->sizes[f->n++] = (uint64_t)st.st_size;
	f->total_size += (uint64_t)st.st_size;
	return 0;
}

static int is_shard(const struct dirent *d)
{
	const char *end = strstr(d->d_name, ".safetensors");

	return end && end[sizeof(".safetensors") - 1] == '\0' && d->d_name[0] != '.';
}

static int add_dir(struct k3_model_files *f, const char *dir, struct err *err)
{
	struct dirent **entries = NULL;
	int n = scandir(dir, &entries, is_shard, alphasort);
	int r = 0;

	if (n < 0)
		return err_set(err, ERR_IO, "cannot list %s: %s", dir, fd_strerror(errno));
	for (int i = 0; i < n; i++) {
		if (r == 0)
			r = add_file(f, dir, entries[i]->d_name, err);
		free(entries[i]);
	}
	free(entries);
	return r;
}

int k3_model_files_find(const struct option_list *dirs, const struct option_list *trunk,
			struct k3_model_files *ret, struct err *err)
{
	CLEANUP(k3_model_files_deinit) struct k3_model_files f = { 0 };
	int r = 0;

	for (size_t i = 0; r == 0 && i < dirs->n; i++)
		r = add_dir(&f, dirs->items[i], err);
	for (size_t i = 0; r == 0 && i < trunk->n; i++)
		r = add_file(&f, "", trunk->items[i], err);
	if (r < 0)
		return r;
	*ret = f;
	f = (struct k3_model_files){ 0 };
	return 0;
}

void k3_model_files_deinit(struct k3_model_files *f)
{
	for (size_t i = 0; i < f->n; i++)
		free(f->paths[i]);
	free(f->paths);
	free(f->sizes);
	*f = (struct k3_model_files){ 0 };
}
