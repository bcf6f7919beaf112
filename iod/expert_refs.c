/* A client's requests for experts, as memory: see experts.h. */
#include <errno.h>
#include <stdlib.h>

#include "iod/client.h"
#include "iod/experts.h"

int iod_expert_refs_init(struct iod_client *c, uint32_t window)
{
	struct iod_expert_refs *e = &c->experts;

	e->refs = calloc(window, sizeof(*e->refs));
	if (!e->refs)
		return -ENOMEM;
	list_init(&e->free);
	list_init(&e->waiting);
	for (uint32_t i = 0; i < window; i++) {
		e->refs[i].client = c;
		list_init(&e->refs[i].link);
		list_push_tail(&e->free, &e->refs[i].link);
	}
	e->window = window;
	return 0;
}

void iod_expert_refs_deinit(struct iod_client *c)
{
	free(c->experts.refs);
	c->experts.refs = NULL;
	c->experts.window = 0;
}
