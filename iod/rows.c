#include "iod/rows.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "iod/client.h"
#include "iod/daemon.h"
#include "iod/read/change.h"
#include "shared/attr.h"

enum { ROWS_IN_FLIGHT = 16 };

struct request {
	struct list link;
	struct iod_client *client;
	struct wire_rows rows;
	uint32_t next;   /* first index without a read */
	uint32_t n_left; /* rows not yet answered */
};

struct row_read {
	struct iod_read read;
	struct source_segment segment;
	struct list link;        /* in iod_rows.free */
	struct iod_rows *rows;   /* borrowed: its owner */
	struct request *request; /* NULL: the client has gone meanwhile */
	uint32_t index;
	bool is_again;   /* its bytes did not have their checksum, so it is read once more */
	uint8_t *buffer; /* buffer_size bytes in iod_rows.memory */
};

struct iod_rows {
	struct iod_daemon *daemon; /* borrowed */
	struct list free;
	struct row_read reads[ROWS_IN_FLIGHT];
	uint8_t *memory; /* owned */
	uint64_t buffer_size;
};

int iod_rows_new(struct iod_rows **ret, struct iod_daemon *d)
{
	struct iod_rows *rows = calloc(1, sizeof(*rows));

	if (!rows)
		return -ENOMEM;
	rows->daemon = d;
	/* a row that begins and ends anywhere in a page */
	rows->buffer_size = (d->source->embed_row_size + 2 * 4096 - 1) / 4096 * 4096;
	rows->memory = aligned_alloc(4096, rows->buffer_size * ROWS_IN_FLIGHT);
	if (!rows->memory) {
		free(rows);
		return -ENOMEM;
	}
	/* it is sent to clients: nothing of the heap may be in it, whatever a read left out */
	memset(rows->memory, 0, rows->buffer_size * ROWS_IN_FLIGHT);
	list_init(&rows->free);
	for (uint32_t i = 0; i < ROWS_IN_FLIGHT; i++) {
		struct row_read *r = &rows->reads[i];

		r->rows = rows;
		r->buffer = rows->memory + i * rows->buffer_size;
		list_init(&r->read.link);
		list_push_tail(&rows->free, &r->link);
	}
	*ret = rows;
	return 0;
}

struct iod_rows *iod_rows_free(struct iod_rows *rows)
{
	if (rows) {
		free(rows->memory);
		free(rows);
	}
	return NULL;
}

static void free_request(struct request *q)
{
	q->client->rows.n--;
	list_remove(&q->link);
	free(q);
}

/* Beyond the quota: the client may ask again when others have been answered. */
static void refuse(struct iod_client *c, uint32_t serial)
{
	struct err err = { 0 };

	(void)err_set(&err, ERR_BUSY, "ROWS: more than %u requests at once",
		      IOD_QUOTA_ROW_REQUESTS);
	c->daemon->metrics.requests_refused++;
	iod_client_send_error(c, &err, PROTO_ROWS, serial, 0);
}

int iod_rows_ask(struct iod_client *c, const struct wire_rows *m, struct err *err)
{
	uint64_t n_rows = c->daemon->source->catalog.header->embed_rows;
	struct request *q;

	for (uint32_t i = 0; i < m->n; i++)
		if (m->ids[i] >= n_rows)
			return err_set(err, ERR_PROTOCOL,
				       "ROWS: token %u, the embedding has %" PRIu64 " rows",
				       m->ids[i], n_rows);
	if (c->rows.n >= IOD_QUOTA_ROW_REQUESTS) {
		refuse(c, m->serial);
		return 0;
	}
	q = calloc(1, sizeof(*q));
	if (!q)
		return err_set(err, ERR_NO_MEMORY, "ROWS: the daemon is out of memory");
	q->client = c;
	q->rows = *m;
	q->n_left = m->n;
	list_push_tail(&c->rows.requests, &q->link);
	c->rows.n++;
	return 0;
}

void iod_rows_end(struct iod_client *c)
{
	struct iod_rows *rows = c->daemon->rows;
	struct list *at, *next;

	for (uint32_t i = 0; i < ROWS_IN_FLIGHT; i++)
		if (rows->reads[i].request && rows->reads[i].request->client == c)
			rows->reads[i].request = NULL;
	list_foreach_safe (at, next, &c->rows.requests)
		free_request(list_entry(at, struct request, link));
}

