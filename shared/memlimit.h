#pragma once
/*
 * How much memory a process may really take now: the least of what the host has available and what
 * the process' cgroup and each of its ancestors still allow (version 1 and 2; limits "max" and
 * "high"). Page cache can be reclaimed, so it does not count as used. Called before memory is
 * planned (client) and before the slab is sized (daemon).
 */
#include <stdint.h>

struct memlimit {
	uint64_t bytes; /* UINT64_MAX when nothing could be read */
	uint64_t total; /* of the host; 0 when unknown */
	uint64_t most;  /* what all limits allow when nothing is in use; UINT64_MAX as above */
	char text[512]; /* one phrase that names the binding limit with its numbers */
};

/* root: "" for this machine; tests give a directory that has proc/ and the cgroup mounts in it.
 * What cannot be read does not limit; the text then says so. */
void memlimit_get(const char *root, struct memlimit *ret);
