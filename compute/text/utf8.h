#pragma once
/* Strict UTF-8 (no overlong forms, no surrogates, nothing above U+10FFFF). */
#include <stddef.h>
#include <stdint.h>

/*
 * One character at s (size > 0 bytes left). > 0: its length, *ret_char is the code point. 0: s ends
 * inside a character that is well formed so far. < 0: minus the length of the longest part that
 * can be no character (at least 1): what a reader replaces by one U+FFFD.
 */
int k3_utf8_step(const unsigned char *s, size_t size, uint32_t *ret_char);

/* Offset of the first byte of the first invalid (or cut off) sequence; size when all is valid. */
size_t k3_utf8_check(const char *text, size_t size);
