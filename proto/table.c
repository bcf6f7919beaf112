/* What messages.def says about each message, looked up by number. */
#include "proto/table.h"

#include "shared/attr.h"

struct row {
	const char *name;
	size_t size;
	enum proto_direction direction;
	uint32_t n_fds;
};

#define PROTO_MSG(number, NAME, direction, struct_, fds, since, sentence) \
	[number] = { #NAME, sizeof(struct struct_), PROTO_##direction, fds },
static const struct row rows[] = {
#include "proto/messages.def"
};
#undef PROTO_MSG

static const struct row *find_row(enum proto_type type)
{
	if ((unsigned)type >= N_ELEMENTS(rows) || !rows[type].name)
		return NULL;
	return &rows[type];
}

size_t proto_struct_size(enum proto_type type)
{
	const struct row *row = find_row(type);

	return row ? row->size : 0;
}

const char *proto_name(enum proto_type type)
{
	const struct row *row = find_row(type);

	return row ? row->name : NULL;
}

enum proto_direction proto_direction(enum proto_type type)
{
	const struct row *row = find_row(type);

	return row ? row->direction : PROTO_C2D;
}

uint32_t proto_fds_max(enum proto_type type)
{
	const struct row *row = find_row(type);

	return row ? row->n_fds : 0;
}

uint32_t *proto_tail_size_field(enum proto_type type, union proto_body *body)
{
	switch (type) {
	case PROTO_ROW:
		return &body->row.size;
	case PROTO_ERROR:
		return &body->error.size;
	case PROTO_VIEW_REPLY:
		return &body->view_reply.size;
	default:
		return NULL;
	}
}

size_t proto_packet_max(enum proto_direction direction)
{
	size_t max = 0;

	for (size_t i = 0; i < N_ELEMENTS(rows); i++) {
		size_t size;

		if (!rows[i].name || rows[i].direction != direction)
			continue;
		size = sizeof(struct wire_header) + rows[i].size;
		if (i == PROTO_ROW || i == PROTO_ERROR || i == PROTO_VIEW_REPLY)
			size += PROTO_TAIL_MAX;
		if (size > max)
			max = size;
	}
	return max;
}
