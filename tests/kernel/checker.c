/*
 * Every operation of an instruction set against the reference.
 *
 *	test-checker --isa avx2 [--op matmul_bf16] [--seed N]
 *	test-checker --mutate NAME      succeeds when the checker notices
 *
 * The line of an instruction set ends with a digest of all that the reference wrote and one of all
 * that it wrote itself: equal to each other here, and to those of every other build.
 *
 * Exit 0 equal, 1 not, 77 NOT RUN: this CPU or build has no such kernels.
 */
#include "tests/kernel/checker.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	CANARY = 64,
	N_INPUTS = 160,
	N_OUTPUTS = 8,
	SHOWN = 5,
};

static const uint8_t poison[2] = { 0x88, 0x77 };
static const uint8_t canary = 0xa5;

static struct {
	void *map;
	size_t size;
} inputs[N_INPUTS];
static size_t n_inputs;
static float *outputs[N_OUTPUTS];
static size_t n_outputs;

uint32_t check_random(struct check *c)
{
	c->rng ^= c->rng << 13;
	c->rng ^= c->rng >> 7;
	c->rng ^= c->rng << 17;
	return (uint32_t)(c->rng >> 16);
}

size_t check_below(struct check *c, size_t n)
{
	return check_random(c) % n;
}

static float float_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static uint32_t bits_of(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

float check_uniform(struct check *c, float low, float high)
{
	return low + (high - low) * ((float)(check_random(c) & 0xffffff) / 16777216.0f);
}

float check_value(struct check *c)
{
	uint32_t r = check_random(c);

	switch (c->values) {
	case VALUES_UNIFORM:
		return check_uniform(c, -1.0f, 1.0f);
	case VALUES_WIDE:
		return float_of((r & 0x807fffffu) | (97 + check_random(c) % 60) << 23);
	case VALUES_TINY:
	case VALUES_N_:
		break;
	}
	switch (r % 6) {
	case 0:
		return 0.0f;
	case 1:
		return -0.0f;
	case 2:
		return float_of((r & 0x80000000u) | (check_random(c) & 0x7fffff));
	default:
		return float_of((r & 0x807fffffu) | (1 + check_random(c) % 60) << 23);
	}
}

bool check_begin(struct check *c, const char *op, enum values values)
{
	if (c->only && strcmp(c->only, op) != 0)
		return false;
	c->op = op;
	c->values = values;
	c->seed = c->rng;
	c->n_cases++;
	return true;
}

void *check_bytes(struct check *c, size_t n)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t size = (n + page - 1) / page * page + page;
	uint8_t *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *p;

	if (map == MAP_FAILED || n_inputs == N_INPUTS ||
	    mprotect(map + size - page, page, PROT_NONE) != 0) {
		(void)fprintf(stderr, "the checker has no memory\n");
		exit(99);
	}
	inputs[n_inputs].map = map;
	inputs[n_inputs++].size = size;
	p = map + size - page - n;
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)check_random(c);
	return p;
}

float *check_floats(struct check *c, size_t n)
{
	float *p = check_bytes(c, n * sizeof(*p));

	for (size_t i = 0; i < n; i++)
		p[i] = check_value(c);
	return p;
}

uint16_t *check_bf16(struct check *c, size_t n)
{
	/* A byte more at the end moves the start to an odd address. */
	size_t odd = check_below(c, 4) == 0;
	uint8_t *p = check_bytes(c, n * 2 + odd);

	for (size_t i = 0; i < n; i++) {
		uint16_t u = (uint16_t)(bits_of(check_value(c)) >> 16);

		memcpy(p + 2 * i, &u, sizeof(u));
	}
	return (void *)p;
}

float *check_aligned(struct check *c, size_t n)
{
	size_t rounded = (n + 15) / 16 * 16;
	float *p = check_bytes(c, rounded * sizeof(*p));

	memset(p, 0, rounded * sizeof(*p));
	return p;
}

void check_release(struct check *c)
{
	(void)c;
	while (n_inputs) {
		n_inputs--;
		(void)munmap(inputs[n_inputs].map, inputs[n_inputs].size);
	}
	while (n_outputs)
		free(outputs[--n_outputs]);
}

static float *new_output(size_t n, size_t offset, uint8_t fill, const float *initial)
{
	uint8_t *mem = malloc(n * sizeof(float) + 2 * CANARY + 64);

	if (!mem || n_outputs == N_OUTPUTS) {
		(void)fprintf(stderr, "the checker has no memory\n");
		exit(99);
	}
	outputs[n_outputs++] = (void *)mem;
	memset(mem, canary, n * sizeof(float) + 2 * CANARY + 64);
	mem += CANARY + offset;
	memset(mem, fill, n * sizeof(float));
	if (initial)
		memcpy(mem, initial, n * sizeof(float));
	return (void *)mem;
}

struct output check_output(struct check *c, size_t n, const float *initial)
{
	size_t offset = check_below(c, 16) * sizeof(float);

	return (struct output){
		.ref = new_output(n, offset, poison[0], initial),
		.candidate = new_output(n, check_below(c, 16) * sizeof(float), poison[1], initial),
		.n = n,
	};
}

__attribute__((__format__(__printf__, 3, 0))) static void fail(struct check *c, const char *what,
							       const char *shape, va_list ap)
{
	if (c->n_failed++ >= SHOWN)
		return;
	(void)printf("%s (", c->op);
	(void)vprintf(shape, ap);
	(void)printf(") values %d seed %#llx: %s\n", (int)c->values, (unsigned long long)c->seed,
		     what);
}

