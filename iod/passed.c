#include "iod/passed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <systemd/sd-daemon.h>

#include "shared/fd.h"

int iod_passed_open(struct iod_passed *p, struct err *err)
{
	char **names = NULL;
	int n;

	p->n = 0;
	n = sd_listen_fds_with_names(1, &names);
	if (n < 0)
		return err_set(err, ERR_SOCKET, "descriptors from the service manager: %s",
			       strerror(-n));
	for (int i = 0; i < n; i++) {
		int fd = SD_LISTEN_FDS_START + i;

		if (p->n < IOD_PASSED_MAX) {
			p->fds[p->n].fd = fd;
			(void)snprintf(p->fds[p->n].name, sizeof(p->fds[0].name), "%s", names[i]);
			p->n++;
		} else {
			(void)fd_close(fd);
		}
		free(names[i]);
	}
	free(names);
	return 0;
}

static int take(struct iod_passed *p, unsigned i, const char **ret_name)
{
	int fd = p->fds[i].fd;

	p->fds[i].fd = -1;
	if (ret_name)
		*ret_name = p->fds[i].name;
	return fd;
}

int iod_passed_take(struct iod_passed *p, const char *prefix, const char **ret_name)
{
	for (unsigned i = 0; i < p->n; i++)
		if (p->fds[i].fd >= 0 && strncmp(p->fds[i].name, prefix, strlen(prefix)) == 0)
			return take(p, i, ret_name);
	return -1;
}

int iod_passed_take_listener(struct iod_passed *p)
{
	for (unsigned i = 0; i < p->n; i++)
		if (p->fds[i].fd >= 0 && sd_is_socket(p->fds[i].fd, AF_UNIX, SOCK_SEQPACKET, 1) > 0)
			return take(p, i, NULL);
	return -1;
}

unsigned iod_passed_left(const struct iod_passed *p)
{
	unsigned n = 0;

	for (unsigned i = 0; i < p->n; i++)
		n += p->fds[i].fd >= 0;
	return n;
}

void iod_passed_deinit(struct iod_passed *p)
{
	for (unsigned i = 0; i < p->n; i++)
		(void)fd_close(p->fds[i].fd);
	p->n = 0;
}
