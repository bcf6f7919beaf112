/* Packing, the three matrix products, dot and column sums. */
#include <string.h>

#include "tests/kernel/checker.h"

static size_t line_of(enum kern_format f)
{
	return f == KERN_F32 ? 16 : f == KERN_BF16 ? 32 : 128;
}

static const char *op_of(enum kern_format f, bool is_turned)
{
	static const char *const names[][2] = { { "matmul_f32" },
						{ "matmul_bf16", "matmul_bf16_turned" },
						{ "matmul_mxfp4", "matmul_mxfp4_turned" } };

	return names[f][is_turned];
}

static void pack_row(struct check *c, enum kern_format f, const float *x, size_t n, float *xp)
{
	(f == KERN_F32    ? c->ref->pack_f32
	 : f == KERN_BF16 ? c->ref->pack_bf16
			  : c->ref->pack_mxfp4)(x, n, xp);
}

static void check_pack(struct check *c)
{
	static const char *const names[] = { "pack_f32", "pack_bf16", "pack_mxfp4" };

	for (int f = KERN_F32; f <= KERN_MXFP4; f++) {
		for (size_t n = 0; n <= 3 * line_of((enum kern_format)f) + 1; n++) {
			struct output o;
			const float *x;

			if (!check_begin(c, names[f], VALUES_WIDE))
				continue;
			x = check_floats(c, n);
			o = check_output(c, kern_packed_len((enum kern_format)f, n), NULL);
			pack_row(c, (enum kern_format)f, x, n, o.ref);
			(f == KERN_F32    ? c->candidate->pack_f32
			 : f == KERN_BF16 ? c->candidate->pack_bf16
					  : c->candidate->pack_mxfp4)(x, n, o.candidate);
			check_output_done(c, &o, NULL, "n %zu", n);
			check_release(c);
		}
	}
}

/* In place; what stands between the rows stays. */
static void check_turn(struct check *c)
{
	for (size_t n_x = 0; n_x <= 3 * KERN_TURN + 1; n_x++) {
		size_t len = 16 * check_below(c, 5);
		size_t x_stride = len + 16 * check_below(c, 2);
		size_t n = kern_turned_rows(n_x) * x_stride;
		struct output o;
		const float *x;

		if (!check_begin(c, "turn", VALUES_WIDE))
			continue;
		x = check_floats(c, n);
		o = check_output(c, n, x);
		c->ref->turn(o.ref, x_stride, len, n_x);
		c->candidate->turn(o.candidate, x_stride, len, n_x);
		check_output_done(c, &o, NULL, "%zu rows of %zu floats", n_x, len);
		check_release(c);
	}
}

/* Weights of n_rows x n_cols; the scales of MXFP4 so that the values matter. */
static const void *new_weights(struct check *c, enum kern_format f, size_t n_rows, size_t n_cols,
			       const uint8_t **scale)
{
	uint8_t *s;

	if (f == KERN_F32) {
		/* Any alignment: a byte more at the end. */
		size_t odd = check_below(c, 4) == 0, n = n_rows * n_cols;
		uint8_t *p = check_bytes(c, n * sizeof(float) + odd);

		for (size_t i = 0; i < n; i++) {
			float v = check_value(c);

			memcpy(p + i * sizeof(v), &v, sizeof(v));
		}
		return p;
	}
	if (f == KERN_BF16)
		return check_bf16(c, n_rows * n_cols);
	s = check_bytes(c, n_rows * n_cols / 32);
	for (size_t i = 0; i < n_rows * n_cols / 32; i++) {
		s[i] = c->values == VALUES_UNIFORM ? (uint8_t)(115 + s[i] % 8)
		       : c->values == VALUES_WIDE  ? (uint8_t)(90 + s[i] % 60)
						   : (uint8_t)(s[i] % 8);
	}
	*scale = s;
	return check_bytes(c, n_rows * n_cols / 2);
}

