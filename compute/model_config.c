#include "compute/model_config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "shared/fd.h"

int k3_config_read(const struct option_list *dirs, const char *path, struct config *ret,
		   struct err *err)
{
	char name[PATH_MAX] = "config.json";
	CLEANUP(freep) char *json = NULL;
	size_t size = 0;
	int e = -ENOENT;

	for (size_t i = 0; (path ? i < 1 : i < dirs->n) && e == -ENOENT; i++) {
		if (path)
			(void)snprintf(name, sizeof(name), "%s", path);
		else
			(void)snprintf(name, sizeof(name), "%s/config.json", dirs->items[i]);
		e = fd_read_file(AT_FDCWD, name, CONFIG_FILE_MAX, &json, &size);
	}
	if (e < 0)
		return err_set(err, ERR_CONFIG, "cannot read %s: %s", name, fd_why(e));
	return config_parse(json, size, name, ret, err);
}
