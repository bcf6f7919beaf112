#pragma once
/*
 * Errors. A function returns an int: < 0 a fatal -errno, 0 done, > 0 a condition named by that
 * module which the direct caller handles. Where a person must be told, the last parameter is a
 * struct err that receives the code and one full sentence (file, field, remedy). Functions set it,
 * they never print it: the place that decides logs once.
 */
#include <stdint.h>

#include "shared/attr.h"

#define ERR(name, number, class, errno_, exit_, sentence) ERR_##name = number,
enum err_code {
#include "shared/err.def"
};
#undef ERR

enum err_class { ERR_CLASS_FATAL = 0, ERR_CLASS_RETRY = 1 };

struct err {
	enum err_code code;
	char text[2000];
};

/* Set code and sentence (NULL err: only the return value); returns -errno of the code, always < 0
 * for a real code. An err that is already set is kept: the first cause wins. */
int err_set(struct err *err, enum err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Append to the sentence of an err that is set ("; and ..."); for lists of missing things. */
void err_append(struct err *err, const char *fmt, ...) PRINTF_LIKE(2, 3);
void err_clear(struct err *err);

const char *err_name(enum err_code code); /* "CONFIG"; "?" when unknown */
const char *err_sentence(enum err_code code);
enum err_class err_class(enum err_code code);
int err_exit_code(enum err_code code); /* exit code of a program that ends with it */
int err_errno(enum err_code code);     /* positive errno */
