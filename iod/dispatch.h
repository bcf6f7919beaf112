#pragma once
/* From a message to the module that serves it. */
#include "proto/conn.h"

struct iod_client;

/* Owns the descriptors in m. A client that breaks a rule is dropped with the reason. */
void iod_dispatch(struct iod_client *c, struct proto_message *m);
