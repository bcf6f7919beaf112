#include "bench/kernel_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/median.h"

static volatile float sink;

enum { N_ELEMENTS_OP = 12288, DIM = 128, N_SOURCES = 9, N_LATENTS = 1024, RANK = 512 };

struct op_input {
	float *a, *b, *c, *out, *state;
	const float *sources[N_SOURCES];
};

#define OP(name, call)                                                         \
	static void op_##name(const struct kern_table *k, struct op_input *in) \
	{                                                                      \
		call;                                                          \
	}
OP(dot, sink = k->dot(in->a, in->b, N_ELEMENTS_OP))
OP(rmsnorm, k->rmsnorm(in->a, in->b, N_ELEMENTS_OP, 1e-5f, in->out))
OP(l2norm, k->l2norm(in->a, N_ELEMENTS_OP, 1e-6f, 1.0f, in->out))
OP(situ, k->situ(in->a, in->b, N_ELEMENTS_OP, 4.0f, 25.0f, in->out))
OP(exp, k->exp(in->a, N_ELEMENTS_OP, in->out))
OP(sigmoid, k->sigmoid(in->a, N_ELEMENTS_OP, in->out))
OP(gate, k->gate(in->a, in->b, N_ELEMENTS_OP, in->out))
OP(add, k->add(in->a, N_ELEMENTS_OP, in->out))
OP(axpy, k->axpy(0.5f, in->a, N_ELEMENTS_OP, in->out))
OP(mix, k->mix(in->sources, N_SOURCES, N_ELEMENTS_OP, in->c, 1e-5f, in->out))
OP(conv, k->conv(in->a, in->state, 4, in->state + 4 * N_ELEMENTS_OP, N_ELEMENTS_OP, N_ELEMENTS_OP,
		 in->out))
OP(kda_decay, k->kda_decay(in->a, in->b, 1.5f, -5.0f, N_ELEMENTS_OP, in->out))
OP(kda_step,
   k->kda_step(in->state, DIM, DIM, in->a, in->b, in->c, in->b + DIM, 0.5f, in->out, in->out + DIM))
OP(colsum_f32, k->colsum_f32(in->state, RANK, DIM, RANK, in->a, in->out))
OP(colsum_bf16, k->colsum_bf16(in->state, DIM, RANK, in->a, in->out))
OP(softmax, (memcpy(in->out, in->a, N_ELEMENTS_OP * sizeof(float)),
	     sink = k->softmax(in->out, N_ELEMENTS_OP)))
OP(pack_bf16, k->pack_bf16(in->a, N_ELEMENTS_OP, in->out))
OP(pack_mxfp4, k->pack_mxfp4(in->a, N_ELEMENTS_OP, in->out))

static const struct {
	const char *name;
	void (*run)(const struct kern_table *k, struct op_input *in);
	size_t n_elements;
} ops[] = {
	{ "dot", op_dot, N_ELEMENTS_OP },
	{ "rmsnorm", op_rmsnorm, N_ELEMENTS_OP },
	{ "l2norm", op_l2norm, N_ELEMENTS_OP },
	{ "situ", op_situ, N_ELEMENTS_OP },
	{ "exp", op_exp, N_ELEMENTS_OP },
	{ "sigmoid", op_sigmoid, N_ELEMENTS_OP },
	{ "gate", op_gate, N_ELEMENTS_OP },
	{ "add", op_add, N_ELEMENTS_OP },
	{ "axpy", op_axpy, N_ELEMENTS_OP },
	{ "mix of 9", op_mix, N_ELEMENTS_OP },
	{ "conv", op_conv, N_ELEMENTS_OP },
	{ "kda_decay", op_kda_decay, N_ELEMENTS_OP },
	{ "kda_step", op_kda_step, (size_t)DIM *DIM },
	{ "colsum_f32", op_colsum_f32, (size_t)DIM *RANK },
	{ "colsum_bf16", op_colsum_bf16, (size_t)DIM *RANK },
	{ "softmax", op_softmax, N_ELEMENTS_OP },
	{ "pack_bf16", op_pack_bf16, N_ELEMENTS_OP },
	{ "pack_mxfp4", op_pack_mxfp4, N_ELEMENTS_OP },
};

float *bench_new_floats(size_t n)
{
	float *p = aligned_alloc(64, (n * sizeof(*p) + 63) / 64 * 64);

	if (!p)
		abort();
	for (size_t i = 0; i < n; i++)
		p[i] = (float)(i % 97) * 0.01f - 0.5f;
	return p;
}

void bench_ops(const struct kern_table *kern, size_t rounds)
{
	static double ns[BENCH_ROUNDS_MAX];
	struct op_input in = {
		.a = bench_new_floats(N_ELEMENTS_OP),
		.b = bench_new_floats(N_ELEMENTS_OP),
		.c = bench_new_floats(N_ELEMENTS_OP),
		.out = bench_new_floats(2 * N_ELEMENTS_OP),
		.state = bench_new_floats(8 * N_ELEMENTS_OP),
	};

	for (size_t i = 0; i < N_SOURCES; i++)
		in.sources[i] = bench_new_floats(N_ELEMENTS_OP);
	for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]); o++) {
		for (size_t i = 0; i < rounds; i++) {
			enum { REPEAT = 20 };
			double t = now();

			for (int j = 0; j < REPEAT; j++)
				ops[o].run(kern, &in);
			ns[i] = (now() - t) / REPEAT / (double)ops[o].n_elements * 1e9;
		}
		(void)printf("%-7s %-12s %8.3f ns per element\n", kern_isa_name(kern->isa),
			     ops[o].name, median(ns, rounds));
	}
	for (size_t i = 0; i < N_SOURCES; i++)
		free((void *)(uintptr_t)in.sources[i]);
	free(in.a);
	free(in.b);
	free(in.c);
	free(in.out);
	free(in.state);
}
