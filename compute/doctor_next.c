#include "compute/doctor_next.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "shared/trunk_format.h"

enum next { NEXT_NONE, NEXT_FETCH, NEXT_FETCH_REST, NEXT_PACK_AGAIN, NEXT_PACK, NEXT_RUN };

/* ---- words ----------------------------------------------------------------------------------- */

/* A word of the command, in quotes where a shell would see more in it. */
static void put_word(FILE *f, const char *word)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789_-./:,=@%+";

	if (*word && word[strspn(word, plain)] == '\0') {
		(void)fputs(word, f);
		return;
	}
	(void)fputc('\'', f);
	for (; *word; word++)
		(void)fputs(*word == '\'' ? "'\\''" : (char[]){ *word, '\0' }, f);
	(void)fputc('\'', f);
}

static void put_option(FILE *f, const char *name, const char *value)
{
	if (!value)
		return;
	(void)fprintf(f, " %s ", name);
	put_word(f, value);
}

static void put_words(FILE *f, const struct option_list *words)
{
	for (size_t i = 0; i < words->n; i++) {
		(void)fputc(' ', f);
		put_word(f, words->items[i]);
	}
}

/* How a shell of here calls one of our programs: by name where it is installed, else by the path
 * beside this program or in its build tree. True when it is installed. */
static bool find_program(const char *name, const char *in_build, char *ret, size_t size)
{
	char self[4096];
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	bool is_installed;

	while (len > 0 && self[len - 1] != '/')
		len--;
	is_installed = len <= 0 || (len > 4 && strncmp(self + len - 5, "/bin/", 5) == 0);
	(void)snprintf(ret, size, "%.*s%s", is_installed ? 0 : (int)len, self,
		       is_installed ? name : in_build);
	return is_installed;
}

/* ---- commands -------------------------------------------------------------------------------- */

static void put_layers(const struct k3_next_want *w, FILE *f)
{
	if (w->n_layers > 0)
		(void)fprintf(f, " --layers %u", w->n_layers);
}

static void put_fetch(const struct k3_next_want *w, FILE *f)
{
	static const char script[] = "deploy/download-model";
	char path[4200];

	/* A script: no build makes it, it runs from the sources, which are here or around the
	 * build. */
	if (!find_program("k3-download-model", "../../deploy/download-model", path, sizeof(path)) &&
	    (access(script, X_OK) == 0 || access(path, X_OK) < 0))
		(void)snprintf(path, sizeof(path), "%s", script);
	put_word(f, path);
	(void)fputc(' ', f);
	put_word(f, w->dirs->n > 0 ? w->dirs->items[0] : "DIR");
	put_layers(w, f);
}

/* Nothing, or a file that k3-store pack replaces: it leaves those alone that are no trunk files. */
static bool is_free_for_pack(const char *path)
{
	CLEANUP(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	uint64_t magic = 0;
	struct stat st;

	if (fd < 0)
		return errno == ENOENT;
	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       (st.st_size == 0 ||
		(fd_pread_all(fd, &magic, sizeof(magic), 0) == 0 && magic == TRUNK_MAGIC));
}

/* The trunk files as given; one that is something else gets a name beside it. */
static void put_trunk_files(const struct k3_next_want *w, FILE *f)
{
	char path[PATH_MAX];

	for (size_t i = 0; i < w->trunk->n; i++) {
		const char *given = w->trunk->items[i];

		(void)snprintf(path, sizeof(path), "%s%s", given,
			       is_free_for_pack(given) ? "" : ".new");
		(void)fputc(' ', f);
		put_word(f, path);
	}
}

static void put_pack(const struct k3_next_want *w, FILE *f)
{
	static const struct option_list here = { .items = { "k3.trunk" }, .n = 1 };
	char store[4200];

	(void)find_program("k3-store", "../iod/store/k3-store", store, sizeof(store));
	put_word(f, store);
	(void)fputs(" pack", f);
	put_words(f, w->dirs);
	if (w->trunk->n > 0)
		put_trunk_files(w, f);
	else
		put_words(f, &here);
	put_option(f, "--config", w->config);
	put_layers(w, f);
}

static void put_run(const struct k3_next_want *w, FILE *f)
{
	char k3[4200];

	(void)find_program("k3", "k3", k3, sizeof(k3));
	put_word(f, k3);
	(void)fputs(" run", f);
	put_words(f, w->dirs);
	for (size_t i = 0; i < w->trunk->n; i++)
		put_option(f, "--trunk", w->trunk->items[i]);
	put_option(f, "--config", w->config);
	put_option(f, "--tok", w->tok);
	put_layers(w, f);
	(void)fprintf(f, " %s --gen 8",
		      w->has_vocabulary ? "--prompt \"The capital of France is\"" : "--ids 1,2,3");
}

/* Room for a trunk file in the current directory, which is where the command puts it. */
static bool has_room(uint64_t size)
{
	struct statvfs fs;

	return statvfs(".", &fs) == 0 && fs.f_bavail * fs.f_frsize > size * 11 / 10;
}

static enum next choose(const struct k3_next_want *w)
{
	if (w->dirs->n == 0)
		return NEXT_FETCH;
	if (w->checkpoint == K3_CHECKPOINT_NOT_WHOLE)
		return NEXT_FETCH_REST;
	if (w->checkpoint == K3_CHECKPOINT_BAD_TRUNK)
		return NEXT_PACK_AGAIN;
	if (w->checkpoint != K3_CHECKPOINT_WHOLE || !w->fits)
		return NEXT_NONE;
	return w->trunk->n == 0 && w->trunk_size > 0 && has_room(w->trunk_size) ? NEXT_PACK
										: NEXT_RUN;
}

char *k3_next_command(const struct k3_next_want *w, const char **ret_why)
{
	static const struct {
		void (*put)(const struct k3_next_want *w, FILE *f);
		const char *why;
	} commands[] = {
		[NEXT_FETCH] = { put_fetch, "no MODEL was given; it takes 1.56 TB" },
		[NEXT_FETCH_REST] = { put_fetch,
				      "the checkpoint is not whole; what is there is kept" },
		[NEXT_PACK_AGAIN] = { put_pack, "the checkpoint is whole, the trunk file must be "
						"made of it" },
		[NEXT_PACK] = { put_pack, "optional: a trunk file reads in larger pieces" },
		[NEXT_RUN] = { put_run, "everything it needs is there" },
	};
	enum next next = choose(w);
	CLEANUP(freep) char *text = NULL;
	size_t size = 0;
	FILE *f;

	if (!commands[next].put)
		return NULL;
	f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	commands[next].put(w, f);
	if (fclose(f) != 0)
		return NULL;
	*ret_why = commands[next].why;
	return TAKE(text);
}
