#pragma once
/* Characters that became letters, marks or numbers after Unicode 14. Private to compute/text. */
#include <stdbool.h>
#include <stddef.h>

/* Does text (valid UTF-8) have any? */
bool k3_unicode_has_newer(const char *text, size_t size);
/* Overwrite each by an older character of the same class and the same length. */
void k3_unicode_replace_newer(char *text, size_t size);
