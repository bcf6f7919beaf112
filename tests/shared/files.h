#pragma once
/*
 * Checkpoint files for the tests of this suite: written by hand, linked, patched, and looked up by
 * a second header reader (jansson), so that nothing is compared with what shared/ itself found.
 */
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* A path under the case's temporary directory; a few stay valid at a time. */
const char *files_tmp(const char *name);
void files_write(const char *path, const void *bytes, size_t size);
/* Symbolic links in the new directory dst to every file of src but config.json, which is copied. */
void files_link_all(const char *src, const char *dst);
/* Replace a link by a copy that may be changed. */
void files_own(const char *path);
/* Replace the nth (from 0) from by to, of the same length, in place. */
void files_patch(const char *path, unsigned nth, const char *from, const char *to);

/* A safetensors file: header length, header, data_size bytes of a pattern. */
void files_write_shard(const char *path, const char *header, size_t header_size,
		       uint64_t data_size);

/* All headers of a directory's shards (those of the index when there is one): name to
 * {"path", "dtype", "shape", "off", "size"}. Caller owns. */
json_t *files_headers(const char *dir);
/* The bytes of a tensor in it; caller frees. */
char *files_tensor(json_t *headers, const char *name, size_t *ret_size);
