/*
 * From bytes to a message and back. proto_check is the only code that reads bytes of a peer: what
 * it lets through is well formed; whether the numbers make sense for this model and this client is
 * the receiver's question.
 */
#include "proto/table.h"

#include <string.h>

#include "shared/attr.h"

/* Field rules return the sentence's second half, or NULL when all is well. */
typedef const char *rule_fn(const union proto_body *b, uint32_t n_fds);

/* Text for logs: printable ASCII, then zero bytes to the end, at least one. */
static bool is_text_field(const char *text, size_t size)
{
	size_t len = strnlen(text, size);

	if (len == size)
		return false;
	for (size_t i = 0; i < len; i++)
		if (text[i] < 0x20 || text[i] > 0x7e)
			return false;
	for (size_t i = len; i < size; i++)
		if (text[i] != '\0')
			return false;
	return true;
}

static const char *check_hello(const union proto_body *b, uint32_t n_fds)
{
	const struct wire_hello *m = &b->hello;

	(void)n_fds;
	if (m->version_min == 0)
		return "version_min is 0";
	if (m->version_max < m->version_min)
		return "version_max is below version_min";
	if (m->reserved != 0)
		return "reserved is not zero";
	if (!is_text_field(m->name, sizeof(m->name)))
		return "name is not NUL-padded printable text";
	return NULL;
}

static const char *check_welcome(const union proto_body *b, uint32_t n_fds)
{
	const struct wire_welcome *m = &b->welcome;
	uint32_t known = WIRE_HAS_VOCABULARY | WIRE_HAS_TOKENIZER_CONFIG;

	if (m->version < PROTO_VERSION_MIN || m->version > PROTO_VERSION_MAX)
		return "version is not one that was offered";
	if ((m->has & ~known) != 0)
		return "has carries unknown bits";
	if (m->incompat != 0)
		return "incompat asks for features that are not known here";
	if (n_fds != WIRE_FD_VOCABULARY + (uint32_t)__builtin_popcount(m->has))
		return "the number of descriptors does not fit has";
	if (m->slab_size == 0 || m->slab_size % 4096 != 0)
		return "slab_size is not a multiple of 4096";
	if (m->catalog_size == 0)
		return "catalog_size is 0";
	if (m->tile_window < 3)
		return "tile_window is below 3";
	if (m->expert_window < 2)
		return "expert_window is below 2";
	if (!is_text_field(m->backend, sizeof(m->backend)))
		return "backend is not NUL-padded printable text";
	if (m->reserved[0] != 0 || m->reserved[1] != 0)
		return "reserved is not zero";
	return NULL;
}

static const char *check_sweep(const union proto_body *b, uint32_t n_fds)
{
	(void)n_fds;
	if ((b->sweep.flags & ~(uint32_t)(WIRE_SWEEP_HEAD | WIRE_SWEEP_AGAIN)) != 0)
		return "flags carries unknown bits";
	return NULL;
}

static const char *check_tile_ready(const union proto_body *b, uint32_t n_fds)
{
	(void)n_fds;
	if ((b->tile_ready.flags & ~(uint32_t)WIRE_TILE_PINNED) != 0)
		return "flags carries unknown bits";
	if (b->tile_ready.offset == 0 || b->tile_ready.offset % 4096 != 0)
		return "offset is not a positive multiple of 4096";
	return NULL;
}

static const char *check_rows(const union proto_body *b, uint32_t n_fds)
{
	const struct wire_rows *m = &b->rows;

	(void)n_fds;
	if (m->n == 0 || m->n > PROTO_ROWS_MAX)
		return "n is not 1 to 128";
	for (uint32_t i = m->n; i < PROTO_ROWS_MAX; i++)
		if (m->ids[i] != 0)
			return "ids is not zero after n";
	return NULL;
}

static const char *check_row(const union proto_body *b, uint32_t n_fds)
{
	(void)n_fds;
	if (b->row.index >= PROTO_ROWS_MAX)
		return "index is above 127";
	if (b->row.size == 0)
		return "size is 0";
	return NULL;
}

static const char *check_experts(const union proto_body *b, uint32_t n_fds)
{
	const struct wire_experts *m = &b->experts;

	(void)n_fds;
	if (m->n == 0 || m->n > PROTO_EXPERTS_MAX)
		return "n is not 1 to 128";
	if (m->reserved != 0)
		return "reserved is not zero";
	for (uint32_t i = m->n; i < PROTO_EXPERTS_MAX; i++)
		if (m->ids[i] != 0)
			return "ids is not zero after n";
	return NULL;
}

static const char *check_expert_ready(const union proto_body *b, uint32_t n_fds)
{
	(void)n_fds;
	if (b->expert_ready.reserved != 0)
		return "reserved is not zero";
	if (b->expert_ready.offset == 0 || b->expert_ready.offset % 4096 != 0)
		return "offset is not a positive multiple of 4096";
	return NULL;
}

static const char *check_stats(const union proto_body *b, uint32_t n_fds)
{
	(void)n_fds;
	return b->stats.reserved != 0 ? "reserved is not zero" : NULL;
}

static const char *check_stats_reply(const union proto_body *b, uint32_t n_fds)
{
	const struct wire_stats_reply *m = &b->stats_reply;

	(void)n_fds;
	if (m->n > PROTO_STATS_MAX)
		return "n is above 64";
	if (m->reserved != 0)
		return "reserved is not zero";
	for (uint32_t i = m->n; i < PROTO_STATS_MAX; i++)
		if (m->values[i] != 0)
			return "values is not zero after n";
	return NULL;
}

