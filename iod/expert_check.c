#include "iod/expert_check.h"

#include <inttypes.h>
#include <string.h>

#include "iod/read/change.h"

static const enum expert_part scale_parts[] = { EXPERT_GATE_SCALE, EXPERT_DOWN_SCALE,
						EXPERT_UP_SCALE };

int iod_expert_check(const struct source *s, uint32_t layer, uint32_t expert, const uint8_t *slot,
		     struct err *err)
{
	const struct source_expert *e = source_expert(s, layer, expert);
	const struct catalog_header *h = s->catalog.header;

	for (size_t i = 0; i < N_ELEMENTS(scale_parts); i++) {
		enum expert_part part = scale_parts[i];
		size_t size = (size_t)h->expert_rows[part] * h->expert_cols[part];
		const uint8_t *bad = memchr(slot + e->part_off[part], 0xff, size);
		const struct source_segment *seg;
		uint64_t file_off = 0;
		char name[160];

		if (!bad)
			continue;
		seg = source_find_origin(s, e->first_segment, e->n_segments, (uint64_t)(bad - slot),
					 &file_off);
		(void)names_format_expert(layer, expert, part, name, sizeof(name));
		return err_set(err, ERR_EXPERT,
			       "expert %u of layer %u is damaged: a scale of 255, which is not a "
			       "number, in %s, byte %" PRIu64 " of %s; fetch the file again",
			       expert, layer, name, file_off, seg ? s->files[seg->file].path : "?");
	}
	return 0;
}

void iod_expert_describe_failure(const struct source *s, uint32_t layer, uint32_t expert,
				 const struct iod_read *read, int result, struct err *err)
{
	(void)err_set(err, ERR_EXPERT,
		      "expert %u of layer %u could not be read: %s at byte %" PRIu64
		      ": %s; check the disk and the file",
		      expert, layer,
		      read->bad_file < s->n_files ? s->files[read->bad_file].path : "?",
		      read->bad_offset, iod_read_strerror(result));
}
