/* Disks and files of a model, looked at from outside: names, sizes, headers. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "compute/doctor.h"
#include "shared/catalog.h"

static const char *filesystem_name(long type)
{
	static const struct {
		long type;
		const char *name;
	} known[] = { { 0xef53, "ext4" },      { 0x58465342, "xfs" },
		      { 0x9123683e, "btrfs" }, { 0x2fc12fc1, "zfs" },
		      { 0x01021994, "tmpfs" }, { 0x6969, "nfs" },
		      { 0xff534d42, "cifs" },  { 0x794c7630, "overlayfs" },
		      { 0xf2f52010, "f2fs" },  { 0xca451a4e, "bcachefs" } };

	for (size_t i = 0; i < N_ELEMENTS(known); i++)
		if (known[i].type == type)
			return known[i].name;
	return "another file system";
}

/* "1" or "0" from the device's queue, or its disk's when it is a partition; '?' when unknown. */
static char rotational(dev_t dev)
{
	static const char *const names[] = { "queue/rotational", "../queue/rotational" };
	int c = EOF;

	for (size_t i = 0; c == EOF && i < N_ELEMENTS(names); i++) {
		char path[128];
		FILE *f;

		(void)snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s", major(dev),
			       minor(dev), names[i]);
		f = fopen(path, "re");
		if (f) {
			c = fgetc(f);
			(void)fclose(f);
		}
	}
	return c == EOF ? '?' : (char)c;
}

static void add_disk(struct k3_doctor *d, const char *path)
{
	struct statfs fs;
	struct stat st;
	char kind;

	if (statfs(path, &fs) < 0 || stat(path, &st) < 0) {
		k3_doctor_add(d, "disk", K3_VERDICT_BAD, ERR_USAGE, "%s: %s", path,
			      strerror(errno));
		return;
	}
	kind = rotational(st.st_dev);
	k3_doctor_add(d, "disk", kind == '1' ? K3_VERDICT_NOTE : K3_VERDICT_OK, ERR_NONE,
		      "%s: %s on device %u:%u (%s), %.3f GB free of %.3f", path,
		      filesystem_name(fs.f_type), major(st.st_dev), minor(st.st_dev),
		      kind == '1'   ? "rotating, it says, as virtual disks do, too"
		      : kind == '0' ? "solid state"
				    : "of unknown kind",
		      (double)fs.f_bavail * (double)fs.f_bsize / 1e9,
		      (double)fs.f_blocks * (double)fs.f_bsize / 1e9);
}

void k3_doctor_disks(struct k3_doctor *d, const struct option_list *dirs,
		     const struct option_list *trunk)
{
	for (size_t i = 0; i < dirs->n; i++)
		add_disk(d, dirs->items[i]);
	if (dirs->n == 0)
		add_disk(d, ".");
	for (size_t i = 0; i < trunk->n; i++)
		add_disk(d, trunk->items[i]);
}

static void say_whole(struct k3_doctor *d, const struct source *s)
{
	uint32_t n_layers = s->catalog.header->n_layers;
	uint64_t total = 0;

	for (uint32_t i = 0; i < s->n_files; i++)
		total += s->files[i].size;
	k3_doctor_add(d, "checkpoint", K3_VERDICT_OK, ERR_NONE,
		      "complete by its headers: %" PRIu64 " tensors, %" PRIu32 " files, %.3f GB, "
		      "%" PRIu32 " layers%s; k3-store verify looks at the bytes",
		      s->n_tensors, s->n_files, (double)total / 1e9, n_layers,
		      n_layers < s->config.n_layers ? ", all that --layers asks for" : "");
}

/* There is one to be read, whatever it says. */
static bool has_config(const struct option_list *dirs, const char *config)
{
	char path[PATH_MAX];

	for (size_t i = 0; !config && i < dirs->n; i++) {
		(void)snprintf(path, sizeof(path), "%s/config.json", dirs->items[i]);
		if (access(path, F_OK) == 0)
			return true;
	}
	return config != NULL;
}

/* What the daemon would open does not open: is it the trunk file alone? */
static enum k3_checkpoint find_fault(struct k3_doctor *d, const struct source_want *want,
				     const struct err *why)
{
	struct source_want without = *want;
	CLEANUP(source_freep) struct source *s = NULL;

	without.n_trunk_paths = 0;
	if (want->n_trunk_paths > 0 && source_open(&without, &s, NULL) == 0) {
		say_whole(d, s);
		k3_doctor_add(d, "trunk file", K3_VERDICT_BAD, why->code, "%s", why->text);
		return K3_CHECKPOINT_BAD_TRUNK;
	}
	k3_doctor_add(d, "checkpoint", K3_VERDICT_BAD, why->code, "%s", why->text);
	return K3_CHECKPOINT_NOT_WHOLE;
}

enum k3_checkpoint k3_doctor_checkpoint(struct k3_doctor *d, const struct option_list *dirs,
					const struct option_list *trunk, const char *config,
					uint32_t n_layers)
{
	struct source_want want = { .model_dirs = dirs->items,
				    .n_model_dirs = (uint32_t)dirs->n,
				    .config_path = config,
				    .max_layers = n_layers,
				    .trunk_paths = trunk->items,
				    .n_trunk_paths = (uint32_t)trunk->n };
	CLEANUP(source_freep) struct source *s = NULL;
	struct err err = { 0 };

	if (source_open(&want, &s, &err) < 0) {
		enum k3_checkpoint fault = find_fault(d, &want, &err);

		/* Another model, or another number of layers: nothing to be fetched. */
		return (err.code == ERR_CONFIG || err.code == ERR_USAGE) && has_config(dirs, config)
			       ? K3_CHECKPOINT_UNKNOWN
			       : fault;
	}
	say_whole(d, s);
	for (size_t i = 0; i < trunk->n; i++)
		k3_doctor_add(d, "trunk file", K3_VERDICT_OK, ERR_NONE, "%s belongs to it",
			      trunk->items[i]);
	return K3_CHECKPOINT_WHOLE;
}
