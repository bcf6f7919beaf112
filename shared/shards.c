/* See shards.h. The index of the release is 60 MB, so it is scanned, not parsed into a tree. */
#include "shared/shards.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/jscan.h"

#define INDEX_NAME "model.safetensors.index.json"
#define SUFFIX     ".safetensors"

enum { SHARDS_MAX = 65536 };

/* A growing set of names; ascending once sorted. */
struct name_set {
	char **items;
	uint32_t n, n_allocated;
};

static void set_deinit(struct name_set *s)
{
	for (uint32_t i = 0; i < s->n; i++)
		free(s->items[i]);
	free(s->items);
	memset(s, 0, sizeof(*s));
}

static int set_add(struct name_set *s, const char *name, size_t len, struct err *err)
{
	char *copy;

	if (s->n == SHARDS_MAX)
		return err_set(err, ERR_CHECKPOINT, "more than %d shards", (int)SHARDS_MAX);
	if (s->n == s->n_allocated) {
		uint32_t n = s->n_allocated ? 2 * s->n_allocated : 128;
		char **grown = reallocarray(s->items, n, sizeof(*grown));

		if (!grown)
			return err_set(err, ERR_NO_MEMORY, "out of memory");
		s->items = grown;
		s->n_allocated = n;
	}
	copy = strndup(name, len);
	if (!copy)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	s->items[s->n++] = copy;
	return 0;
}

/* By the last part of the path, then by the whole of it. */
static int compare_paths(const void *a, const void *b)
{
	const char *x = *(char *const *)a, *y = *(char *const *)b;
	const char *x_slash = strrchr(x, '/'), *y_slash = strrchr(y, '/');
	int r = strcmp(x_slash ? x_slash + 1 : x, y_slash ? y_slash + 1 : y);

	return r ? r : strcmp(x, y);
}

/* ---- the index --------------------------------------------------------------------------- */

/* Shards by name, and what is in each. */
struct named {
	struct name_set names;
	struct shards_content *content; /* [names.n_allocated] */
};

static void named_deinit(struct named *n)
{
	set_deinit(&n->names);
	free(n->content);
}

bool shards_content_has(const struct shards_content *c, uint32_t layer)
{
	return layer < CONFIG_LAYERS_MAX && (c->layers[layer / 8] >> layer % 8 & 1) != 0;
}

/* The shard's content; NULL without memory. */
static struct shards_content *find_content(struct named *n, const char *name, struct err *err)
{
	uint32_t before = n->names.n_allocated, i = n->names.n;

	while (i-- > 0)
		if (strcmp(n->names.items[i], name) == 0)
			return &n->content[i];
	if (set_add(&n->names, name, strlen(name), err) < 0)
		return NULL;
	if (n->names.n_allocated != before) {
		void *grown = reallocarray(n->content, n->names.n_allocated, sizeof(*n->content));

		if (!grown) {
			(void)err_set(err, ERR_NO_MEMORY, "out of memory");
			return NULL;
		}
		n->content = grown;
	}
	n->content[n->names.n - 1] = (struct shards_content){ .is_known = true };
	return &n->content[n->names.n - 1];
}

/* Of the tensor's name only the layer matters: it is told from the name's beginning. */
static void note_tensor(struct shards_content *content, const char *name, size_t len)
{
	static const char prefix[] = "language_model.model.layers.";
	uint32_t layer = 0;
	size_t at = sizeof(prefix) - 1;

	if (len <= at || memcmp(name, prefix, at) != 0 || name[at] < '0' || name[at] > '9') {
		content->has_others = true;
		return;
	}
	for (; at < len && name[at] >= '0' && name[at] <= '9' && layer < CONFIG_LAYERS_MAX; at++)
		layer = layer * 10 + (uint32_t)(name[at] - '0');
	if (layer < CONFIG_LAYERS_MAX)
		content->layers[layer / 8] |= (uint8_t)(1u << layer % 8);
}

/* The object weight_map: a shard's name for each tensor; neighbours mostly have the same one. */
static int read_weight_map(struct jscan *j, struct named *named)
{
	char name[256], last[256] = "/"; /* no name has a slash */
	struct shards_content *content = NULL;
	int c = jscan_next_token(j), r;

	if (c != '{')
		return jscan_fail_byte(j, "the object weight_map", c);
	for (c = jscan_next_token(j); c != '}'; c = jscan_next_token(j)) {
		if (c == ',')
			c = jscan_next_token(j);
		if (c != '"')
			return jscan_fail_byte(j, "a tensor's name", c);
		r = jscan_read_string(j, j->subject, sizeof(j->subject));
		if (r < 0)
			return r;
		j->subject_len = (size_t)r;
		r = jscan_expect(j, ':');
		if (r >= 0)
			r = jscan_expect(j, '"');
		if (r >= 0)
			r = jscan_read_string(j, name, sizeof(name) - 1);
		if (r < 0)
			return r;
		name[r] = '\0';
		if (strcmp(name, last) != 0) {
			memcpy(last, name, sizeof(last));
			if (r == 0 || name[0] == '.' || strchr(name, '/'))
				return jscan_fail(
					j, "weight_map names \"%s\", which is not a file name",
					name);
			content = find_content(named, name, j->err);
			if (!content)
				return -ENOMEM;
		}
		note_tensor(content, j->subject, j->subject_len);
	}
	j->subject_len = 0;
	return 0;
}

