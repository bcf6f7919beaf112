#include "shared/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct err_row {
	const char *name;
	const char *sentence;
	enum err_class class;
	int errno_;
	int exit_code;
};

#define ERR(name_, number, class_, errno__, exit_, sentence_) \
	[number] = { #name_, sentence_, ERR_CLASS_##class_, errno__, exit_ },
static const struct err_row rows[] = {
#include "shared/err.def"
};
#undef ERR

static const struct err_row *find_row(enum err_code code)
{
	static const struct err_row unknown = { "?", "an unknown error", ERR_CLASS_FATAL, EIO, 1 };

	if ((unsigned)code >= N_ELEMENTS(rows) || !rows[code].name)
		return &unknown;
	return &rows[code];
}

int err_set(struct err *err, enum err_code code, const char *fmt, ...)
{
	va_list ap;

	if (err && err->code == ERR_NONE) {
		err->code = code;
		va_start(ap, fmt);
		(void)vsnprintf(err->text, sizeof(err->text), fmt, ap);
		va_end(ap);
	}
	return -find_row(code)->errno_;
}

void err_append(struct err *err, const char *fmt, ...)
{
	va_list ap;
	size_t used;

	if (!err)
		return;
	used = strnlen(err->text, sizeof(err->text) - 1);
	va_start(ap, fmt);
	(void)vsnprintf(err->text + used, sizeof(err->text) - used, fmt, ap);
	va_end(ap);
}

void err_clear(struct err *err)
{
	if (err) {
		err->code = ERR_NONE;
		err->text[0] = '\0';
	}
}

const char *err_name(enum err_code code)
{
	return find_row(code)->name;
}

const char *err_sentence(enum err_code code)
{
	return find_row(code)->sentence;
}

enum err_class err_class(enum err_code code)
{
	return find_row(code)->class;
}

int err_exit_code(enum err_code code)
{
	return find_row(code)->exit_code;
}

int err_errno(enum err_code code)
{
	return find_row(code)->errno_;
}
