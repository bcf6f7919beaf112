#pragma once
/*
 * SIGHUP, systemctl reload: the options are read again, as at the start (the command line, then the
 * configuration file for what it leaves open, and the profile). Those of the table in reload.c take
 * effect at once, without a client, a read or the cache noticing; of the others those that differ
 * are named in the log. What is not understood is refused as a whole.
 */
struct iod_daemon;

void iod_reload(struct iod_daemon *d);
