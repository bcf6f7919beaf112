#pragma once
/* Intrusive doubly linked list with a sentinel. A node that is in no list points to itself. */
#include <stdbool.h>

#include "shared/attr.h"

struct list {
	struct list *prev, *next;
};

static inline void list_init(struct list *l)
{
	l->prev = l->next = l;
}

static inline bool list_is_empty(const struct list *l)
{
	return l->next == l;
}

static inline void list_push_tail(struct list *head, struct list *node)
{
	node->prev = head->prev;
	node->next = head;
	head->prev->next = node;
	head->prev = node;
}

static inline void list_push_head(struct list *head, struct list *node)
{
	list_push_tail(head->next, node);
}

/* Safe on a node that is in no list. */
static inline void list_remove(struct list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	list_init(node);
}

#define list_entry(node, type, member) CONTAINER_OF(node, type, member)
#define list_foreach(pos, head)        for (pos = (head)->next; pos != (head); pos = pos->next)
#define list_foreach_safe(pos, tmp, head) \
	for (pos = (head)->next, tmp = pos->next; pos != (head); pos = tmp, tmp = pos->next)
