/* Agreement on a version and on features. */
#include "proto/conn.h"

#include <inttypes.h>

int proto_hello_agree(const struct wire_hello *hello, uint32_t *ret_version, struct err *err)
{
	uint32_t max =
		hello->version_max < PROTO_VERSION_MAX ? hello->version_max : PROTO_VERSION_MAX;

	if (max < hello->version_min || max < PROTO_VERSION_MIN)
		return err_set(err, ERR_VERSION,
			       "the client speaks protocol versions %u to %u, this daemon %u to "
			       "%u: use k3 and k3-iod of one release",
			       hello->version_min, hello->version_max, PROTO_VERSION_MIN,
			       PROTO_VERSION_MAX);
	/* none is defined yet, so any bit is one that we do not know */
	if (hello->incompat != 0)
		return err_set(err, ERR_VERSION,
			       "the client needs protocol features 0x%" PRIx64
			       " that this daemon does not know: use k3 and k3-iod of one release",
			       hello->incompat);
	*ret_version = max;
	return 0;
}
