#include "iod/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "iod/client.h"
#include "iod/daemon.h"

/* Characters of the map of slots. */
enum { MAP_WIDTH = 64 };
/* Bytes of a path that are shown. */
enum { PATH_SHOWN = 200 };

/* ---- waiting --------------------------------------------------------------------------------- */

static bool waits_for_expert(const struct iod_expert_refs *e)
{
	if (!list_is_empty(&e->waiting))
		return true;
	for (uint32_t i = 0; e->n_held > 0 && i < e->window; i++)
		if (e->refs[i].state == IOD_REF_ATTACHED)
			return true;
	return false;
}

/* It has nothing of ours to compute on, and has asked for more. */
static bool waits(const struct iod_client *c)
{
	const struct iod_sweep *s = &c->sweep;

	if (c->state != IOD_CLIENT_OPEN)
		return false;
	return (s->is_active && s->n_leases == 0 && s->cursor < s->length) ||
	       waits_for_expert(&c->experts);
}

void iod_view_note_waits(struct iod_daemon *d)
{
	uint64_t now = iod_daemon_now(d);
	struct list *at;

	list_foreach (at, &d->clients) {
		struct iod_client *c = list_entry(at, struct iod_client, link);
		bool is_waiting = waits(c);

		if (c->waits_since > 0)
			c->wait_usec += now - c->waits_since;
		c->waits_since = is_waiting ? now : 0;
	}
}

static double wait_seconds(const struct iod_client *c, uint64_t now)
{
	uint64_t more = c->waits_since > 0 ? now - c->waits_since : 0;

	return (double)(c->wait_usec + more) / 1e6;
}

/* Both JSON and Prometheus want UTF-8. The end that is left out may be in the middle of a
 * character, and a path need not be UTF-8 at all. */
static void show_path(const char *path, char ret[PATH_SHOWN + 1])
{
	json_t *is_utf8;

	(void)snprintf(ret, PATH_SHOWN + 1, "%s", path);
	is_utf8 = json_string(ret);
	for (char *at = ret; !is_utf8 && *at != '\0'; at++)
		if ((unsigned char)*at >= 0x80)
			*at = '?';
	json_decref(is_utf8);
}

/* ---- the JSON object --------------------------------------------------------------------------
 */

static const char *const class_names[] = {
	[IOD_READ_DEMAND] = "demand",
	[IOD_READ_TRUNK] = "trunk",
	[IOD_READ_HINT] = "hint",
	[IOD_READ_BACKGROUND] = "background",
};
static_assert(N_ELEMENTS(class_names) == IOD_READ_CLASS_N_, "a name for each class");

static const char *const counter_names[] = {
#define STAT(name, unit, kind, sentence) #name,
#include "proto/stats.def"
#undef STAT
};

static json_t *counters_of(struct iod_daemon *d)
{
	json_t *o = json_object();
	struct wire_stats_reply reply;

	iod_metrics_reply(d, &reply);
	for (uint32_t i = 0; i < reply.n; i++)
		(void)json_object_set_new(o, counter_names[i],
					  json_integer((json_int_t)reply.values[i]));
	return o;
}

static json_t *devices_of(const struct iod_daemon *d)
{
	json_t *a = json_array();
	struct iod_reader_device device;

	for (uint32_t i = 0; iod_reader_device(d->reader, i, &device); i++) {
		json_t *bytes = json_object();
		char path[PATH_SHOWN + 1];

		show_path(device.first_path, path);
		for (uint32_t k = 0; k < IOD_READ_CLASS_N_; k++)
			(void)json_object_set_new(bytes, class_names[k],
						  json_integer((json_int_t)device.bytes[k]));
		(void)json_array_append_new(a, json_pack("{s:s, s:o, s:i, s:i, s:i}", "path", path,
							 "bytes", bytes, "in_flight",
							 device.n_in_flight, "depth", device.depth,
							 "chunk", device.chunk));
	}
	return a;
}

