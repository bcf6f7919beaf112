#include "iod/dispatch.h"

#include <errno.h>
#include <string.h>

#include "iod/client.h"
#include "iod/daemon.h"
#include "iod/read/change.h"
#include "iod/view.h"
#include "shared/log.h"

static void fill_welcome(struct iod_client *c, uint32_t version, struct proto_message *m)
{
	struct iod_daemon *d = c->daemon;
	const struct iod_handout *h = &d->handout;
	struct wire_welcome *w = &m->body.welcome;

	m->type = PROTO_WELCOME;
	w->version = version;
	memcpy(w->model_digest, d->source->model_digest, sizeof(w->model_digest));
	w->slab_size = d->plan.total_size;
	w->catalog_size = d->source->catalog_size;
	w->trunk_pinned_size = d->plan.pinned_size;
	w->ring_size = d->plan.ring_size;
	w->slots_size = d->plan.slots_size;
	w->daemon_private_size = d->plan.daemon_private_size;
	w->n_slots = d->plan.n_slots;
	w->tile_window = c->tile_window;
	w->expert_window = c->experts.window;
	w->client = c->number;
	strncpy(w->backend, iod_reader_describe_short(d->reader), sizeof(w->backend) - 1);
	m->fds[m->n_fds++] = h->slab_fd;
	m->fds[m->n_fds++] = h->catalog_fd;
	m->fds[m->n_fds++] = h->config_fd;
	if (h->vocabulary_fd >= 0) {
		w->has |= WIRE_HAS_VOCABULARY;
		m->fds[m->n_fds++] = h->vocabulary_fd;
	}
	if (h->tokenizer_config_fd >= 0) {
		w->has |= WIRE_HAS_TOKENIZER_CONFIG;
		m->fds[m->n_fds++] = h->tokenizer_config_fd;
	}
}

/* A client must not begin on files that are not those whose digest it is given. */
static int refuse_changed(const struct iod_daemon *d, struct err *err)
{
	uint32_t file = iod_reader_find_changed(d->reader);

	if (file == UINT32_MAX)
		return 0;
	return err_set(err, ERR_CHECKPOINT, "%s: %s", d->source->files[file].path,
		       iod_read_strerror(-ESTALE));
}

static int on_hello(struct iod_client *c, const struct wire_hello *hello, struct err *err)
{
	struct proto_message m = { 0 };
	uint32_t version;
	int r;

	if (c->state != IOD_CLIENT_NEW)
		return err_set(err, ERR_PROTOCOL, "HELLO came twice");
	memcpy(c->name, hello->name, sizeof(c->name));
	if (c->pid == 0)
		c->pid = hello->pid;
	r = proto_hello_agree(hello, &version, err);
	if (r < 0)
		return r;
	r = refuse_changed(c->daemon, err);
	if (r < 0)
		return r;
	r = iod_quota_admit(c->daemon, err);
	if (r < 0) {
		c->daemon->refused_usec = iod_daemon_now(c->daemon);
		return r;
	}
	fill_welcome(c, version, &m);
	c->state = IOD_CLIENT_OPEN;
	c->daemon->n_open++;
	/* tiles that are pinned by now it will find in the directory */
	c->sweep.n_pinned_told = c->daemon->trunk->n_pinned_ready;
	iod_client_send(c, &m);
	log_debug("client %u is %s, pid %u", c->number, c->name, c->pid);
	return 0;
}

static int serve(struct iod_client *c, const struct proto_message *m, struct err *err)
{
	struct proto_message reply = { .type = PROTO_STATS_REPLY };

	switch (m->type) {
	case PROTO_SWEEP:
		return iod_sweep_begin(c, &m->body.sweep, err);
	case PROTO_TILE_DONE:
		return iod_sweep_tile_done(c, &m->body.tile_done, err);
	case PROTO_ROWS:
		return iod_rows_ask(c, &m->body.rows, err);
	case PROTO_EXPERTS:
		return iod_experts_ask(c, &m->body.experts, err);
	case PROTO_EXPERT_DONE:
		return iod_experts_done(c, &m->body.expert_done, err);
	case PROTO_HINT:
		return iod_experts_hint(c, &m->body.experts, err);
	case PROTO_STATS:
		iod_metrics_reply(c->daemon, &reply.body.stats_reply);
		iod_client_send(c, &reply);
		return 0;
	default:
		return err_set(err, ERR_PROTOCOL, "%s does not go to a daemon",
			       proto_name(m->type));
	}
}

void iod_dispatch(struct iod_client *c, struct proto_message *m)
{
	struct err err = { 0 };
	int r;

	if (m->type == PROTO_HELLO)
		r = on_hello(c, &m->body.hello, &err);
	else if (m->type == PROTO_VIEW)
		r = iod_view_reply(c, &err);
	else if (c->state == IOD_CLIENT_NEW)
		r = err_set(&err, ERR_PROTOCOL, "%s came before HELLO", proto_name(m->type));
	else
		r = serve(c, m, &err);
	proto_message_close_fds(m);
	if (r < 0)
		iod_client_drop(c, &err);
}
