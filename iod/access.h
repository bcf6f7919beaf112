#pragma once
/*
 * Who may connect. The socket's mode decides first. Then --allow-group, where it is given: the
 * peer's group, or one of its supplementary groups, as the kernel recorded them when it connected,
 * must be one of those named. root always may.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shared/err.h"
#include "shared/option.h"

struct iod_access {
	gid_t groups[OPTION_LIST_MAX];
	size_t n_groups; /* 0 = everyone whom the socket lets in */
	uint64_t names;  /* digest of the texts that they were looked up by */
};

struct iod_peer {
	pid_t pid; /* 0 = of another pid namespace */
	uid_t uid;
	gid_t gid;
};

/* Names or numbers of groups. ERR_USAGE when there is no such group. known: what the same texts
 * were resolved to before, or NULL: they are not looked up again. A look-up asks the name services,
 * which can take long where they ask a network. known and a may be the same. */
int iod_access_init(struct iod_access *a, const struct option_list *groups,
		    const struct iod_access *known, struct err *err);
/* Who is at the other end of a connected socket. */
int iod_access_peer(int fd, struct iod_peer *ret);
/* ERR_ACCESS when it may not. */
int iod_access_check(const struct iod_access *a, int fd, const struct iod_peer *peer,
		     struct err *err);
