#pragma once
/*
 * Writing a trunk file (shared/trunk_format.h): every tensor outside the routed experts, copied
 * from the shards in execution order. See pack.c for how a killed pack goes on. Called by
 * cmd_pack.c and by tests; never logs.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shared/err.h"

enum iod_pack_phase { IOD_PACK_RESUME, IOD_PACK_WRITE, IOD_PACK_VERIFY };

struct iod_pack_progress {
	enum iod_pack_phase phase;
	uint64_t done, total; /* bytes of this phase */
};

struct iod_pack_want {
	const char *const *model_dirs;
	uint32_t n_model_dirs;
	const char *config_path; /* NULL: the model's */
	const char *const *outs; /* several: a set, over which the tiles alternate */
	uint32_t n_outs;         /* 1 to TRUNK_SET_MAX */
	uint64_t tile_bytes;     /* 0: the usual */
	uint32_t max_layers;     /* 0: all; else the first N and the head */
	/* Called after every piece; may be NULL. */
	void (*progress)(void *data, const struct iod_pack_progress *progress);
	void *data;
	/* Called when the file is written and read back, before it gets its name; may be NULL. A
	 * negative return ends the pack, which goes on from there when it is called again. */
	int (*before_rename)(void *data, struct err *err);
};

struct iod_pack_result {
	uint64_t size;          /* of all files together */
	uint64_t resumed_bytes; /* found finished in the partial files of an earlier run */
	uint32_t n_tiles;
	bool is_direct; /* verified past the page cache, all of them */
};

/*
 * Write each of want->outs through OUT.partial. On success the partial files were verified by
 * reading them back, synced and, when that is true of all, renamed. Errors: those of source_open;
 * ERR_SPACE (the partial file is removed, an old trunk file stays as it was); ERR_IO (the partial
 * files stay, the next run goes on from them); ERR_BUSY when another pack holds a partial file.
 */
int iod_pack(const struct iod_pack_want *want, struct iod_pack_result *ret, struct err *err);
