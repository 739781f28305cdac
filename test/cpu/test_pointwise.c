// Sums, SwiGLU and rotary positions against float64 formulas; gradients against central differences.
#include "op_check.h"

static const int64_t COUNTS[] = {1, 7, 33, 768, 1000, 1024, 5000};

// place: 0: separate output; 1: in x; 2: in y. Combining in place is promised.
static void check_combine(int precision, int64_t count, int place, double a, double b) {
    AutoOp op = op_start(precision, 2);
    Operand x = op_operand(&op, count, 1, 0.0, 1.0), y = op_operand(&op, count, 2, 0.0, 1.0);
    Operand out = place == 0 ? op_output(&op, count) : place == 1 ? x : y;
    double *want = op_hold(&op, count * 8);
    for (int64_t i = 0; i < count; i++) want[i] = a * x.value[i] + b * y.value[i];
    op.backend->combine(op.backend, out.data, a, x.data, b, y.data, count);
    op_near("combine", op_read(&op, &out), want, count, op_bound(&op), 0.1 * fabs(a));
}

TEST(combine_agrees_and_works_in_place) {
    EACH_CASE (precision, each, COUNTS)
        for (int place = 0; place < 3; place++) {
            check_combine(precision, *each, place, 1, 1);
            check_combine(precision, *each, place, 3.4445, -4.775);
        }
}

TEST(accumulate_adds_floats_in_both_precisions) {
    EACH_CASE (precision, each, COUNTS) {
        AutoOp op = op_start(precision, 3);
        Operand to = op_gradient(&op, *each, 1, 1.0), from = op_gradient(&op, *each, 2, 1.0);
        op.backend->accumulate(op.backend, to.data, from.data, *each);
        for (int64_t k = 0; k < *each; k++)
            assert_true(((float *)to.data)[k] == (float)to.value[k] + (float)from.value[k]);
    }
}

// --- SwiGLU

typedef struct Gated {
    double gate, up, dout;
} Gated;

static double swiglu(double gate, double up) { return gate / (1.0 + exp(-gate)) * up; }

static double gated_loss(void *context) {
    const Gated *g = context;
    return g->dout * swiglu(g->gate, g->up);
}

typedef struct Scaled {
    const double *in, *dout;
    double scale;
    int64_t ffn;
} Scaled;

static double scaled_loss(void *context) {
    const Scaled *s = context;
    double sum = 0;
    for (int64_t i = 0; i < s->ffn; i++) sum += s->dout[i] * s->scale * swiglu(s->in[i], s->in[s->ffn + i]);
    return sum;
}

// scaled: rows have a factor each, whose gradient is computed too.
static void check_swiglu(int precision, int64_t rows, int64_t ffn, bool scaled) {
    AutoOp op = op_start(precision, 2);
    Backend *b = op.backend;
    Operand in = op_operand(&op, rows * 2 * ffn, 1, 0.0, scaled ? 4.0 : 12.0), out = op_output(&op, rows * ffn);
    Operand dout = op_operand(&op, rows * ffn, 2, 0.0, 1.0), din = op_output(&op, rows * 2 * ffn);
    Operand scale = op_gradient(&op, rows, 3, 1.0), dscale = op_blank(&op, rows, sizeof(float));
    double *want = op_hold(&op, rows * ffn * 8), *slope = op_hold(&op, rows * 2 * ffn * 8);
    double *wanted = op_hold(&op, rows * 8);
    void *by = scaled ? scale.data : NULL;
    b->swiglu_forward(b, factor_plain(out.data), in.data, by, rows, ffn);
    b->swiglu_backward(b, factor_plain(din.data), scaled ? dscale.data : NULL, dout.data, in.data, by, rows, ffn);
    for (int64_t row = 0; row < rows; row++) {
        double factor = scaled ? scale.value[row] : 1.0;
        Scaled s = {in.value + row * 2 * ffn, dout.value + row * ffn, factor, ffn};
        wanted[row] = op_slope(scaled_loss, &s, &s.scale);
        for (int64_t i = 0; i < ffn; i++) {
            int64_t at = row * 2 * ffn + i;
            Gated g = {in.value[at], in.value[at + ffn], dout.value[row * ffn + i] * factor};
            want[row * ffn + i] = factor * swiglu(g.gate, g.up);
            slope[at] = op_slope(gated_loss, &g, &g.gate);
            slope[at + ffn] = op_slope(gated_loss, &g, &g.up);
        }
    }
    op_near("swiglu", op_read(&op, &out), want, rows * ffn, op_bound(&op), 1e-2);
    op_near("its backward", op_read(&op, &din), slope, rows * 2 * ffn, op_bound(&op), 0.1);
    if (scaled) op_near("gradient of the scale", op_read(&op, &dscale), wanted, rows, 1e-5, sqrt((double)ffn));
}

