/*
 * The decoder of untrusted bytes. The first byte says from whom, the second how many descriptors
 * came along; the rest is the packet. What is let through must be the same packet again when
 * encoded.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/conn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct proto_message m;
	struct err err = { 0 };
	uint8_t *again;

	if (size < 2)
		return 0;
	if (proto_check(data + 2, size - 2, data[1] % 8, data[0] % 2 ? PROTO_D2C : PROTO_C2D, &m,
			&err) < 0) {
		if (err.code != ERR_PROTOCOL || err.text[0] == '\0')
			abort(); /* refused without a sentence */
		return 0;
	}
	again = malloc(proto_packet_size(&m));
	if (!again)
		return 0;
	if (proto_encode(&m, again) != size - 2 || memcmp(again, data + 2, size - 2) != 0)
		abort();
	free(again);
	return 0;
}
