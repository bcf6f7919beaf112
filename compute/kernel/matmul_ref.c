/*
 * Reference of the matrix products, their packing, and the dot and column sums: the order of
 * order.h written down plainly. Never optimised; every other variant is compared with it.
 */
#include <math.h>

#include "compute/kernel/order.h"
#include "compute/kernel/variants.h"
#include "shared/must.h"

/* E2M1: the code's low three bits are the magnitude, the high bit the sign. */
static const float mx_value[16] = { 0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
				    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };

size_t kern_packed_len(enum kern_format format, size_t n_cols)
{
	size_t line = kern_line(format);

	return (n_cols + line - 1) / line * line;
}

/* Element j of a line sits in lane j / per as number j % per; x of one number lies together. */
static void pack(enum kern_format format, const float *x, size_t n_cols, float *xp)
{
	size_t line = kern_line(format), per = line / KERN_LANES;
	size_t len = kern_packed_len(format, n_cols);

	for (size_t i = 0; i < len; i++) {
		size_t j = i % line;

		xp[i - j + j % per * KERN_LANES + j / per] = i < n_cols ? x[i] : 0.0f;
	}
}

void kern_pack_f32_ref(const float *x, size_t n_cols, float *xp)
{
	pack(KERN_F32, x, n_cols, xp);
}

void kern_pack_bf16_ref(const float *x, size_t n_cols, float *xp)
{
	pack(KERN_BF16, x, n_cols, xp);
}

void kern_pack_mxfp4_ref(const float *x, size_t n_cols, float *xp)
{
	pack(KERN_MXFP4, x, n_cols, xp);
}

void kern_turn_ref(float *xp, size_t x_stride, size_t len, size_t n_x)
{
	for (size_t m = 0; m < n_x; m += KERN_TURN) {
		for (size_t i = 0; i < len; i += KERN_LANES) {
			float *x = xp + m * x_stride + i;
			float before[KERN_TURN][KERN_LANES] = { 0 };

			for (size_t r = 0; r < KERN_TURN && m + r < n_x; r++)
				memcpy(before[r], x + r * x_stride, sizeof(before[r]));
			for (size_t r = 0; r < KERN_TURN; r++)
				for (size_t l = 0; l < KERN_LANES; l++)
					x[l * x_stride + r] = before[r][l];
		}
	}
}

/* A row of packed x. */
struct x_row {
	const float *x;
	size_t stride; /* from one number of a vector to the next */
};

static struct x_row x_row(const float *xp, size_t x_stride, size_t m, bool is_turned)
{
	size_t r = m % KERN_TURN;

	if (!is_turned)
		return (struct x_row){ xp + m * x_stride, 1 };
	return (struct x_row){ xp + (m - r) * x_stride + r, x_stride };
}

static float x_float(const struct x_row *x, size_t i)
{
	return x->x[i / KERN_LANES * KERN_LANES + i % KERN_LANES * x->stride];
}

static float load_f32(const void *w, size_t i)
{
	float f;

	memcpy(&f, (const char *)w + i * sizeof(f), sizeof(f));
	return f;
}

static float load_bf16(const void *w, size_t i)
{
	uint16_t u;

	memcpy(&u, (const char *)w + i * sizeof(u), sizeof(u));
	return kern_float_of_bits((uint32_t)u << 16);
}

/* T += a, a = +0. */
static void flush(float total[KERN_LANES], float a[KERN_LANES])
{
	for (size_t l = 0; l < KERN_LANES; l++) {
		total[l] = total[l] + a[l];
		a[l] = 0.0f;
	}
}

void kern_matmul_f32_ref(const void *w, size_t n_rows, size_t n_cols, const float *xp,
			 size_t x_stride, size_t n_x, float *y, size_t y_stride)
{
	size_t len = kern_packed_len(KERN_F32, n_cols);

	for (size_t m = 0; m < n_x; m++) {
		const float *x = xp + m * x_stride;

		for (size_t r = 0; r < n_rows; r++) {
			float total[KERN_LANES] = { 0 }, a[KERN_LANES] = { 0 };

			for (size_t i = 0; i < len; i++) {
				float v = i < n_cols ? load_f32(w, r * n_cols + i) : 0.0f;

				a[i % KERN_LANES] = fmaf(v, x[i], a[i % KERN_LANES]);
				if ((i + 1) % KERN_FLUSH == 0)
					flush(total, a);
			}
			flush(total, a);
			y[m * y_stride + r] = kern_tree(total);
		}
	}
}

static float dot_bf16(const void *w, size_t n_cols, const struct x_row *x)
{
	float total[KERN_LANES] = { 0 }, a[KERN_LANES] = { 0 };
	size_t len = kern_packed_len(KERN_BF16, n_cols);

	for (size_t i = 0; i < len; i++) {
		size_t j = i % KERN_LINE_BF16, lane = j / 2;
		float v = i < n_cols ? load_bf16(w, i) : 0.0f;

		a[lane] = fmaf(v, x_float(x, i - j + j % 2 * KERN_LANES + lane), a[lane]);
		if ((i + 1) % KERN_FLUSH == 0)
			flush(total, a);
	}
	flush(total, a);
	return kern_tree(total);
}