static json_t *trunk_of(const struct iod_daemon *d)
{
	const struct iod_trunk *t = d->trunk;
	uint64_t ready = 0, held = 0;
	const struct list *at;

	list_foreach (at, &t->ring) {
		const struct iod_tile *tile = list_entry(at, struct iod_tile, ring_link);

		ready += tile->state == SLAB_READY ? tile->size : 0;
		held += tile->n_leases > 0 ? tile->size : 0;
	}
	return json_pack("{s:i, s:i, s:i, s:I, s:I, s:I, s:I}", "tiles", t->n_tiles, "pinned",
			 t->n_pinned, "pinned_ready", t->n_pinned_ready, "pinned_bytes",
			 (json_int_t)t->pinned_size, "ring_bytes", (json_int_t)d->plan.ring_size,
			 "ring_ready_bytes", (json_int_t)ready, "ring_held_bytes",
			 (json_int_t)held);
}

static char sign_of(const struct iod_slot *slot)
{
	if (slot->state == SLAB_EMPTY)
		return '.';
	if (slot->state == SLAB_LOADING)
		return '-';
	return list_is_empty(&slot->refs) ? '+' : '#';
}

/* A character stands for a run of slots: the busiest of them, in the order . + - #. */
static void draw_map(const struct iod_experts *x, char map[MAP_WIDTH + 1])
{
	static const char rising[] = ".+-#";
	uint32_t width = x->n_slots < MAP_WIDTH ? x->n_slots : MAP_WIDTH;

	memset(map, 0, MAP_WIDTH + 1);
	for (uint32_t i = 0; i < x->n_slots; i++) {
		char *at = &map[(uint64_t)i * width / x->n_slots];
		char sign = sign_of(&x->slots[i]);

		if (*at == '\0' || strchr(rising, sign) > strchr(rising, *at))
			*at = sign;
	}
}

static json_t *slots_of(const struct iod_daemon *d)
{
	const struct iod_experts *x = d->experts;
	char map[MAP_WIDTH + 1];
	uint32_t n[3] = { 0 };

	for (uint32_t i = 0; i < x->n_slots; i++)
		n[x->slots[i].state == SLAB_EMPTY     ? 0
		  : x->slots[i].state == SLAB_LOADING ? 1
						      : 2]++;
	draw_map(x, map);
	return json_pack("{s:i, s:i, s:i, s:i, s:i, s:s}", "total", x->n_slots, "empty", n[0],
			 "loading", n[1], "ready", n[2], "held", x->n_held, "map", map);
}

static json_t *client_of(const struct iod_client *c, uint64_t now)
{
	const struct iod_sweep *s = &c->sweep;

	return json_pack(
		"{s:i, s:s, s:I, s:I, s:b, s:i, s:i, s:s, s:f, s:i, s:i, s:I, s:I, s:i, s:f, s:b}",
		"number", c->number, "name", c->name, "pid", (json_int_t)c->pid, "uid",
		(json_int_t)c->uid, "sweeps", s->is_active, "position", s->cursor, "length",
		s->length, "sharing", iod_ride_state_name(c), "held_seconds",
		(double)c->ride.held_usec / 1e6, "tile_leases", s->n_leases, "experts_held",
		c->experts.n_held, "trunk_bytes_read", (json_int_t)c->trunk_bytes,
		"expert_bytes_read", (json_int_t)c->expert_bytes, "messages_waiting", c->n_out,
		"wait_seconds", wait_seconds(c, now), "waits", c->waits_since > 0);
}

static json_t *clients_of(const struct iod_daemon *d)
{
	json_t *a = json_array();
	const struct list *at;

	list_foreach (at, &d->clients) {
		const struct iod_client *c = list_entry(at, struct iod_client, link);

		if (c->state == IOD_CLIENT_OPEN)
			(void)json_array_append_new(a, client_of(c, iod_daemon_now(d)));
	}
	return a;
}

static json_t *picture_of(struct iod_daemon *d)
{
	char digest[33];

	for (int i = 0; i < 16; i++)
		(void)snprintf(digest + 2 * i, 3, "%02x", d->source->model_digest[i]);
	return json_pack("{s:s, s:s, s:s, s:f, s:o, s:o, s:o, s:o, s:o}", "version", K3_VERSION,
			 "model", digest, "backend", iod_reader_describe_short(d->reader),
			 "uptime_seconds", (double)(iod_daemon_now(d) - d->start_usec) / 1e6,
			 "counters", counters_of(d), "devices", devices_of(d), "trunk", trunk_of(d),
			 "slots", slots_of(d), "clients", clients_of(d));
}

