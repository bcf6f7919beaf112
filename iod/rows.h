#pragma once
/*
 * Embedding rows: read one by one through the reader into a small pool of private buffers and sent
 * in the tail of ROW. Nothing is cached: a row is some pages, and few are asked for.
 */
#include <stdint.h>

#include "iod/read/read.h"
#include "proto/wire.h"
#include "shared/list.h"

struct iod_daemon;
struct iod_client;
struct iod_rows;

/* A client's share: its requests, oldest first. */
struct iod_row_requests {
	struct list requests;
	uint32_t n;
};

int iod_rows_new(struct iod_rows **ret, struct iod_daemon *d);
/* The reader is gone: nothing is in flight. */
struct iod_rows *iod_rows_free(struct iod_rows *rows);

/* ROWS. Negative: what the client broke (ERR_PROTOCOL), or ERR_NO_MEMORY. */
int iod_rows_ask(struct iod_client *c, const struct wire_rows *m, struct err *err);
void iod_rows_end(struct iod_client *c);
/* Start reads while buffers are free. */
void iod_rows_pump(struct iod_daemon *d);
