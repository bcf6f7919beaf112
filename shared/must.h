#pragma once
/*
 * must(x): an invariant of our own, cheap, on in every build; prints and aborts.
 * must_slow(x): the same where the check costs; debug and sanitizer builds only.
 * Input from sockets, disks or options is never asserted: it is checked and answered.
 */
_Noreturn void must_fail(const char *expr, const char *file, int line);

#define must(x) ((x) ? (void)0 : must_fail(#x, __FILE__, __LINE__))
#ifdef K3_SLOW_CHECKS
#define must_slow(x) must(x)
#else
#define must_slow(x) ((void)0)
#endif