static void call(const struct kern_table *t, enum kern_format f, bool is_turned, const void *w,
		 const uint8_t *scale, size_t n_rows, size_t n_cols, const float *xp,
		 size_t x_stride, size_t n_x, float *y, size_t y_stride)
{
	if (f == KERN_MXFP4)
		kern_matmul_mxfp4(t, is_turned, w, scale, n_rows, n_cols, xp, x_stride, n_x, y,
				  y_stride);
	else
		kern_matmul(t, f, is_turned, w, n_rows, n_cols, xp, x_stride, n_x, y, y_stride);
}

static void check_shape(struct check *c, enum kern_format f, bool is_turned, enum values values,
			size_t n_rows, size_t n_cols, size_t n_x)
{
	size_t rows = is_turned ? kern_turned_rows(n_x) : n_x;
	size_t x_stride = kern_packed_len(f, n_cols) + 16 * check_below(c, 3);
	size_t y_stride = n_rows + check_below(c, 4);
	const uint8_t *scale = NULL;
	const void *w;
	struct output o;
	float *xp;
	bool *written;

	if (!check_begin(c, op_of(f, is_turned), values))
		return;
	w = new_weights(c, f, n_rows, n_cols, &scale);
	xp = check_aligned(c, rows ? (rows - 1) * x_stride + kern_packed_len(f, n_cols) : 0);
	/* Small scales show only against large x. */
	if (f == KERN_MXFP4 && values == VALUES_TINY && check_below(c, 2))
		c->values = VALUES_WIDE;
	for (size_t m = 0; m < n_x; m++)
		pack_row(c, f, check_floats(c, n_cols), n_cols, xp + m * x_stride);
	o = check_output(c, n_x * y_stride, NULL);
	written = check_bytes(c, n_x * y_stride);
	for (size_t i = 0; i < n_x * y_stride; i++)
		written[i] = i % y_stride < n_rows;
	/* With x as it comes: turned, it must make no difference. */
	call(c->ref, f, false, w, scale, n_rows, n_cols, xp, x_stride, n_x, o.ref, y_stride);
	if (is_turned)
		c->ref->turn(xp, x_stride, kern_packed_len(f, n_cols), n_x);
	call(c->candidate, f, is_turned, w, scale, n_rows, n_cols, xp, x_stride, n_x, o.candidate,
	     y_stride);
	check_output_done(c, &o, written, "%zu x %zu, %zu rows of x", n_rows, n_cols, n_x);
	check_release(c);
}

static void check_matmul_format(struct check *c, enum kern_format f, bool is_turned)
{
	static const struct {
		size_t n_rows, n_cols, n_x;
	} shapes[] = {
		/* K3's widths, flush borders, more rows than a panel, more x than a panel */
		{ 13, 7168, 1 }, { 5, 7168, 4 },  { 3, 12288, 3 }, { 2, 33792, 1 }, { 5, 1536, 5 },
		{ 9, 512, 9 },   { 7, 3584, 6 },  { 4, 3072, 16 }, { 3, 6144, 2 },  { 101, 128, 1 },
		{ 100, 64, 66 }, { 1, 576, 70 },  { 13, 1024, 2 }, { 13, 1056, 3 }, { 13, 992, 4 },
		{ 13, 2048, 5 }, { 12, 2080, 1 }, { 24, 1152, 1 }, { 49, 160, 65 }, { 0, 64, 2 },
		{ 5, 0, 1 },     { 5, 0, 2 },     { 5, 64, 0 },    { 97, 96, 2 },
	};
	/* with x turned: whole panels and what is left, whole blocks of rows of x and more than are
	 * taken at once */
	static const size_t n_rows_turned[] = { 1, 15, 16, 17, 47, 48, 49, 95, 96, 113 };
	static const size_t n_x_turned[] = { 1, 7, 8, 15, 16, 17, 48, 127, 128, 129, 150 };
	static const size_t n_cols_turned[] = { 32, 992, 1024, 1056, 2048, 2080, 3584 };
	size_t step = f == KERN_MXFP4 ? 32 : 1;

	/* One draw a statement: the order of those in one call is the compiler's choice. */
	for (int v = 0; v < VALUES_N_; v++) {
		for (size_t n = 0; n <= 3 * line_of(f) + step; n += step) {
			size_t n_rows;

			check_shape(c, f, is_turned, (enum values)v, 1 + check_below(c, 30), n, 1);
			n_rows = 1 + check_below(c, 14);
			check_shape(c, f, is_turned, (enum values)v, n_rows, n,
				    1 + check_below(c, 13));
		}
		for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
			check_shape(c, f, is_turned, (enum values)v, shapes[i].n_rows,
				    shapes[i].n_cols, shapes[i].n_x);
		for (size_t i = 0; i < 6 && f != KERN_MXFP4; i++) {
			size_t n_cols = 1000 + check_below(c, 1200);

			check_shape(c, f, is_turned, (enum values)v, 14, n_cols,
				    1 + check_below(c, 5));
		}
		for (size_t i = 0; i < 24 && is_turned; i++) {
			size_t r = check_below(c, 10), n = check_below(c, 7);

			check_shape(c, f, is_turned, (enum values)v, n_rows_turned[r],
				    n_cols_turned[n], n_x_turned[check_below(c, 11)]);
		}
	}
}

