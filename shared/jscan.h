#pragma once
/*
 * A small JSON reader for the two documents of a checkpoint that are too large for a tree: shard
 * headers and the index. The text passes through one fixed window; the caller walks it token by
 * token and decides what belongs where. Everything is checked: no number overflows, no string is
 * longer than its buffer, nothing outside [offset, end) of the file is read.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/attr.h"
#include "shared/err.h"

enum { JSCAN_WINDOW_SIZE = 256 << 10, JSCAN_SUBJECT_SIZE = 4096 };

struct jscan {
	int fd;               /* borrowed */
	const char *path;     /* borrowed: for messages */
	struct err *err;      /* borrowed; may be NULL */
	void *digest;         /* borrowed: XXH3_state_t * fed with every byte read, or NULL */
	uint64_t window_off;  /* of the next byte to load */
	uint64_t end_off;     /* where the document ends in the file */
	const char *at, *end; /* unread part of the window */
	/* The thing being read (a tensor's name), for messages; length 0: none. */
	size_t subject_len;
	char subject[JSCAN_SUBJECT_SIZE];
	char window[JSCAN_WINDOW_SIZE];
};

/* Set everything but the window; the document is bytes [offset, end) of fd. */
void jscan_init(struct jscan *j, int fd, const char *path, uint64_t offset, uint64_t end,
		struct err *err);

/* ERR_CHECKPOINT with the file, the subject, a sentence and "fetch it again"; returns its negative
 * errno. */
int jscan_fail(struct jscan *j, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* "… has X where Y belongs"; got < 0 is an error to pass on. */
int jscan_fail_byte(struct jscan *j, const char *wanted, int got);

/* 1 when unread bytes are in the window, 0 at the end of the document, or an error. */
int jscan_load(struct jscan *j);
/* The next byte (0..255), consumed; an error at the document's end. */
int jscan_next_byte(struct jscan *j);
/* The same, after white space. */
int jscan_next_token(struct jscan *j);
/* Consume exactly this token. */
int jscan_expect(struct jscan *j, char wanted);

/* After the opening quote, to the closing one. buf NULL: skipped. Returns the unescaped length; not
 * NUL-terminated, but never holds a NUL. */
int jscan_read_string(struct jscan *j, char *buf, size_t size);
/* A whole number without sign, fraction or exponent, whose first byte is c; *ret_next is the token
 * after it. what is for messages. */
int jscan_read_number(struct jscan *j, int c, const char *what, uint64_t *ret, int *ret_next);
/* "[1, 2, 3]" of at most max numbers; returns how many. */
int jscan_read_numbers(struct jscan *j, const char *what, uint64_t *ret, uint32_t max);
/* Skip an object or array whose opening bracket is c; loose about what is in it, strict about
 * brackets and strings, bounded in depth. */
int jscan_skip_container(struct jscan *j, int c);
