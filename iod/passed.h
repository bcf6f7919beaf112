#pragma once
/*
 * Descriptors that the service manager passes at the start: listening sockets, and what an earlier
 * daemon left with it (FDSTORE=1). Each is taken by its name; what nobody takes is closed.
 */
#include <stdbool.h>

#include "shared/err.h"

enum { IOD_PASSED_MAX = 32 };

struct iod_passed {
	struct {
		int fd;         /* owned until taken, then -1 */
		char name[256]; /* FileDescriptorName= or FDNAME= */
	} fds[IOD_PASSED_MAX];
	unsigned n;
};

/* Take over what is passed (none: n = 0); the environment is cleared. ERR_SOCKET. */
int iod_passed_open(struct iod_passed *p, struct err *err);
/* The first not yet taken whose name begins so: the caller's; -1: none. ret_name, when not NULL:
 * its name, valid as long as p. */
int iod_passed_take(struct iod_passed *p, const char *prefix, const char **ret_name);
/* The first not yet taken that is a listening SOCK_SEQPACKET Unix socket; -1: none. */
int iod_passed_take_listener(struct iod_passed *p);
/* How many are left. */
unsigned iod_passed_left(const struct iod_passed *p);
void iod_passed_deinit(struct iod_passed *p);