void check_matmul(struct check *c)
{
	check_pack(c);
	check_matmul_format(c, KERN_F32, false);
	check_matmul_format(c, KERN_BF16, false);
	check_matmul_format(c, KERN_MXFP4, false);
	check_turn(c);
	check_matmul_format(c, KERN_BF16, true);
	check_matmul_format(c, KERN_MXFP4, true);
}

static void check_dot(struct check *c, enum values values, size_t n)
{
	const float *a, *b;

	if (!check_begin(c, "dot", values))
		return;
	a = check_floats(c, n);
	b = check_floats(c, n);
	check_result(c, c->ref->dot(a, b, n), c->candidate->dot(a, b, n), "n %zu", n);
	check_release(c);
}

static void check_colsum(struct check *c, enum values values, size_t n_rows, size_t n_cols)
{
	size_t stride = n_cols + check_below(c, 5);
	const float *a, *w;
	const void *u;
	struct output o;

	if (check_begin(c, "colsum_f32", values)) {
		a = check_floats(c, n_rows);
		w = check_floats(c, n_rows ? (n_rows - 1) * stride + n_cols : 0);
		o = check_output(c, n_cols, NULL);
		c->ref->colsum_f32(w, stride, n_rows, n_cols, a, o.ref);
		c->candidate->colsum_f32(w, stride, n_rows, n_cols, a, o.candidate);
		check_output_done(c, &o, NULL, "%zu x %zu", n_rows, n_cols);
		check_release(c);
	}
	if (check_begin(c, "colsum_bf16", values)) {
		a = check_floats(c, n_rows);
		u = check_bf16(c, n_rows * n_cols);
		o = check_output(c, n_cols, NULL);
		c->ref->colsum_bf16(u, n_rows, n_cols, a, o.ref);
		c->candidate->colsum_bf16(u, n_rows, n_cols, a, o.candidate);
		check_output_done(c, &o, NULL, "%zu x %zu", n_rows, n_cols);
		check_release(c);
	}
}

void check_sums(struct check *c)
{
	static const size_t lengths[] = { 1023, 1024, 1025, 2048, 3584, 7168, 33792 };

	for (int v = 0; v < VALUES_N_; v++) {
		for (size_t n = 0; n <= 3 * 64 + 1; n++) {
			check_dot(c, (enum values)v, n);
			check_colsum(c, (enum values)v, check_below(c, 20), n);
		}
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
			check_dot(c, (enum values)v, lengths[i]);
		check_colsum(c, (enum values)v, 128, 512);
		check_colsum(c, (enum values)v, 1023, 70);
		check_colsum(c, (enum values)v, 1024, 33);
		check_colsum(c, (enum values)v, 1025, 83);
		check_colsum(c, (enum values)v, 2500, 65);
	}
}
