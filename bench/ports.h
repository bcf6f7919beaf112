#pragma once
/*
 * What the ports of the FMA units leave: loops in registers alone with the very mix of operations
 * that a block of the AVX-512 kernels consists of, products and decoding, without loads and stores.
 * The share of the FMA peak such a loop reaches cannot be passed by a kernel that decodes this way.
 */
#include <stdbool.h>
#include <stddef.h>

struct port_mix {
	const char *format, *way; /* of decoding */
	unsigned n_x;             /* rows of x that share a decoded vector */
	unsigned n_macs;          /* vectors of products that count, in a turn */
	void (*run)(long turns);
};

/* The mixes this machine can run: all or none. Ends with an entry whose run is NULL. */
const struct port_mix *port_mixes(void);
