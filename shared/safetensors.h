#pragma once
/*
 * Safetensors headers: a streaming scan of one file's JSON header, without a limit on its size and
 * without building a JSON tree. The caller gets each entry once, checked against the file's size
 * and dtype x shape; regions are also checked for overlap and gaps when the file ends.
 */
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"

enum st_dtype {
	ST_F64,
	ST_F32,
	ST_F16,
	ST_BF16,
	ST_I64,
	ST_I32,
	ST_I16,
	ST_I8,
	ST_U64,
	ST_U32,
	ST_U16,
	ST_U8,
	ST_BOOL,
	ST_F8_E4M3,
	ST_F8_E5M2,
	ST_DTYPE_N_
};
enum { ST_RANK_MAX = 8 };

uint32_t st_dtype_size(enum st_dtype t); /* bytes of one element */
const char *st_dtype_name(enum st_dtype t);

struct st_entry {
	const char *name; /* borrowed: valid during the call only; name_len bytes, unescaped */
	size_t name_len;
	enum st_dtype dtype;
	uint32_t rank;
	uint64_t shape[ST_RANK_MAX];
	uint64_t offset; /* absolute byte offset in the file */
	uint64_t size;   /* bytes */
};

/* Called per tensor; a negative return stops the scan and is passed up. */
typedef int st_entry_fn(void *data, const struct st_entry *entry, struct err *err);

/*
 * Scan the header of the open file fd (size bytes by fstat). path is for messages.
 * ret_header_digest, if not NULL, receives XXH3-128 (16 bytes, canonical big-endian form) over
 * length prefix + JSON. Errors: ERR_CHECKPOINT naming file and tensor. Never reads past the file.
 */
int st_scan(int fd, const char *path, st_entry_fn *fn, void *data, uint8_t ret_header_digest[16],
	    struct err *err);
