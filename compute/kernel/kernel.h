#pragma once
/*
 * The kernels: one table of function pointers, filled with the reference and overwritten upward by
 * what the CPU has. Every variant gives the reference's bits; the order of each sum is fixed in
 * order.h and explained in docs/kernels.md. Kernels are serial: threads split outputs in the
 * callers. Kernels never allocate, never fail and never log.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/err.h"
#include "shared/must.h"

/* Bytes of stack: no kernel takes more, whatever the compiler's level. */
enum { KERN_STACK = 704 << 10 };

enum kern_isa { KERN_ISA_REF, KERN_ISA_NEON, KERN_ISA_AVX2, KERN_ISA_AVX512, KERN_ISA_N_ };
enum kern_format { KERN_F32, KERN_BF16, KERN_MXFP4, KERN_FORMAT_N_ };

/*
 * Packed activations. The weights of a 64-byte line meet x in vectors of 16: x is stored once per
 * row in that order, padded with +0 to whole lines (f32: 16 elements a line, as is; bf16: 32, evens
 * then odds; MXFP4: 128, k = 0 ... 7). Rows of packed x are 64-byte aligned: stride is a multiple
 * of 16 floats.
 */
size_t kern_packed_len(enum kern_format format,
		       size_t n_cols); /* floats of one packed row, multiple of 16 */

/* Floats from one packed row to the next where there are several: a vector more, without which rows
 * of 7168 floats all begin at the same place of a page (32 of them: 2 to 4 % slower). */
static inline size_t kern_packed_stride(enum kern_format format, size_t n_cols)
{
	return kern_packed_len(format, n_cols) + 16;
}

#define KERN_DECL_pack(name) void(name)(const float *x, size_t n_cols, float *xp)

/*
 * Many rows of x meet the weights turned: of each KERN_TURN packed rows, vector j of row l holds
 * number l of vector j of all, in place. So one number of many rows lies together, which the
 * products *_turned want. The rows that the last KERN_TURN lack must exist; they are overwritten.
 * len: floats of a packed row; len and x_stride multiples of 16.
 */
enum { KERN_TURN = 16 };
/* Rows of packed x that must exist where n may be turned. */
static inline size_t kern_turned_rows(size_t n)
{
	return (n + KERN_TURN - 1) / KERN_TURN * KERN_TURN;
}
#define KERN_DECL_turn(name) void(name)(float *xp, size_t x_stride, size_t len, size_t n_x)

/*
 * y[m * y_stride + r] = dot(w row r, x row m) for r in [0, n_rows), m in [0, n_x).
 * w: row r starts at w + r * n_cols elements, any alignment; no byte outside the rows is read.
 * xp: n_x packed rows, x_stride floats apart. A result does not depend on n_rows, n_x or their
 * split.
 */
#define KERN_DECL_matmul_f32(name)                                                                \
	void(name)(const void *w, size_t n_rows, size_t n_cols, const float *xp, size_t x_stride, \
		   size_t n_x, float *y, size_t y_stride)
#define KERN_DECL_matmul_bf16(name) KERN_DECL_matmul_f32(name)
/* packed: n_rows x n_cols/2 bytes; scale: n_rows x n_cols/32 bytes; n_cols a multiple of 32. */
#define KERN_DECL_matmul_mxfp4(name)                                                          \
	void(name)(const uint8_t *packed, const uint8_t *scale, size_t n_rows, size_t n_cols, \
		   const float *xp, size_t x_stride, size_t n_x, float *y, size_t y_stride)

/* matmul_bf16_turned, matmul_mxfp4_turned: the same with x turned, of which kern_turned_rows(n_x)
 * rows are read. */

/* f32 dot of unpacked vectors (rule 2). */
#define KERN_DECL_dot(name) float(name)(const float *a, const float *b, size_t n)
/* Column sums (rule 5): y[j] = chain over i of fma(w[i][j], a[i], .) from +0, flushed after every
 * 1024 rows. bf16: w row i at w + i * n_cols; f32: rows w_stride floats apart. */
#define KERN_DECL_colsum_bf16(name) \
	void(name)(const void *w, size_t n_rows, size_t n_cols, const float *a, float *y)
#define KERN_DECL_colsum_f32(name)                                                                \
	void(name)(const float *w, size_t w_stride, size_t n_rows, size_t n_cols, const float *a, \
		   float *y)

/* y = x * r * w, r = 1 / sqrt(dot(x, x) / n + eps), as (x * r) * w (rule 8). y may be x. */
#define KERN_DECL_rmsnorm(name) \
	void(name)(const float *x, const float *w, size_t n, float eps, float *y)
/* y = x / sqrt(dot(x, x) + eps), then * scale when scale != 1: x * (1 / sqrt(.)), then * scale. y
 * may be x. */
#define KERN_DECL_l2norm(name) \
	void(name)(const float *x, size_t n, float eps, float scale, float *y)
/* SiTU-GLU (3.6): y = (beta * tanh(g / beta) * sigmoid(g)) * (linear * tanh(u / linear)). y may be
 * g or u. */
#define KERN_DECL_situ(name) \
	void(name)(const float *g, const float *u, size_t n, float beta, float linear, float *y)