/* A value that is of no interest. */
static int skip_value(struct jscan *j, int c, int *ret_next)
{
	int r = 0;

	if (c == '{' || c == '[')
		r = jscan_skip_container(j, c);
	else if (c == '"')
		r = jscan_read_string(j, NULL, 0);
	else
		while (c >= 0 && c != ',' && c != '}')
			c = jscan_next_token(j);
	if (r < 0)
		return r;
	*ret_next = c == ',' || c == '}' || c < 0 ? c : jscan_next_token(j);
	return 0;
}

static int read_index(struct jscan *j, struct named *named)
{
	bool has_map = false;
	char key[32];
	int c = jscan_next_token(j), r;

	if (c != '{')
		return jscan_fail_byte(j, "'{'", c);
	c = jscan_next_token(j);
	while (c != '}') {
		if (c == ',')
			c = jscan_next_token(j);
		if (c != '"')
			return jscan_fail_byte(j, "a name", c);
		r = jscan_read_string(j, key, sizeof(key) - 1);
		if (r < 0)
			return r;
		key[r] = '\0';
		r = jscan_expect(j, ':');
		if (r < 0)
			return r;
		if (strcmp(key, "weight_map") == 0) {
			has_map = true;
			r = read_weight_map(j, named);
			c = r < 0 ? r : jscan_next_token(j);
		} else {
			r = skip_value(j, jscan_next_token(j), &c);
		}
		if (r < 0)
			return r;
	}
	return has_map ? 0 : jscan_fail(j, "weight_map is missing");
}

/* Add the shard names of one index file; path is that of the file. */
static int scan_index(int fd, const char *path, struct named *named, struct err *err)
{
	CLEANUP(freep) struct jscan *j = malloc(sizeof(*j));
	struct stat st;

	if (!j)
		return err_set(err, ERR_NO_MEMORY, "%s: out of memory", path);
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return err_set(err, ERR_CHECKPOINT, "%s: not a regular file", path);
	jscan_init(j, fd, path, 0, (uint64_t)st.st_size, err);
	return read_index(j, named);
}

/* Collect from the index of every directory that has one; *ret_path is that of the first. */
static int scan_indices(const char *const *dirs, uint32_t n_dirs, struct named *named,
			char **ret_path, struct err *err)
{
	for (uint32_t i = 0; i < n_dirs; i++) {
		CLEANUP(freep) char *path = NULL;
		CLEANUP(fd_closep) int fd = -1;
		int r;

		if (asprintf(&path, "%s/" INDEX_NAME, dirs[i]) < 0)
			return err_set(err, ERR_NO_MEMORY, "out of memory");
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		if (fd < 0 && errno == ENOENT)
			continue;
		if (fd < 0)
			return err_set(err, ERR_CHECKPOINT, "%s: %s", path, fd_strerror(errno));
		r = scan_index(fd, path, named, err);
		if (r < 0)
			return r;
		if (!*ret_path)
			*ret_path = TAKE(path);
	}
	return 0;
}

/* ---- directories ------------------------------------------------------------------------- */

static void closedirp(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}

/* All *.safetensors of one directory. */
static int list_dir(const char *dir, struct name_set *paths, struct err *err)
{
	CLEANUP(closedirp) DIR *d = opendir(dir);
	const struct dirent *e;

	if (!d)
		return err_set(err, ERR_CHECKPOINT, "%s: %s", dir, fd_strerror(errno));
	for (errno = 0; (e = readdir(d)); errno = 0) {
		CLEANUP(freep) char *path = NULL;
		size_t len = strlen(e->d_name);
		int r;

		if (e->d_name[0] == '.' || len <= sizeof(SUFFIX) - 1 ||
		    strcmp(e->d_name + len - (sizeof(SUFFIX) - 1), SUFFIX) != 0)
			continue;
		r = asprintf(&path, "%s/%s", dir, e->d_name);
		if (r < 0)
			return err_set(err, ERR_NO_MEMORY, "out of memory");
		r = set_add(paths, path, (size_t)r, err);
		if (r < 0)
			return r;
	}
	return errno ? err_set(err, ERR_IO, "%s: %s", dir, strerror(errno)) : 0;
}

/* The first directory that has the file, or absent. */
static int place_shard(const char *const *dirs, uint32_t n_dirs, const char *name,
		       struct name_set *paths, struct name_set *absent, struct err *err)
{
	for (uint32_t i = 0; i < n_dirs; i++) {
		CLEANUP(freep) char *path = NULL;
		int r = asprintf(&path, "%s/%s", dirs[i], name);

		if (r < 0)
			return err_set(err, ERR_NO_MEMORY, "out of memory");
		if (access(path, F_OK) == 0)
			return set_add(paths, path, (size_t)r, err);
	}
	return set_add(absent, name, strlen(name), err);
}