static void matmul_bf16(bool is_turned, const void *w, size_t n_rows, size_t n_cols,
			const float *xp, size_t x_stride, size_t n_x, float *y, size_t y_stride)
{
	for (size_t m = 0; m < n_x; m++) {
		struct x_row x = x_row(xp, x_stride, m, is_turned);

		for (size_t r = 0; r < n_rows; r++)
			y[m * y_stride + r] =
				dot_bf16((const char *)w + r * n_cols * 2, n_cols, &x);
	}
}

void kern_matmul_bf16_ref(const void *w, size_t n_rows, size_t n_cols, const float *xp,
			  size_t x_stride, size_t n_x, float *y, size_t y_stride)
{
	matmul_bf16(false, w, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
}

void kern_matmul_bf16_turned_ref(const void *w, size_t n_rows, size_t n_cols, const float *xp,
				 size_t x_stride, size_t n_x, float *y, size_t y_stride)
{
	matmul_bf16(true, w, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
}

/* The 8 elements from element i on, which are one lane of one line; absent ones are code 0. */
static float mx_lane(const uint8_t *packed, size_t i, size_t n_cols, const struct x_row *x)
{
	size_t at = i / KERN_LINE_MXFP4 * KERN_LINE_MXFP4 + i % KERN_LINE_MXFP4 / 8;
	float t = 0.0f;

	for (size_t k = 0; k < 8; k++) {
		float xk = x_float(x, at + k * KERN_LANES);
		uint8_t code = 0;

		if (i < n_cols)
			code = packed[(i + k) / 2] >> (k % 2 * 4) & 15; /* low nibble first */
		t = k == 0 ? mx_value[code] * xk : fmaf(mx_value[code], xk, t);
	}
	return t;
}

static float dot_mxfp4(const uint8_t *packed, const uint8_t *scale, size_t n_cols,
		       const struct x_row *x)
{
	float a[KERN_LANES] = { 0 };

	for (size_t b = 0; b < n_cols; b += KERN_LINE_MXFP4) {
		for (size_t l = 0; l < KERN_LANES; l++) {
			size_t i = b + 8 * l;
			uint8_t e = i < n_cols ? scale[i / KERN_MX_GROUP] : 0;

			a[l] = fmaf(mx_lane(packed, i, n_cols, x), kern_mx_scale(e), a[l]);
		}
	}
	return kern_tree(a);
}

static void matmul_mxfp4(bool is_turned, const uint8_t *packed, const uint8_t *scale, size_t n_rows,
			 size_t n_cols, const float *xp, size_t x_stride, size_t n_x, float *y,
			 size_t y_stride)
{
	must(n_cols % KERN_MX_GROUP == 0);
	for (size_t m = 0; m < n_x; m++) {
		struct x_row x = x_row(xp, x_stride, m, is_turned);

		for (size_t r = 0; r < n_rows; r++)
			y[m * y_stride + r] =
				dot_mxfp4(packed + r * (n_cols / 2),
					  scale + r * (n_cols / KERN_MX_GROUP), n_cols, &x);
	}
}

void kern_matmul_mxfp4_ref(const uint8_t *packed, const uint8_t *scale, size_t n_rows,
			   size_t n_cols, const float *xp, size_t x_stride, size_t n_x, float *y,
			   size_t y_stride)
{
	matmul_mxfp4(false, packed, scale, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
}

void kern_matmul_mxfp4_turned_ref(const uint8_t *packed, const uint8_t *scale, size_t n_rows,
				  size_t n_cols, const float *xp, size_t x_stride, size_t n_x,
				  float *y, size_t y_stride)
{
	matmul_mxfp4(true, packed, scale, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
}

float kern_dot_ref(const float *a, const float *b, size_t n)
{
	float total[KERN_LANES] = { 0 }, acc[KERN_LANES] = { 0 };
	size_t len = kern_packed_len(KERN_F32, n);

	for (size_t i = 0; i < len; i++) {
		size_t l = i % KERN_LANES;

		acc[l] = i < n ? fmaf(a[i], b[i], acc[l]) : fmaf(0.0f, 0.0f, acc[l]);
		if ((i + 1) % KERN_FLUSH == 0)
			flush(total, acc);
	}
	flush(total, acc);
	return kern_tree(total);
}

void kern_colsum_bf16_ref(const void *w, size_t n_rows, size_t n_cols, const float *a, float *y)
{
	for (size_t j = 0; j < n_cols; j++) {
		float total = 0.0f, acc = 0.0f;

		for (size_t i = 0; i < n_rows; i++) {
			acc = fmaf(load_bf16(w, i * n_cols + j), a[i], acc);
			if ((i + 1) % KERN_FLUSH == 0) {
				total = total + acc;
				acc = 0.0f;
			}
		}
		y[j] = total + acc;
	}
}

void kern_colsum_f32_ref(const float *w, size_t w_stride, size_t n_rows, size_t n_cols,
			 const float *a, float *y)
{
	for (size_t j = 0; j < n_cols; j++) {
		float total = 0.0f, acc = 0.0f;

		for (size_t i = 0; i < n_rows; i++) {
			acc = fmaf(w[i * w_stride + j], a[i], acc);
			if ((i + 1) % KERN_FLUSH == 0) {
				total = total + acc;
				acc = 0.0f;
			}
		}
		y[j] = total + acc;
	}
}