TEST(swiglu_and_the_gradient_of_its_scale_agree_with_float64) {
    EACH_CASE (precision, each, COUNTS)
        for (int rows = 1; rows <= 5; rows += 4) {
            check_swiglu(precision, rows, *each, false);
            check_swiglu(precision, rows, *each, true);
        }
}

// For large positive or negative gates, exp is 0 or infinite, and silu is the gate itself or 0.
TEST(swiglu_is_finite_far_out) {
    enum { N = 24 };
    AutoOp op = op_start(PRECISION_FP32, 1);
    float *in = op_hold(&op, 8 * N), *out = op_hold(&op, 4 * N);
    float *din = op_hold(&op, 8 * N), *dout = op_hold(&op, 4 * N);
    for (int i = 0; i < N; i++) in[i] = (i % 2 ? 1.0f : -1.0f) * 50.0f * (float)(i + 1), in[N + i] = dout[i] = 1.0f;
    op.backend->swiglu_forward(op.backend, factor_plain(out), in, NULL, 1, N);
    op.backend->swiglu_backward(op.backend, factor_plain(din), NULL, dout, in, NULL, 1, N);
    for (int i = 0; i < N; i++) {
        assert_float_equal(out[i], (i % 2 ? in[i] : 0.0f), 1e-18);
        assert_float_equal(din[i], (i % 2 ? 1.0f : 0.0f), 1e-18);
        assert_float_equal(din[N + i], out[i], 0.0f);
    }
}

// An element has the same bits in a vector and in the remainder after the last vector.
TEST(swiglu_bits_do_not_depend_on_the_place) {
    enum { N = 48 };
    AutoOp op = op_start(PRECISION_FP32, 1);
    float *whole = op_hold(&op, 8 * N), *out = op_hold(&op, 4 * N), *one = op_hold(&op, 8), *alone = op_hold(&op, 4);
    for (int seed = 0; seed < 200; seed++) {
        for (int i = 0; i < 2 * N; i++) whole[i] = (float)(20.0 * op_random((uint64_t)seed, i));
        op.backend->swiglu_forward(op.backend, factor_plain(out), whole, NULL, 1, N);
        for (int i = 0; i < N; i++) {
            one[0] = whole[i], one[1] = whole[N + i];
            op.backend->swiglu_forward(op.backend, factor_plain(alone), one, NULL, 1, 1);
            assert_memory_equal(alone, &out[i], sizeof *alone);
        }
    }
}

// --- columns: cut out of and put into rows of other lengths

static void check_columns(int precision, bool wide, int64_t rows, int64_t cols, int64_t to_cols, int64_t from_cols) {
    AutoOp op = op_start(precision, 2);
    Operand from = wide ? op_gradient(&op, rows * from_cols, 1, 1.0) : op_operand(&op, rows * from_cols, 1, 0.0, 1.0);
    Operand to = op_operand(&op, rows * to_cols, 2, 0.0, 1.0);
    double *want = op_hold(&op, to.count * 8);
    for (int64_t i = 0; i < to.count; i++)
        want[i] = i % to_cols < cols ? from.value[i / to_cols * from_cols + i % to_cols] : to.value[i];
    op.backend->copy_columns(op.backend, to.data, to_cols, from.data, from_cols, wide, rows, cols);
    op_near("columns", op_read(&op, &to), want, to.count, wide ? op_bound(&op) : 0.0, 1.0);
}

TEST(columns_are_copied_and_rounded_and_others_kept) {
    static const int64_t sizes[][4] = {{1, 1, 1, 1}, {7, 33, 40, 51}, {5, 1024, 1024, 3072}, {9, 256, 768, 256}};
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)
        for (int i = 0; i < 4; i++)
            for (int wide = 0; wide < 2; wide++)
                check_columns(precision, wide, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
}

// --- rotary positions

static int64_t row_width(const AttentionShape *s) { return (s->heads + 2 * s->kv_heads) * s->head_dim; }

static RopeTable *rope_table(int64_t width, double scale) {
    RopeTable *table = malloc(sizeof *table + (size_t)width / 2 * sizeof *table->frequency);
    table->scale = scale, table->pairs = width / 2;
    for (int64_t i = 0; i < width / 2; i++) table->frequency[i] = pow(10000.0, -2.0 * (double)i / (double)width);
    return table;
}

