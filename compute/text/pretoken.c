/*
 * The split pattern of the released tokenizer, in PCRE2's words, and the cuts made before it.
 *
 * The original is written for another engine. What differs here and why:
 *  - [A&&[^\p{Han}]] (intersection) does not exist in PCRE2. A is a union of general categories, so
 *    "A but not Han" is written as "none of the other categories, nor Han". One class, no group: a
 *    repeat of it needs no stack, however long the run.
 *  - \p{Han} is the script there; in PCRE2 it would be the script extensions, which have Japanese
 *    punctuation too, so it is \p{sc:Han}.
 *  - \s is spelled out as White_Space; PCRE2's own \s under UCP also has U+180E, which is none.
 *  - PCRE2 10.42 has the tables of Unicode 14, the reference those of Unicode 16. Characters that
 *    are letters, marks or numbers only since then are matched as an older character of the same
 *    class and UTF-8 length (unicode_newer.c), in a copy made for the stretches that have any.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "compute/text/pretoken.h"

#include <errno.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "compute/text/unicode_newer.h"
#include "compute/text/utf8.h"
#include "shared/must.h"

enum { BLOCK_CHARS = 400000, RUN_CHARS = 25000 };

/* White_Space, for use inside a class. */
#define SPACE                                                                     \
	"\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}" \
	"\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_NEWLINE_LETTER_NUMBER "[^\\r\\n\\p{L}\\p{N}]"
/* (Lu Lt Lm Lo M) without Han, and (Ll Lm Lo M) without Han. */
#define UPPER       "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define LOWER       "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

static const char pattern[] =
	"\\p{sc:Han}+"
	"|" NOT_NEWLINE_LETTER_NUMBER "?" UPPER "*" LOWER "+" CONTRACTION
	"|" NOT_NEWLINE_LETTER_NUMBER "?" UPPER "+" LOWER "*" CONTRACTION "|\\p{N}{1,3}"
	"|\\x{20}?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*"
	"|[" SPACE "]*[\\r\\n]+"
	"|[" SPACE "]+(?![^" SPACE "])"
	"|[" SPACE "]+";

struct k3_pretoken {
	pcre2_code *code;
	pcre2_match_data *match;
	pcre2_match_context *context;
	pcre2_jit_stack *stack;
	bool has_jit;
	const char *subject; /* the stretch, or copy */
	size_t size;
	char *copy; /* owned: the stretch with newer characters replaced */
};

/*
 * The released tokenizer decides by its language's notion of a blank here, which has the four
 * separators U+001C to U+001F beside White_Space.
 */
static bool is_blank(uint32_t c)
{
	if (c < 0x80)
		return c == ' ' || (c >= 0x9 && c <= 0xd) || (c >= 0x1c && c <= 0x1f);
	return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
	       c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

int k3_stretches_next(struct k3_stretches *s, size_t *ret_from, size_t *ret_to)
{
	const unsigned char *text = (const unsigned char *)s->text;
	size_t at = s->at, n_run = 0;
	bool run_is_blank = false;

	if (at == s->size)
		return 0;
	if (s->n_block == BLOCK_CHARS)
		s->n_block = 0;
	while (at < s->size && s->n_block < BLOCK_CHARS) {
		uint32_t c;
		int n = k3_utf8_step(text + at, s->size - at, &c);
		bool blank;

		must(n > 0); /* checked by the caller for the whole text */
		blank = is_blank(c);
		if (n_run > 0 && blank == run_is_blank) {
			if (n_run == RUN_CHARS)
				break;
		} else {
			n_run = 0;
			run_is_blank = blank;
		}
		n_run++;
		s->n_block++;
		at += (size_t)n;
	}
	*ret_from = s->at;
	*ret_to = s->at = at;
	return 1;
}

int k3_pretoken_new(struct k3_pretoken **ret, struct err *err)
{
	struct k3_pretoken *p = calloc(1, sizeof(*p));
	PCRE2_UCHAR why[120];
	PCRE2_SIZE where = 0;
	int code = 0;

	if (!p)
		return err_set(err, ERR_NO_MEMORY, "no memory for the split pattern");
	p->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
				PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C,
				&code, &where, NULL);
	if (!p->code) {
		(void)pcre2_get_error_message(code, why, sizeof(why));
		k3_pretoken_free(p);
		return err_set(err, ERR_UNSUPPORTED,
			       "the PCRE2 library refuses the split pattern at offset %zu: %s",
			       where, (const char *)why);
	}
	p->match = pcre2_match_data_create_from_pattern(p->code, NULL);
	p->context = pcre2_match_context_create(NULL);
	if (!p->match || !p->context) {
		k3_pretoken_free(p);
		return err_set(err, ERR_NO_MEMORY, "no memory for the split pattern");
	}
	/* No JIT (a hardened kernel): the interpreter gives the same pieces, slower. */
	p->has_jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
	if (p->has_jit) {
		p->stack = pcre2_jit_stack_create(32 * 1024, 1024 * 1024, NULL);
		if (p->stack)
			pcre2_jit_stack_assign(p->context, NULL, p->stack);
	}
	*ret = p;
	return 0;
}

struct k3_pretoken *k3_pretoken_free(struct k3_pretoken *p)
{
	if (!p)
		return NULL;
	pcre2_jit_stack_free(p->stack);
	pcre2_match_context_free(p->context);
	pcre2_match_data_free(p->match);
	pcre2_code_free(p->code);
	free(p->copy);
	free(p);
	return NULL;
}

int k3_pretoken_set(struct k3_pretoken *p, const char *stretch, size_t size)
{
	free(p->copy);
	p->copy = NULL;
	p->subject = stretch;
	p->size = size;
	if (!k3_unicode_has_newer(stretch, size))
		return 0;
	p->copy = malloc(size);
	if (!p->copy)
		return -ENOMEM;
	memcpy(p->copy, stretch, size);
	k3_unicode_replace_newer(p->copy, size);
	p->subject = p->copy;
	return 0;
}

int k3_pretoken_next(struct k3_pretoken *p, size_t from, size_t *ret_to, struct err *err)
{
	PCRE2_SPTR subject = (PCRE2_SPTR)p->subject;
	PCRE2_UCHAR why[120];
	int r;

	if (p->has_jit)
		r = pcre2_jit_match(p->code, subject, p->size, from, PCRE2_NO_UTF_CHECK, p->match,
				    p->context);
	else
		r = pcre2_match(p->code, subject, p->size, from, PCRE2_NO_UTF_CHECK, p->match,
				p->context);
	if (r == PCRE2_ERROR_JIT_STACKLIMIT)
		r = pcre2_match(p->code, subject, p->size, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
				p->match, p->context);
	if (r < 0) {
		(void)pcre2_get_error_message(r, why, sizeof(why));
		return err_set(err, ERR_UNSUPPORTED, "the PCRE2 library cannot split the text: %s",
			       (const char *)why);
	}
	*ret_to = pcre2_get_ovector_pointer(p->match)[1];
	must(*ret_to > from && *ret_to <= p->size); /* every character is in some alternative */
	return 0;
}
