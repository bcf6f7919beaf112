#pragma once
/*
 * Faults on purpose, for tests of what disks do rarely. Read once from the environment variable
 * K3_IOD_FAULT, items separated by ';':
 *
 *   eio=FILE:OFFSET+SIZE:COUNT  reads of file number FILE (or *) that touch the range give EIO,
 *                               COUNT times (or "always"); "+SIZE" may be left out: one byte
 *   flip=FILE:OFFSET:COUNT      such reads succeed with the byte at OFFSET wrong
 *   stuck=FILE:OFFSET+SIZE      such reads never complete
 *   short=N                     every Nth read of more than a page returns two thirds of it
 *   again=N                     every Nth read gives EAGAIN
 *   slow=BYTES                  each device delivers BYTES a second (K, M, G: 1024)
 *   old_uring=N                 the N better kinds of ring are refused, as by an older kernel
 *   no_uring=1 no_direct=1 no_register=1
 *                               as on a machine that refuses io_uring, O_DIRECT, registration
 *
 * Without the variable nothing here runs. With it iod_reader_describe says so.
 */
#include <stdbool.h>
#include <stdint.h>

#include "iod/read/backend.h"
#include "shared/err.h"

enum { IOD_FAULT_RANGES_MAX = 16, IOD_FAULT_DEVICES_MAX = 64 };
#define IOD_FAULT_VARIABLE "K3_IOD_FAULT"

enum iod_fault_kind { IOD_FAULT_EIO, IOD_FAULT_STUCK, IOD_FAULT_FLIP };

struct iod_fault_range {
	enum iod_fault_kind kind;
	uint32_t file; /* UINT32_MAX: any */
	uint64_t offset, size;
	uint64_t n_left; /* UINT64_MAX: always */
};

struct iod_fault {
	bool is_active;
	struct iod_fault_range ranges[IOD_FAULT_RANGES_MAX];
	uint32_t n_ranges;
	uint64_t short_every, again_every;
	uint64_t bytes_per_second;
	uint64_t n_rings_refused;
	bool no_uring, no_direct, no_register;
	uint64_t n_reads;
	uint64_t free_ns[IOD_FAULT_DEVICES_MAX]; /* slow: when a device has delivered all so far */
};

/* NULL or "" text: nothing. ERR_USAGE names what is not understood. */
int iod_fault_parse(struct iod_fault *f, const char *text, struct err *err);
/* A read starts: when it may land at the earliest (UINT64_MAX: never; 0: at once). */
uint64_t iod_fault_start(struct iod_fault *f, const struct iod_op *op, uint32_t device,
			 uint64_t now_ns);
/* A read has landed: its result may change. */
void iod_fault_land(struct iod_fault *f, struct iod_op *op);
