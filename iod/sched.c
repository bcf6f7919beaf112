#include "iod/sched.h"

#include "shared/must.h"

void iod_sched_init(struct iod_sched *s, uint32_t depth)
{
	*s = (struct iod_sched){ .depth = depth };
	for (int c = 0; c < IOD_READ_CLASS_N_; c++)
		list_init(&s->waiting[c]);
}

void iod_sched_push(struct iod_sched *s, struct iod_read *req)
{
	must(!req->is_queued);
	list_push_tail(&s->waiting[req->class], &req->link);
	req->is_queued = true;
}

void iod_sched_push_head(struct iod_sched *s, struct iod_read *req)
{
	must(!req->is_queued);
	list_push_head(&s->waiting[req->class], &req->link);
	req->is_queued = true;
}

void iod_sched_remove(struct iod_read *req)
{
	must(req->is_queued);
	list_remove(&req->link);
	req->is_queued = false;
}

static uint32_t class_depth(const struct iod_sched *s, int class)
{
	return class < IOD_READ_HINT ? s->depth : 1;
}

struct iod_read *iod_sched_next(const struct iod_sched *s)
{
	if (s->n_in_flight >= s->depth)
		return NULL;
	for (int c = 0; c < IOD_READ_CLASS_N_; c++) {
		if (!list_is_empty(&s->waiting[c]) && s->n_class[c] < class_depth(s, c))
			return list_entry(s->waiting[c].next, struct iod_read, link);
	}
	return NULL;
}

void iod_sched_started(struct iod_sched *s, enum iod_read_class class)
{
	s->n_in_flight++;
	s->n_class[class]++;
}

void iod_sched_landed(struct iod_sched *s, enum iod_read_class class)
{
	must(s->n_in_flight > 0 && s->n_class[class] > 0);
	s->n_in_flight--;
	s->n_class[class]--;
}