/* Elementwise; y may be x. */
#define KERN_DECL_map(name) void(name)(const float *x, size_t n, float *y)
/* y = x * sigmoid(gate); y may be x or gate. */
#define KERN_DECL_gate(name) void(name)(const float *x, const float *gate, size_t n, float *y)
/* y += x. */
#define KERN_DECL_add(name) void(name)(const float *x, size_t n, float *y)
/* y = fma(a, x, y): expert sums. */
#define KERN_DECL_axpy(name) void(name)(float a, const float *x, size_t n, float *y)

/* MIX (3.2): n_sources vectors of n floats, out = sum over i of p_i * v_i (fma from +0 in order),
 * s_i = dot(v_i, c) * (1 / sqrt(dot(v_i, v_i) / n + eps)), p = softmax(s); c = norm * proj. */
enum { KERN_MIX_SOURCES_MAX = 1024 };
#define KERN_DECL_mix(name)                                                                 \
	void(name)(const float *const *sources, size_t n_sources, size_t n, const float *c, \
		   float eps, float *out)

/* Short convolution of one row (3.3 step 2), channels [0, n): taps w[c * n_taps + j]; history holds
 * the last n_taps - 1 inputs per channel, oldest first, history[j * stride + c]; y = silu(product
 * of tap 0, then fma in tap order; the last tap takes x). The history is then shifted and x
 * appended. */
#define KERN_DECL_conv(name)                                                                     \
	void(name)(const float *x, const float *w, size_t n_taps, float *history, size_t stride, \
		   size_t n, float *y)
/* alpha[i] = exp(bound * sigmoid(exp_a * (z[i] + dt_bias[i]))) (3.3 step 4), exp_a =
 * exp(A_log[head]). */
#define KERN_DECL_kda_decay(name)                                                            \
	void(name)(const float *z, const float *dt_bias, float exp_a, float bound, size_t n, \
		   float *alpha)
/* One step of one head (3.3 step 6, rule 7): state[dk][dv] in place; u and scratch hold dv floats.
 */
#define KERN_DECL_kda_step(name)                                                       \
	void(name)(float *state, size_t dk, size_t dv, const float *q, const float *k, \
		   const float *v, const float *alpha, float beta, float *scratch, float *o)
/* Softmax of scores in place for one head (rule 6): s[i] = exp(s[i] - max); returns 1 / dot(s,
 * ones). */
#define KERN_DECL_softmax(name) float(name)(float *s, size_t n)

/* clang-format off */
#define KERN_OPS(X)				\
	X(pack, pack_f32)			\
	X(pack, pack_bf16)			\
	X(pack, pack_mxfp4)			\
	X(matmul_f32, matmul_f32)		\
	X(matmul_bf16, matmul_bf16)		\
	X(matmul_mxfp4, matmul_mxfp4)		\
	X(turn, turn)				\
	X(matmul_bf16, matmul_bf16_turned)	\
	X(matmul_mxfp4, matmul_mxfp4_turned)	\
	X(dot, dot)				\
	X(colsum_bf16, colsum_bf16)		\
	X(colsum_f32, colsum_f32)		\
	X(rmsnorm, rmsnorm)			\
	X(l2norm, l2norm)			\
	X(situ, situ)				\
	X(map, exp)				\
	X(map, sigmoid)				\
	X(map, tanh)				\
	X(map, silu)				\
	X(gate, gate)				\
	X(add, add)				\
	X(axpy, axpy)				\
	X(mix, mix)				\
	X(conv, conv)				\
	X(kda_decay, kda_decay)			\
	X(kda_step, kda_step)			\
	X(softmax, softmax)
/* clang-format on */

#define KERN_FIELD(decl, op) KERN_DECL_##decl(*op);
struct kern_table {
	KERN_OPS(KERN_FIELD)
	enum kern_isa isa; /* highest used */
	/* Rows of x from which the turned products are the faster ones; SIZE_MAX: never. */
	size_t turned_from[KERN_FORMAT_N_];
	const char *names[64]; /* per op in the order of KERN_OPS: "matmul_bf16 avx2" */
};
#undef KERN_FIELD

/* Matrix product by dtype of the weights: KERN_F32, or KERN_BF16 with x as it comes or turned. */
static inline void kern_matmul(const struct kern_table *k, enum kern_format f, bool is_turned,
			       const void *w, size_t n_rows, size_t n_cols, const float *xp,
			       size_t x_stride, size_t n_x, float *y, size_t y_stride)
{
	must(f == KERN_BF16 || !is_turned);
	(f == KERN_F32 ? k->matmul_f32
	 : is_turned   ? k->matmul_bf16_turned
		       : k->matmul_bf16)(w, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
}

static inline void kern_matmul_mxfp4(const struct kern_table *k, bool is_turned,
				     const uint8_t *packed, const uint8_t *scale, size_t n_rows,
				     size_t n_cols, const float *xp, size_t x_stride, size_t n_x,
				     float *y, size_t y_stride)
{
	(is_turned ? k->matmul_mxfp4_turned : k->matmul_mxfp4)(packed, scale, n_rows, n_cols, xp,
							       x_stride, n_x, y, y_stride);
}

/* "ref", "avx2", "avx512", "neon" -> isa, or -1. */
int kern_isa_parse(const char *name);
const char *kern_isa_name(enum kern_isa isa);
bool kern_isa_is_available(enum kern_isa isa); /* built in and this CPU has it */
/* Fill a table with the best variants up to and including isa; KERN_ISA_N_: the best this CPU has.
 * ERR_UNSUPPORTED when that isa is not available here. */
int kern_table_init(struct kern_table *t, enum kern_isa isa, struct err *err);
