#pragma once
/* Further questions about a message, for this folder's own files. */
#include "proto/conn.h"

/* The most descriptors that may ride along. */
uint32_t proto_fds_max(enum proto_type type);
/* The field of body that states the tail's size; NULL when the message has no tail. */
uint32_t *proto_tail_size_field(enum proto_type type, union proto_body *body);
/* The largest packet, header and tail included, that can go in this direction. */
size_t proto_packet_max(enum proto_direction direction);
