#include "iod/read/queue.h"

#include "shared/must.h"

void iod_queue_init(struct iod_queue *q)
{
	*q = (struct iod_queue){ 0 };
	for (int c = 0; c < IOD_READ_CLASS_N_; c++)
		list_init(&q->waiting[c]);
}

void iod_queue_push(struct iod_queue *q, struct iod_read *req)
{
	must(!req->is_queued);
	list_push_tail(&q->waiting[req->class], &req->link);
	req->is_queued = true;
}

void iod_queue_push_head(struct iod_queue *q, struct iod_read *req)
{
	must(!req->is_queued);
	list_push_head(&q->waiting[req->class], &req->link);
	req->is_queued = true;
}

void iod_queue_remove(struct iod_read *req)
{
	must(req->is_queued);
	list_remove(&req->link);
	req->is_queued = false;
}

static uint32_t class_depth(const struct iod_queue *q, int class)
{
	return class < IOD_READ_HINT ? q->depth : 1;
}

struct iod_read *iod_queue_next(const struct iod_queue *q)
{
	if (q->n_in_flight >= q->depth)
		return NULL;
	for (int c = 0; c < IOD_READ_CLASS_N_; c++) {
		if (!list_is_empty(&q->waiting[c]) && q->n_class[c] < class_depth(q, c))
			return list_entry(q->waiting[c].next, struct iod_read, link);
	}
	return NULL;
}

void iod_queue_started(struct iod_queue *q, enum iod_read_class class)
{
	q->n_in_flight++;
	q->n_class[class]++;
}

void iod_queue_landed(struct iod_queue *q, enum iod_read_class class)
{
	must(q->n_in_flight > 0 && q->n_class[class] > 0);
	q->n_in_flight--;
	q->n_class[class]--;
}
