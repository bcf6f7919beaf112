#pragma once
/* What the slab's memory is made of; for slab.c alone. Each leaves words in s->huge_note. */
#include <sys/mman.h>

#include "shared/slab.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Map fd at an address that is a multiple of the huge page size, so that huge pages can be mapped
 * as such. NULL and errno on failure. */
uint8_t *slab_pages_map(int fd, uint64_t size, int prot);
/* s->fd: a memfd of s->size bytes in reserved huge pages. 0 or -errno, the note then says why.
 * Fewer pages than that show only when it is mapped: tell of this with slab_pages_refuse. */
int slab_pages_reserve(struct slab *s);
void slab_pages_refuse(struct slab *s, int error);
/* Of the mapping, before anything of it is resident. */
void slab_pages_ask(struct slab *s, enum slab_pages pages);
/* Make a huge page of these bytes, of which nothing is resident, if the kernel has one. */
void slab_pages_collapse(struct slab *s, uint64_t at, uint64_t size);
/* Make it resident by writing to it what is there, for kernels before 5.14: this may end in SIGBUS
 * where populating would report. */
void slab_pages_write(uint8_t *at, uint64_t size);
/* All is resident: the note's last words. */
void slab_pages_note(struct slab *s);