// The convention of Hugging Face: element i turns with element i + pairs; values stay as they are.
static void rope_reference(double *qkv, const AttentionShape *s, const RopeTable *table, const int32_t *positions,
                           int direction) {
    int64_t half = table->pairs;
    for (int64_t row = 0; row < s->seq * s->batch; row++)
        for (int64_t head = 0; head < s->heads + s->kv_heads; head++)
            for (int64_t i = 0; i < half; i++) {
                double *x = qkv + row * row_width(s) + head * s->head_dim + i, a = x[0], b = x[half];
                int64_t position = positions == NULL ? s->first + row / s->batch : positions[row];
                double angle = (double)position * table->frequency[i];
                x[0] = table->scale * (a * cos(angle) - direction * b * sin(angle));
                x[half] = table->scale * (b * cos(angle) + direction * a * sin(angle));
            }
}

static void check_rope(int precision, const AttentionShape *s, int64_t width, int direction, double scale,
                       int64_t document) {
    RopeTable *table = rope_table(width, scale);
    AutoOp op = op_start(precision, 2);
    int64_t count = s->batch * s->seq * row_width(s);
    Operand qkv = op_operand(&op, count, 1, 0.0, 1.0);
    const int32_t *positions = op_places(&op, s->seq, s->batch, document);
    rope_reference(qkv.value, s, table, positions, direction);
    op.backend->rope(op.backend, qkv.data, s, table, positions, direction);
    op_near("rope", op_result(&op, &qkv), qkv.value, count, precision == PRECISION_BF16 ? 0x1p-8 : 3e-7, 1.0);
    free(table);
}

static const AttentionShape ROPE_SHAPES[] = {
    {.batch = 1, .seq = 1, .heads = 1, .kv_heads = 1, .head_dim = 2},
    {.batch = 3, .seq = 33, .heads = 4, .kv_heads = 2, .head_dim = 6},
    {.batch = 3, .seq = 33, .heads = 4, .kv_heads = 2, .head_dim = 6, .first = 99}, // a slice
    {.batch = 2, .seq = 700, .heads = 2, .kv_heads = 1, .head_dim = 64},
    {.batch = 1, .seq = 5000, .heads = 1, .kv_heads = 1, .head_dim = 128},
    {.batch = 1, .seq = 200000, .heads = 1, .kv_heads = 1, .head_dim = 2}, // an angle of many turns
    {.batch = 2, .seq = 9, .heads = 3, .kv_heads = 3, .head_dim = 256},
};

TEST(rope_agrees_with_float64) {
    EACH_CASE (precision, each, ROPE_SHAPES)
        for (int direction = -1; direction <= 1; direction += 2) {
            int64_t width = each->head_dim, half = width % 4 == 0 ? width / 2 : 2;
            check_rope(precision, each, width, direction, 1.0, 0);
            check_rope(precision, each, width, direction, 1.25, 50);
            check_rope(precision, each, half, direction, 1.25, 50); // the rest of a head stays
        }
}

// --- threads

typedef struct Size {
    int64_t rows, ffn;
} Size;

static int64_t run(Op *op, const void *shape, unsigned char *out) {
    const Size *s = shape;
    AttentionShape rope = {.batch = 2, .seq = s->rows, .heads = 4, .kv_heads = 2, .head_dim = 16};
    RopeTable *table = rope_table(rope.head_dim, 1.0);
    Operand in = op_operand(op, s->rows * 2 * s->ffn, 1, 0.0, 8.0), y = op_output(op, s->rows * s->ffn);
    Operand dout = op_operand(op, s->rows * s->ffn, 2, 0.0, 1.0), din = op_output(op, s->rows * 2 * s->ffn);
    Operand qkv = op_operand(op, 2 * s->rows * row_width(&rope), 3, 0.0, 1.0);
    op->backend->swiglu_forward(op->backend, factor_plain(y.data), in.data, NULL, s->rows, s->ffn);
    op->backend->swiglu_backward(op->backend, factor_plain(din.data), NULL, dout.data, in.data, NULL, s->rows, s->ffn);
    Operand scale = op_gradient(op, s->rows, 4, 1.0), dscale = op_blank(op, s->rows, sizeof(float));
    Operand scaled = op_output(op, s->rows * 2 * s->ffn);
    op->backend->swiglu_backward(op->backend, factor_plain(scaled.data), dscale.data, dout.data, in.data, scale.data,
                                 s->rows, s->ffn);
    op->backend->combine(op->backend, dout.data, 2.0, dout.data, -0.3, y.data, s->rows * s->ffn);
    op->backend->rope(op->backend, qkv.data, &rope, table, NULL, 1);
    free(table);
    return op_outputs(out, &y, &din, &dout, &dscale, &scaled, &qkv);
}

TEST(bits_do_not_depend_on_threads) {
    static const Size sizes[] = {{1, 7}, {3, 1000}, {129, 1025}};
    EACH_ROW (each, sizes) op_same_for_any_threads(run, each, 8 << 20);
}
