/*
 * Streaming output. Tokens are byte strings and may end inside a character, so up to three bytes
 * wait in the decoder until the rest of their character arrives. Bytes that cannot become a
 * character turn into one U+FFFD for each longest impossible part, as text tools do.
 * Called by the command line for every generated token, and with final at the end.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "compute/text/tokenizer.h"
#include "compute/text/utf8.h"
#include "shared/must.h"

static const char replacement[] = "\xef\xbf\xbd";

/* Append what is complete in s; returns how many bytes at its end must wait (0 to 3). */
static size_t give_out(const char *s, size_t size, char *out, size_t *out_len)
{
	size_t at = 0, len = *out_len;

	while (at < size) {
		uint32_t c;
		int n = k3_utf8_step((const unsigned char *)s + at, size - at, &c);

		if (n == 0)
			break;
		if (n > 0) {
			memcpy(out + len, s + at, (size_t)n);
			len += (size_t)n;
			at += (size_t)n;
		} else {
			memcpy(out + len, replacement, 3);
			len += 3;
			at += (size_t)-n;
		}
	}
	*out_len = len;
	return size - at;
}

/* Size of the buffer behind a text of len bytes that we grew: doubling keeps appending linear. */
static size_t room_for(size_t len)
{
	size_t room = 64;

	while (room <= len)
		room *= 2;
	return room;
}

/* Room for n more bytes and the NUL. */
static int grow(char **out, size_t len, size_t n)
{
	char *grown = *out;

	if (!grown || room_for(len + n) > room_for(len))
		grown = realloc(*out, room_for(len + n));
	if (!grown)
		return -ENOMEM;
	*out = grown;
	return 0;
}

int k3_decoder_push(struct k3_decoder *d, const struct k3_tokenizer *t, uint32_t id, bool final,
		    char **out, size_t *out_len)
{
	const char *bytes = "";
	size_t size = 0, waiting;
	char *joined;

	if (id != UINT32_MAX) {
		bytes = k3_tokenizer_bytes(t, id, &size);
		if (!bytes)
			return -EINVAL;
	}
	must(d->n_pending < sizeof(d->pending));
	/* At worst every byte turns into the three of U+FFFD. */
	if (grow(out, *out_len, 3 * (d->n_pending + size)) < 0)
		return -ENOMEM;
	joined = malloc(d->n_pending + size + 1);
	if (!joined)
		return -ENOMEM;
	memcpy(joined, d->pending, d->n_pending);
	memcpy(joined + d->n_pending, bytes, size);
	size += d->n_pending;
	waiting = give_out(joined, size, *out, out_len);
	must(waiting < sizeof(d->pending));
	memcpy(d->pending, joined + size - waiting, waiting);
	d->n_pending = waiting;
	free(joined);
	if (final && waiting > 0) {
		/* A well-formed beginning without its end is one impossible part. */
		memcpy(*out + *out_len, replacement, 3);
		*out_len += 3;
		d->n_pending = 0;
	}
	(*out)[*out_len] = '\0';
	return 0;
}