/* FNV-1a, word by word. */
static void add_to_digest(uint64_t *digest, float f)
{
	*digest = (*digest ^ (f != f ? 0x7fc00000u : bits_of(f))) * 0x100000001b3u;
}

static void add_to_digests(struct check *c, float ref, float candidate)
{
	add_to_digest(&c->digest_ref, ref);
	add_to_digest(&c->digest_candidate, candidate);
}

static bool is_canary(const float *p, size_t n)
{
	const uint8_t *before = (const uint8_t *)p - CANARY, *after = (const uint8_t *)(p + n);

	for (size_t i = 0; i < CANARY; i++) {
		if (before[i] != canary || after[i] != canary)
			return false;
	}
	return true;
}

static bool same(float a, float b)
{
	return bits_of(a) == bits_of(b) || (a != a && b != b); /* payloads of NaN are free */
}

void check_output_done(struct check *c, const struct output *o, const bool *written,
		       const char *shape, ...)
{
	uint32_t left[2] = { poison[0] * 0x01010101u, poison[1] * 0x01010101u };
	char what[128] = "";
	va_list ap;

	for (size_t i = 0; i < o->n; i++) {
		if (!written || written[i])
			add_to_digests(c, o->ref[i], o->candidate[i]);
	}
	if (!is_canary(o->ref, o->n))
		(void)snprintf(what, sizeof(what), "the reference writes outside its output");
	if (!is_canary(o->candidate, o->n))
		(void)snprintf(what, sizeof(what), "the candidate writes outside its output");
	for (size_t i = 0; i < o->n && !what[0]; i++) {
		if (written && !written[i]) {
			if (bits_of(o->ref[i]) != left[0] || bits_of(o->candidate[i]) != left[1])
				(void)snprintf(what, sizeof(what), "index %zu must be left alone",
					       i);
		} else if (!same(o->ref[i], o->candidate[i])) {
			(void)snprintf(what, sizeof(what), "index %zu: ref %08x, candidate %08x", i,
				       bits_of(o->ref[i]), bits_of(o->candidate[i]));
		}
	}
	if (!what[0])
		return;
	va_start(ap, shape);
	fail(c, what, shape, ap);
	va_end(ap);
}

void check_result(struct check *c, float ref, float candidate, const char *shape, ...)
{
	char what[128];
	va_list ap;

	add_to_digests(c, ref, candidate);
	if (same(ref, candidate))
		return;
	(void)snprintf(what, sizeof(what), "result: ref %08x, candidate %08x", bits_of(ref),
		       bits_of(candidate));
	va_start(ap, shape);
	fail(c, what, shape, ap);
	va_end(ap);
}

static void run_all(struct check *c)
{
	check_matmul(c);
	check_sums(c);
	check_elementwise(c);
	check_layer_ops(c);
}

static const struct mutant *find_mutant(const char *name)
{
	for (size_t i = 0; i < n_mutants; i++) {
		if (strcmp(mutants[i].name, name) == 0)
			return &mutants[i];
	}
	return NULL;
}

static int run_mutant(struct check *c, const char *name, const struct kern_table *ref)
{
	const struct mutant *m = find_mutant(name);
	struct kern_table wrong = *ref;

	if (!m) {
		(void)fprintf(stderr, "no mutant \"%s\"\n", name);
		return 99;
	}
	m->apply(&wrong);
	c->candidate = &wrong;
	c->only = m->op;
	run_all(c);
	(void)printf("mutant %s of %s: %lu of %lu cases differ\n", name, m->op, c->n_failed,
		     c->n_cases);
	return c->n_failed ? 0 : 1;
}

static int run_isa(struct check *c, const char *name)
{
	int isa = kern_isa_parse(name);
	struct kern_table t;

	if (isa < 0) {
		(void)fprintf(stderr, "no instruction set \"%s\"\n", name);
		return 99;
	}
	if (!kern_isa_is_available((enum kern_isa)isa)) {
		(void)printf("NOT RUN: no %s here\n", name);
		return 77;
	}
	if (kern_table_init(&t, (enum kern_isa)isa, NULL) < 0)
		return 99;
	if (t.isa != (enum kern_isa)isa)
		return 99;
	c->candidate = &t;
	run_all(c);
	(void)printf("%s: %lu cases, %lu differ, digests %016" PRIx64 " %016" PRIx64 "\n", name,
		     c->n_cases, c->n_failed, c->digest_ref, c->digest_candidate);
	if (c->n_cases == 0)
		return 99; /* a check of nothing is no check */
	return c->n_failed ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct kern_table ref;
	struct check c = {
		.ref = &ref,
		.rng = 88172645463325252u,
		.digest_ref = 0xcbf29ce484222325u,
		.digest_candidate = 0xcbf29ce484222325u,
	};
	const char *isa = NULL, *mutant = NULL;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--isa") == 0)
			isa = argv[i + 1];
		else if (strcmp(argv[i], "--mutate") == 0)
			mutant = argv[i + 1];
		else if (strcmp(argv[i], "--op") == 0)
			c.only = argv[i + 1];
		else if (strcmp(argv[i], "--seed") == 0)
			c.rng = strtoull(argv[i + 1], NULL, 0);
	}
	if (!isa == !mutant) {
		(void)fprintf(stderr, "usage: %s --isa NAME | --mutate NAME [--op OP] [--seed N]\n",
			      argv[0]);
		return 99;
	}
	if (kern_table_init(&ref, KERN_ISA_REF, NULL) < 0)
		return 99;
	return isa ? run_isa(&c, isa) : run_mutant(&c, mutant, &ref);
}
