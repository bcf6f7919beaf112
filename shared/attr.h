#pragma once
/* Scope cleanup and ownership hand-over; see docs/architecture.md "Ownership". */

/* A variable that does nothing but be cleaned up is used, whatever clang thinks. */
#define CLEANUP(fn)       __attribute__((__cleanup__(fn), __unused__))
#define PRINTF_LIKE(f, a) __attribute__((__format__(__printf__, f, a)))

/* Hand a pointer on: the variable is NULL afterwards, so its cleanup does nothing. */
#define TAKE(p)                            \
	({                                 \
		__typeof__(p) take_ = (p); \
		(p) = NULL;                \
		take_;                     \
	})
/* The same for a file descriptor. */
#define TAKE_FD(fd)                  \
	({                           \
		int take_fd_ = (fd); \
		(fd) = -1;           \
		take_fd_;            \
	})

#define N_ELEMENTS(a) (sizeof(a) / sizeof((a)[0]))
#define CONTAINER_OF(ptr, type, member) \
	((type *)(void *)((char *)(ptr) - __builtin_offsetof(type, member)))
