#include "compute/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compute/summary.h"
#include "shared/fd.h"

int k3_report_init(struct k3_report *r, struct err *err)
{
	memset(r, 0, sizeof(*r));
	return k3_digest_init(&r->digest, err);
}

void k3_report_deinit(struct k3_report *r)
{
	free(r->steps);
	k3_digest_deinit(&r->digest);
	r->steps = NULL;
}

int k3_report_step(struct k3_report *r, const struct k3_step_report *step, struct err *err)
{
	if (r->n_steps == r->steps_capacity) {
		size_t capacity = r->steps_capacity ? 2 * r->steps_capacity : 64;
		struct k3_step_report *grown = realloc(r->steps, capacity * sizeof(*grown));

		if (!grown)
			return err_set(err, ERR_NO_MEMORY, "no memory for the report");
		r->steps = grown;
		r->steps_capacity = capacity;
	}
	r->steps[r->n_steps++] = *step;
	return 0;
}

void k3_report_sample_memory(struct k3_report *r)
{
	uint64_t now = k3_private_rss();

	if (now > r->client_peak_rss_bytes)
		r->client_peak_rss_bytes = now;
}

static json_t *json_bytes(uint64_t n)
{
	return json_integer((json_int_t)n);
}

json_t *k3_json_ids(const uint32_t *ids, size_t n)
{
	json_t *a = json_array();

	for (size_t i = 0; i < n; i++)
		(void)json_array_append_new(a, json_integer(ids[i]));
	return a;
}

static json_t *json_ids(const struct k3_ids *ids)
{
	return ids ? k3_json_ids(ids->ids, ids->n) : json_array();
}

static json_t *json_digest(const struct k3_report *r)
{
	char hex[K3_DIGEST_HEX];

	k3_digest_hex(&r->digest, hex);
	return json_string(hex);
}

static json_t *json_steps(const struct k3_report *r)
{
	json_t *a = json_array();

	for (size_t i = 0; i < r->n_steps; i++) {
		const struct k3_step_report *s = &r->steps[i];
		json_t *o = json_object();

		(void)json_object_set_new(o, "seconds", json_real(s->seconds));
		(void)json_object_set_new(o, "wait_seconds", json_real(s->wait_seconds));
		(void)json_object_set_new(o, "trunk_bytes_read", json_bytes(s->trunk_bytes_read));
		(void)json_object_set_new(o, "expert_bytes_read", json_bytes(s->expert_bytes_read));
		(void)json_object_set_new(o, "experts_resident", json_bytes(s->experts_resident));
		(void)json_object_set_new(o, "experts_read", json_bytes(s->experts_read));
		(void)json_array_append_new(a, o);
	}
	return a;
}

static json_t *json_memory(const struct k3_report *r)
{
	json_t *o = json_object(), *plan = json_object();

	for (int i = 0; r->plan && i < K3_MEMPLAN_N_; i++)
		(void)json_object_set_new(plan, k3_memplan_item_name(i),
					  json_bytes(r->plan->item[i]));
	(void)json_object_set_new(o, "slab_bytes", json_bytes(r->slab_bytes));
	(void)json_object_set_new(o, "client_peak_rss_bytes", json_bytes(r->client_peak_rss_bytes));
	(void)json_object_set_new(o, "daemon_peak_rss_bytes", json_bytes(r->daemon_peak_rss_bytes));
	if (r->plan)
		(void)json_object_set_new(o, "prefill_rows", json_bytes(r->plan->n_rows));
	(void)json_object_set_new(o, "plan", plan);
	return o;
}

/* The name of each kernel that ran: "matmul_bf16 avx2". */
static json_t *json_kernels(const struct k3_report *r)
{
	json_t *a = json_array();

	for (size_t i = 0; r->kernels && i < N_ELEMENTS(r->kernels->names); i++)
		if (r->kernels->names[i])
			(void)json_array_append_new(a, json_string(r->kernels->names[i]));
	return a;
}

static json_t *json_summary(const struct k3_report *r)
{
	struct k3_summary s;

	k3_summary_make(r, r->memory_rate, &s);
	return k3_summary_json(&s);
}

static json_t *json_report(const struct k3_report *r)
{
	json_t *o = json_object();

	(void)json_object_set_new(o, "prompt_ids", json_ids(r->prompt));
	(void)json_object_set_new(o, "generated_ids", json_ids(r->generated));
	(void)json_object_set_new(o, "text",
				  r->text ? json_stringn(r->text, r->text_len) : json_null());
	(void)json_object_set_new(o, "logits_digest", json_digest(r));
	(void)json_object_set_new(o, "steps", json_steps(r));
	(void)json_object_set_new(o, "summary", json_summary(r));
	(void)json_object_set_new(o, "memory", json_memory(r));
	(void)json_object_set_new(o, "kernels", json_kernels(r));
	(void)json_object_set_new(o, "backend", r->backend ? json_string(r->backend) : json_null());
	(void)json_object_set_new(o, "exit_code", json_integer(r->exit_code));
	return o;
}

/* A file of its own beside path, which no other has: mode as of any new file. A descriptor, and in
 * *ret its name, the caller's; or -errno. */
static int open_beside(const char *path, char **ret)
{
	CLEANUP(freep) char *name = NULL;
	mode_t mask = umask(0);
	int fd;

	(void)umask(mask);
	if (asprintf(&name, "%s.XXXXXX", path) < 0)
		return -ENOMEM;
	fd = mkostemp(name, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	(void)fchmod(fd, 0666 & ~mask); /* some file systems have no modes */
	*ret = TAKE(name);
	return fd;
}

int k3_report_try(const char *path, struct err *err)
{
	CLEANUP(freep) char *temporary = NULL;
	CLEANUP(fd_closep) int fd = -1;
	struct stat st;
	int e = 0;

	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		if (S_ISDIR(st.st_mode))
			e = EISDIR;
		else if (access(path, W_OK) < 0)
			e = errno;
	} else {
		fd = open_beside(path, &temporary);
		e = fd < 0 ? -fd : 0;
		if (fd >= 0)
			(void)unlink(temporary);
	}
	if (e == 0)
		return 0;
	return err_set(err, e == ENOSPC ? ERR_SPACE : ERR_IO, "cannot write %s: %s", path,
		       strerror(e));
}

static int open_special(const char *path)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/* text to path by way of a temporary name, or straight into what is no regular file (a pipe,
 * /dev/null). */
static int write_file(const char *path, const char *text, struct err *err)
{
	CLEANUP(freep) char *temporary = NULL;
	struct stat st;
	bool is_special = stat(path, &st) == 0 && !S_ISREG(st.st_mode);
	int fd = is_special ? open_special(path) : open_beside(path, &temporary);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
	int e = fd < 0 ? -fd : f ? 0 : errno;

	if (!f)
		(void)fd_close(fd);
	if (f && fputs(text, f) < 0)
		e = errno;
	if (f && fclose(f) != 0 && e == 0)
		e = errno;
	if (e == 0 && !is_special && rename(temporary, path) < 0)
		e = errno;
	if (e == 0)
		return 0;
	if (temporary)
		(void)unlink(temporary);
	return err_set(err, e == ENOSPC ? ERR_SPACE : ERR_IO, "cannot write %s: %s", path,
		       strerror(e));
}

int k3_report_write(const struct k3_report *r, const char *path, struct err *err)
{
	json_t *o = json_report(r);
	CLEANUP(freep) char *text = json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(9));

	json_decref(o);
	if (!text)
		return err_set(err, ERR_NO_MEMORY, "no memory for the report");
	return write_file(path, text, err);
}