/* One file under two names (a directory given twice, links) counts once. */
static int drop_aliases(struct name_set *paths, struct err *err)
{
	CLEANUP(freep) struct stat *st = calloc(paths->n + 1, sizeof(*st));
	uint32_t n = 0;

	if (!st)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	for (uint32_t i = 0; i < paths->n; i++) {
		uint32_t k = 0;

		if (stat(paths->items[i], &st[n]) < 0) {
			int r = err_set(err, ERR_CHECKPOINT, "%s: %s", paths->items[i],
					strerror(errno));

			paths->n = paths->n - i + n; /* keep the rest owned */
			memmove(&paths->items[n], &paths->items[i],
				(paths->n - n) * sizeof(*paths->items));
			return r;
		}
		while (k < n && (st[k].st_dev != st[n].st_dev || st[k].st_ino != st[n].st_ino))
			k++;
		if (k < n)
			free(paths->items[i]);
		else
			paths->items[n++] = paths->items[i];
	}
	paths->n = n;
	return 0;
}

/* Without an index: the numbers that no file has, when all are called model-X-of-N. */
static int find_gaps(const struct name_set *paths, struct name_set *absent, struct err *err)
{
	CLEANUP(freep) uint8_t *has = NULL;
	unsigned total = 0;

	for (uint32_t i = 0; i < paths->n; i++) {
		const char *slash = strrchr(paths->items[i], '/');
		unsigned number, of;
		int len = 0;

		if (!slash ||
		    sscanf(slash, "/model-%5u-of-%6u.safetensors%n", &number, &of, &len) != 2 ||
		    len == 0 || slash[len] || number == 0 || number > of || (total && of != total))
			return 0;
		total = of;
		if (!has)
			has = calloc((size_t)total + 1, 1);
		if (!has)
			return err_set(err, ERR_NO_MEMORY, "out of memory");
		has[number] = 1;
	}
	for (unsigned i = 1; has && i <= total && total <= SHARDS_MAX; i++) {
		char name[64];
		int n = snprintf(name, sizeof(name), "model-%05u-of-%06u" SUFFIX, i, total);

		if (!has[i] && set_add(absent, name, (size_t)n, err) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* What the index says of the absent ones. */
static int tell_content(struct named *named, const struct name_set *absent,
			struct shards_content **ret, struct err *err)
{
	*ret = calloc(absent->n + 1, sizeof(**ret));
	if (!*ret)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	for (uint32_t i = 0; i < absent->n; i++)
		for (uint32_t k = 0; k < named->names.n; k++)
			if (strcmp(named->names.items[k], absent->items[i]) == 0)
				(*ret)[i] = named->content[k];
	return 0;
}

static int find_all(const char *const *dirs, uint32_t n_dirs, struct name_set *paths,
		    struct name_set *absent, struct shards_content **ret_content, char **ret_index,
		    struct err *err)
{
	CLEANUP(named_deinit) struct named named = { 0 };
	int r = scan_indices(dirs, n_dirs, &named, ret_index, err);

	for (uint32_t i = 0; r == 0 && *ret_index && i < named.names.n; i++)
		r = place_shard(dirs, n_dirs, named.names.items[i], paths, absent, err);
	for (uint32_t i = 0; r == 0 && !*ret_index && i < n_dirs; i++)
		r = list_dir(dirs[i], paths, err);
	if (r == 0 && !*ret_index)
		r = find_gaps(paths, absent, err);
	if (r < 0)
		return r;
	if (paths->n == 0)
		return err_set(err, ERR_CHECKPOINT, "%s: no *.safetensors file is here", dirs[0]);
	qsort(paths->items, paths->n, sizeof(*paths->items), compare_paths);
	if (absent->n)
		qsort(absent->items, absent->n, sizeof(*absent->items), compare_paths);
	r = tell_content(&named, absent, ret_content, err);
	return r < 0 ? r : drop_aliases(paths, err);
}

int shards_find(const char *const *dirs, uint32_t n_dirs, struct shards *ret, struct err *err)
{
	CLEANUP(set_deinit) struct name_set paths = { 0 };
	CLEANUP(set_deinit) struct name_set absent = { 0 };
	CLEANUP(freep) char *index_path = NULL;
	CLEANUP(freep) struct shards_content *content = NULL;
	int r = find_all(dirs, n_dirs, &paths, &absent, &content, &index_path, err);

	if (r < 0)
		return r;
	ret->n_paths = paths.n;
	ret->paths = TAKE(paths.items);
	ret->n_absent = absent.n;
	ret->absent = TAKE(absent.items);
	ret->absent_content = TAKE(content);
	ret->index_path = TAKE(index_path);
	paths.n = absent.n = 0;
	return 0;
}

void shards_deinit(struct shards *s)
{
	struct name_set paths = { .items = s->paths, .n = s->n_paths };
	struct name_set absent = { .items = s->absent, .n = s->n_absent };

	set_deinit(&paths);
	set_deinit(&absent);
	free(s->absent_content);
	free(s->index_path);
	memset(s, 0, sizeof(*s));
}