static const char *check_error(const union proto_body *b, uint32_t n_fds)
{
	const struct wire_error *m = &b->error;

	(void)n_fds;
	if (m->code == ERR_NONE)
		return "code is 0";
	if (m->class != ERR_CLASS_FATAL && m->class != ERR_CLASS_RETRY)
		return "class is unknown";
	if (m->request != 0 && !proto_name(m->request))
		return "request is not a message";
	if ((m->flags & ~(uint32_t)WIRE_ERROR_CLOSING) != 0)
		return "flags carries unknown bits";
	if (m->reserved != 0)
		return "reserved is not zero";
	return NULL;
}

static const char *check_view(const union proto_body *b, uint32_t n_fds)
{
	(void)n_fds;
	return b->view.reserved != 0 ? "reserved is not zero" : NULL;
}

static const char *check_view_reply(const union proto_body *b, uint32_t n_fds)
{
	(void)n_fds;
	if (b->view_reply.size == 0)
		return "size is 0";
	return b->view_reply.reserved != 0 ? "reserved is not zero" : NULL;
}

/* A message without a row (TILE_DONE, EXPERT_DONE) has only numbers that the model bounds. */
static rule_fn *const rules[] = {
	[PROTO_HELLO] = check_hello,
	[PROTO_WELCOME] = check_welcome,
	[PROTO_SWEEP] = check_sweep,
	[PROTO_TILE_READY] = check_tile_ready,
	[PROTO_ROWS] = check_rows,
	[PROTO_ROW] = check_row,
	[PROTO_EXPERTS] = check_experts,
	[PROTO_EXPERT_READY] = check_expert_ready,
	[PROTO_HINT] = check_experts,
	[PROTO_STATS] = check_stats,
	[PROTO_STATS_REPLY] = check_stats_reply,
	[PROTO_ERROR] = check_error,
	[PROTO_VIEW] = check_view,
	[PROTO_VIEW_REPLY] = check_view_reply,
};

/* Header and sizes: ret->type, body and tail are filled when they fit. */
static int check_frame(const uint8_t *packet, size_t size, enum proto_direction from,
		       struct proto_message *ret, struct err *err)
{
	struct wire_header h;
	size_t fixed, rest;
	const uint32_t *tail_size;

	if (size < sizeof(h))
		return err_set(err, ERR_PROTOCOL, "a packet of %zu bytes is shorter than a header",
			       size);
	memcpy(&h, packet, sizeof(h));
	fixed = proto_struct_size(h.type);
	if (fixed == 0)
		return err_set(err, ERR_PROTOCOL, "unknown message type %u", h.type);
	if (proto_direction(h.type) != from)
		return err_set(err, ERR_PROTOCOL, "%s goes in the other direction",
			       proto_name(h.type));
	if (h.reserved != 0)
		return err_set(err, ERR_PROTOCOL, "%s: header: reserved is not zero",
			       proto_name(h.type));
	if (h.size != size)
		return err_set(err, ERR_PROTOCOL, "%s: header: size says %u, the packet has %zu",
			       proto_name(h.type), h.size, size);
	if (size < sizeof(h) + fixed)
		return err_set(err, ERR_PROTOCOL, "%s: %zu bytes where %zu are needed",
			       proto_name(h.type), size, sizeof(h) + fixed);
	ret->type = h.type;
	memcpy(&ret->body, packet + sizeof(h), fixed);
	rest = size - sizeof(h) - fixed;
	tail_size = proto_tail_size_field(h.type, &ret->body);
	if (rest > PROTO_TAIL_MAX || rest != (tail_size ? *tail_size : 0))
		return err_set(err, ERR_PROTOCOL, "%s: a tail of %zu bytes where %u are stated",
			       proto_name(h.type), rest, tail_size ? *tail_size : 0);
	ret->tail_size = rest;
	ret->tail = rest > 0 ? packet + sizeof(h) + fixed : NULL;
	return 0;
}

int proto_check(const uint8_t *packet, size_t size, uint32_t n_fds, enum proto_direction from,
		struct proto_message *ret, struct err *err)
{
	struct proto_message m = { 0 };
	const char *bad;
	int r;

	for (size_t i = 0; i < PROTO_FDS_MAX; i++)
		m.fds[i] = -1;
	r = check_frame(packet, size, from, &m, err);
	if (r < 0)
		return r;
	if (n_fds > proto_fds_max(m.type))
		return err_set(err, ERR_PROTOCOL, "%s: %u descriptors where at most %u may come",
			       proto_name(m.type), n_fds, proto_fds_max(m.type));
	if (m.type < N_ELEMENTS(rules) && rules[m.type]) {
		bad = rules[m.type](&m.body, n_fds);
		if (bad)
			return err_set(err, ERR_PROTOCOL, "%s: %s", proto_name(m.type), bad);
	}
	if (m.type == PROTO_ERROR && m.tail_size > 0 && memchr(m.tail, '\0', m.tail_size))
		return err_set(err, ERR_PROTOCOL, "ERROR: the sentence holds a NUL byte");
	*ret = m;
	return 0;
}

size_t proto_packet_size(const struct proto_message *m)
{
	return sizeof(struct wire_header) + proto_struct_size(m->type) + m->tail_size;
}

size_t proto_encode(const struct proto_message *m, uint8_t *buf)
{
	struct wire_header h = {
		.size = (uint32_t)proto_packet_size(m),
		.type = (uint16_t)m->type,
	};
	size_t fixed = proto_struct_size(m->type);

	memcpy(buf, &h, sizeof(h));
	memcpy(buf + sizeof(h), &m->body, fixed);
	if (m->tail_size > 0)
		memcpy(buf + sizeof(h) + fixed, m->tail, m->tail_size);
	return h.size;
}