int iod_view_reply(struct iod_client *c, struct err *err)
{
	struct proto_message m = { .type = PROTO_VIEW_REPLY };
	json_t *picture;
	char *text;
	int r = 0;

	/* pictures are large: none is kept for who does not take the messages before it */
	if (c->n_out > 0)
		return err_set(err, ERR_PROTOCOL, "VIEW came while %u messages wait to be taken",
			       c->n_out);
	picture = picture_of(c->daemon);
	text = picture ? json_dumps(picture, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	json_decref(picture);
	if (!text)
		return err_set(err, ERR_NO_MEMORY, "no memory for a picture of the daemon");
	m.tail = (const uint8_t *)text;
	m.tail_size = strlen(text);
	m.body.view_reply.size = (uint32_t)m.tail_size;
	if (m.tail_size <= PROTO_TAIL_MAX)
		iod_client_send(c, &m);
	else
		r = err_set(err, ERR_UNSUPPORTED,
			    "a picture of %zu bytes is too large for a message", m.tail_size);
	free(text);
	return r;
}

/* ---- Prometheus --------------------------------------------------------------------------------
 */

static const struct {
	const char *name, *sentence;
	bool is_counter;
} rows[] = {
#define C                                true
#define G                                false
#define STAT(name, unit, kind, sentence) { #name, sentence, kind },
#include "proto/stats.def"
#undef STAT
#undef C
#undef G
};

/* A label's value: \, " and line ends are escaped. */
static void print_label(FILE *f, const char *name, const char *value)
{
	(void)fprintf(f, "%s=\"", name);
	for (; *value; value++) {
		if (*value == '\n')
			(void)fputs("\\n", f);
		else if (*value == '\\' || *value == '"')
			(void)fprintf(f, "\\%c", *value);
		else
			(void)fputc(*value, f);
	}
	(void)fputc('"', f);
}

static void print_head(FILE *f, const char *name, const char *kind, const char *help)
{
	(void)fprintf(f, "# HELP k3_%s %s\n# TYPE k3_%s %s\n", name, help, name, kind);
}

static void print_counters(FILE *f, struct iod_daemon *d)
{
	struct wire_stats_reply reply;

	iod_metrics_reply(d, &reply);
	for (uint32_t i = 0; i < reply.n; i++) {
		char name[64];

		(void)snprintf(name, sizeof(name), "%s%s", rows[i].name,
			       rows[i].is_counter ? "_total" : "");
		print_head(f, name, rows[i].is_counter ? "counter" : "gauge", rows[i].sentence);
		(void)fprintf(f, "k3_%s %" PRIu64 "\n", name, reply.values[i]);
	}
}

static void print_devices(FILE *f, const struct iod_daemon *d)
{
	struct iod_reader_device device;
	char path[PATH_SHOWN + 1];

	print_head(f, "device_read_bytes_total", "counter",
		   "bytes read from each device, by class");
	for (uint32_t i = 0; iod_reader_device(d->reader, i, &device); i++) {
		show_path(device.first_path, path);
		for (uint32_t k = 0; k < IOD_READ_CLASS_N_; k++) {
			(void)fputs("k3_device_read_bytes_total{", f);
			print_label(f, "path", path);
			(void)fprintf(f, ",class=\"%s\"} %" PRIu64 "\n", class_names[k],
				      device.bytes[k]);
		}
	}
	print_head(f, "device_reads_in_flight", "gauge", "chunks in flight on each device");
	for (uint32_t i = 0; iod_reader_device(d->reader, i, &device); i++) {
		show_path(device.first_path, path);
		(void)fputs("k3_device_reads_in_flight{", f);
		print_label(f, "path", path);
		(void)fprintf(f, "} %" PRIu32 "\n", device.n_in_flight);
	}
}

static void print_clients(FILE *f, const struct iod_daemon *d)
{
	const struct list *at;

	print_head(f, "client_wait_seconds_total", "counter",
		   "time in which a client had nothing of the daemon to compute on");
	list_foreach (at, &d->clients) {
		const struct iod_client *c = list_entry(at, struct iod_client, link);

		if (c->state == IOD_CLIENT_OPEN)
			(void)fprintf(
				f, "k3_client_wait_seconds_total{client=\"%u\",uid=\"%u\"} %.6f\n",
				c->number, c->uid, wait_seconds(c, iod_daemon_now(d)));
	}
}

char *iod_view_exposition(struct iod_daemon *d, size_t *ret_size)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, ret_size);

	if (!f)
		return NULL;
	print_counters(f, d);
	print_devices(f, d);
	print_clients(f, d);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}
