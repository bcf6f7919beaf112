#include "iod/access.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <xxhash.h>

#include "shared/fd.h"

static int find_group(const char *name, gid_t *ret, struct err *err)
{
	const struct group *g;
	unsigned long number;
	char *end;

	errno = 0;
	g = getgrnam(name);
	if (g) {
		*ret = g->gr_gid;
		return 0;
	}
	errno = 0;
	number = strtoul(name, &end, 10);
	if (errno != 0 || end == name || *end != '\0' || number >= (gid_t)-1)
		return err_set(err, ERR_USAGE,
			       "--allow-group: there is no group called '%s'; make it "
			       "(groupadd %s), or name another",
			       name, name);
	*ret = (gid_t)number;
	return 0;
}

/* Of all texts, each with the zero at its end. */
static uint64_t digest_names(const struct option_list *groups)
{
	uint64_t digest = 0;

	for (size_t i = 0; i < groups->n; i++)
		digest = XXH3_64bits_withSeed(groups->items[i], strlen(groups->items[i]) + 1,
					      digest);
	return digest;
}

int iod_access_init(struct iod_access *a, const struct option_list *groups,
		    const struct iod_access *known, struct err *err)
{
	struct iod_access found = { .names = digest_names(groups) };

	if (known && known->names == found.names && known->n_groups == groups->n) {
		*a = *known;
		return 0;
	}
	for (size_t i = 0; i < groups->n; i++) {
		int r = find_group(groups->items[i], &found.groups[found.n_groups], err);

		if (r < 0)
			return r;
		found.n_groups++;
	}
	*a = found;
	return 0;
}

int iod_access_peer(int fd, struct iod_peer *ret)
{
	struct ucred cred;
	socklen_t size = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0)
		return -errno;
	*ret = (struct iod_peer){ .pid = cred.pid, .uid = cred.uid, .gid = cred.gid };
	return 0;
}

static bool is_allowed(const struct iod_access *a, gid_t gid)
{
	for (size_t i = 0; i < a->n_groups; i++)
		if (a->groups[i] == gid)
			return true;
	return false;
}

/* 1 one of them is allowed, 0 none, -errno. */
static int check_supplementary(const struct iod_access *a, int fd)
{
	socklen_t size = 0;
	CLEANUP(freep) gid_t *gids = NULL;

	/* with no room the kernel says how much is wanted */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &size) == 0)
		return 0;
	if (errno != ERANGE)
		return -errno;
	gids = malloc(size);
	if (!gids)
		return -ENOMEM;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, gids, &size) < 0)
		return -errno;
	for (size_t i = 0; i < size / sizeof(*gids); i++)
		if (is_allowed(a, gids[i]))
			return 1;
	return 0;
}

int iod_access_check(const struct iod_access *a, int fd, const struct iod_peer *peer,
		     struct err *err)
{
	int r;

	if (a->n_groups == 0 || peer->uid == 0 || is_allowed(a, peer->gid))
		return 0;
	r = check_supplementary(a, fd);
	if (r > 0)
		return 0;
	if (r < 0)
		return err_set(err, ERR_ACCESS, "the groups of user %u cannot be looked up: %s",
			       peer->uid, strerror(-r));
	return err_set(err, ERR_ACCESS,
		       "user %u is in no group that this k3-iod serves (--allow-group); a member "
		       "that an administrator has just added must log in again",
		       peer->uid);
}
