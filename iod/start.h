#pragma once
/*
 * From memory to READY=1 and on, a short piece of work a turn so that the watchdog means something:
 * read one tile as a probe, let clients in, then make the slab resident and known to the reader;
 * one that cannot be used early (slab_is_usable_early) before the probe. While pinned tiles load
 * the service manager sees how far they are.
 */
struct iod_daemon;

int iod_start_begin(struct iod_daemon *d);
/* It had to wait (keep.h), and need not any more. */
void iod_start_go_on(struct iod_daemon *d);
/* The probe's tile has landed or failed. */
void iod_start_tile_changed(struct iod_daemon *d);
/* Both once a second while serving. Accepting may have paused for want of descriptors or memory. */
void iod_start_report_pinning(struct iod_daemon *d);
void iod_start_listen_again(struct iod_daemon *d);