static const uint8_t *bytes_of(const struct row_read *r)
{
	return r->buffer + r->segment.file_off % 4096;
}

/* fault: why the bytes are not to be used, or no error. */
static void answer(struct row_read *r, int result, const struct err *fault)
{
	struct request *q = r->request;
	const struct source *s = r->rows->daemon->source;
	struct err err = { 0 };
	struct proto_message m = { .type = PROTO_ROW };

	if (fault->code) {
		iod_client_send_error(q->client, fault, PROTO_ROWS, q->rows.serial, r->index);
		return;
	}
	if (result < 0) {
		(void)err_set(&err, ERR_IO,
			      "the embedding of token %u could not be read: %s at byte %" PRIu64
			      ": %s; check the disk and the file",
			      q->rows.ids[r->index], s->files[s->embed_file].path,
			      r->read.bad_offset, iod_read_strerror(result));
		iod_client_send_error(q->client, &err, PROTO_ROWS, q->rows.serial, r->index);
		return;
	}
	m.body.row = (struct wire_row){
		.serial = q->rows.serial,
		.index = r->index,
		.id = q->rows.ids[r->index],
		.size = (uint32_t)s->embed_row_size,
	};
	m.tail = bytes_of(r);
	m.tail_size = s->embed_row_size;
	iod_client_send(q->client, &m);
}

static void on_read(struct iod_read *read, int result);

static void submit(struct row_read *r)
{
	r->read = (struct iod_read){
		.class = IOD_READ_DEMAND,
		.segments = &r->segment,
		.n_segments = 1,
		.dst = r->buffer,
		.dst_size = r->rows->buffer_size,
		.done = on_read,
		.data = r,
	};
	list_init(&r->read.link);
	iod_reader_submit(r->rows->daemon->reader, &r->read);
}

/* Is it read once more, because it did not have its checksum? *fault: after the second time. */
static bool reads_again(struct row_read *r, struct err *fault)
{
	struct iod_checks *checks = &r->rows->daemon->checks;
	const struct source *s = r->rows->daemon->source;
	uint32_t row = (uint32_t)((r->segment.file_off - s->embed_off) / s->embed_row_size);

	if (iod_checks_row(checks, row, bytes_of(r), fault) == 0 || r->is_again)
		return false;
	iod_checks_tell_again(checks, fault);
	err_clear(fault);
	r->is_again = true;
	submit(r);
	return true;
}

static void on_read(struct iod_read *read, int result)
{
	struct row_read *r = read->data;
	struct request *q = r->request;
	struct err fault = { 0 };

	r->rows->daemon->metrics.row_bytes_read += read->bytes_read;
	if (result == 0 && reads_again(r, &fault))
		return;
	list_push_tail(&r->rows->free, &r->link);
	if (q) {
		answer(r, result, &fault);
		if (--q->n_left == 0)
			free_request(q);
	}
	r->request = NULL;
	iod_daemon_wake(r->rows->daemon);
}

static void start_read(struct iod_rows *rows, struct request *q)
{
	const struct source *s = rows->daemon->source;
	struct row_read *r = list_entry(rows->free.next, struct row_read, link);

	list_remove(&r->link);
	r->request = q;
	r->index = q->next++;
	r->is_again = false;
	r->segment = (struct source_segment){
		.file = s->embed_file,
		.file_off = s->embed_off + q->rows.ids[r->index] * s->embed_row_size,
		.size = s->embed_row_size,
	};
	submit(r);
}

/* The oldest request of the client that still wants a read. */
static struct request *find_open(struct iod_client *c)
{
	struct list *at;

	if (c->state != IOD_CLIENT_OPEN || iod_client_is_full(c))
		return NULL;
	list_foreach (at, &c->rows.requests) {
		struct request *q = list_entry(at, struct request, link);

		if (q->next < q->rows.n)
			return q;
	}
	return NULL;
}

void iod_rows_pump(struct iod_daemon *d)
{
	struct list *at;
	bool any;

	do {
		any = false;
		list_foreach (at, &d->clients) {
			struct request *q = find_open(list_entry(at, struct iod_client, link));

			if (!q || list_is_empty(&d->rows->free))
				continue;
			start_read(d->rows, q);
			any = true;
		}
	} while (any);
}
