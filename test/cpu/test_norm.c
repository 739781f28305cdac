// RMSNorm and LayerNorm against a float64 reference; gradients against its central differences.
#include "op_check.h"

typedef struct Shape {
    int64_t rows, cols;
    bool layernorm, delta;
    double center; // mean of x; a large one tests that the variance does not cancel
} Shape;

static const double EPS = 1e-5;

// out of one row, in double.
static void reference_row(const Shape *s, double *out, const double *x, const double *w, const double *b) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < s->cols; i++) mean += x[i] / (double)s->cols;
    if (!s->layernorm) mean = 0;
    for (int64_t i = 0; i < s->cols; i++) variance += (x[i] - mean) * (x[i] - mean) / (double)s->cols;
    for (int64_t i = 0; i < s->cols; i++)
        out[i] = (x[i] - mean) / sqrt(variance + EPS) * w[i] + (s->layernorm ? b[i] : 0.0);
}

typedef struct Forward {
    Operand x, delta, w, b, out, sum;
} Forward;

static Forward forward(Op *op, const Shape *s) {
    int64_t count = s->rows * s->cols;
    Forward f = {.x = op_operand(op, count, 1, s->center, 1.0),
                 .delta = op_operand(op, count, 2, 0.0, 1.0),
                 .w = op_operand(op, s->cols, 3, 1.0, 0.5),
                 .b = op_operand(op, s->cols, 4, 0.0, 1.0),
                 .out = op_output(op, count),
                 .sum = op_output(op, count)};
    Backend *backend = op->backend;
    void *delta = s->delta ? f.delta.data : NULL, *sum = s->delta ? f.sum.data : NULL;
    backend->norm_forward(backend, factor_plain(f.out.data), sum, f.x.data, delta, f.w.data,
                          s->layernorm ? f.b.data : NULL, s->rows, s->cols, EPS);
    return f;
}

// The norm reads the stored sum, which is rounded in bf16.
static void check_forward(int precision, const Shape *s) {
    AutoOp op = op_start(precision, 2);
    Forward f = forward(&op, s);
    int64_t count = s->rows * s->cols;
    double bound = op_bound(&op);
    double *in = f.x.value, *want = op_hold(&op, count * 8);
    if (s->delta) {
        for (int64_t i = 0; i < count; i++) want[i] = f.x.value[i] + f.delta.value[i];
        op_near("sum", op_read(&op, &f.sum), want, count, precision == PRECISION_BF16 ? 0x1p-8 : 0x1p-23, 1e-3);
        in = f.sum.value;
    }
    for (int64_t row = 0; row < s->rows; row++)
        reference_row(s, want + row * s->cols, in + row * s->cols, f.w.value, f.b.value);
    double cancelled = 1.0 + fabs(s->center); // x - mean loses the leading digits of x
    op_near(s->layernorm ? "layernorm" : "rmsnorm", op_read(&op, &f.out), want, count, bound, cancelled);
}

typedef struct Backward {
    Operand dx, dw, db, dout, x, w;
} Backward;

static Backward backward(Op *op, const Shape *s) {
    int64_t count = s->rows * s->cols;
    Backward g = {.dx = op_operand(op, count, 5, 0.0, 1.0),
                  .dw = op_gradient(op, s->cols, 6, 1.0),
                  .db = op_gradient(op, s->cols, 7, 1.0),
                  .dout = op_operand(op, count, 8, 0.0, 1.0),
                  .x = op_operand(op, count, 9, s->center, 1.0),
                  .w = op_operand(op, s->cols, 10, 1.0, 0.5)};
    Backend *backend = op->backend;
    backend->norm_backward(backend, g.dx.data, g.dw.data, s->layernorm ? g.db.data : NULL, g.dout.data, g.x.data,
                           g.w.data, s->rows, s->cols, EPS);
    return g;
}

// sum of dout * out over the rows the changed value touches: one row for x, all for w and b.
typedef struct Loss {
    const Shape *shape;
    double *x, *w, *b, *dout, *out;
    int64_t rows;
} Loss;

static double loss(void *context) {
    Loss *l = context;
    double sum = 0;
    int64_t cols = l->shape->cols;
    for (int64_t row = 0; row < l->rows; row++) {
        reference_row(l->shape, l->out, l->x + row * cols, l->w, l->b);
        for (int64_t i = 0; i < cols; i++) sum += l->dout[row * cols + i] * l->out[i];
    }
    return sum;
}

static void check_backward(int precision, const Shape *s) {
    AutoOp op = op_start(precision, 2);
    Backward g = backward(&op, s);
    double *dx = g.dx.value, *dw = g.dw.value, *db = g.db.value, bound = precision == PRECISION_BF16 ? 0x1p-8 : 2e-5;
    double *b = op_hold(&op, s->cols * 8), *out = op_hold(&op, s->cols * 8);
    for (int64_t row = 0; row < s->rows; row++) {
        int64_t at = row * s->cols;
        Loss l = {s, g.x.value + at, g.w.value, b, g.dout.value + at, out, 1};
        for (int64_t i = 0; i < s->cols; i++) dx[at + i] += op_slope(loss, &l, &l.x[i]);
    }
    Loss l = {s, g.x.value, g.w.value, b, g.dout.value, out, s->rows};
    for (int64_t i = 0; i < s->cols; i++) dw[i] += op_slope(loss, &l, &l.w[i]);
    op_near("dx", op_result(&op, &g.dx), dx, s->rows * s->cols, bound, 1.0);
    op_near("dw", op_result(&op, &g.dw), dw, s->cols, 2e-5, sqrt((double)s->rows));
    for (int64_t i = 0; s->layernorm && i < s->cols; i++) db[i] += op_slope(loss, &l, &l.b[i]);
    op_near("db", op_result(&op, &g.db), db, s->cols, 2e-5, sqrt((double)s->rows));
}

static void every_shape(void (*check)(int, const Shape *), int64_t most) {
    static const int64_t rows[] = {1, 5, 64, 131}, cols[] = {1, 7, 16, 33, 768, 1000};
    EACH_CASE (precision, r, rows)
        EACH_ROW (c, cols)
            for (int kind = 0; kind < 4; kind++) {
                Shape s = {*r, *c, kind & 1, kind & 2, 0.25};
                if (s.rows * s.cols * s.cols <= most) check(precision, &s);
            }
}

TEST(forward_agrees_with_float64) { every_shape(check_forward, 1 << 30); }

TEST(backward_agrees_with_central_differences) { every_shape(check_backward, 3 << 20); }

TEST(a_large_mean_does_not_cancel_the_variance) {
    check_forward(PRECISION_FP32, &(Shape){9, 768, true, false, 1000.0});
}

static int64_t run(Op *op, const void *shape, unsigned char *out) {
    const Shape *s = shape;
    Forward f = forward(op, s);
    Backward g = backward(op, s);
    return op_outputs(out, &f.out, &g.dx, &g.dw, &g.db);
}

TEST(bits_do_not_depend_on_threads) {
    static const Shape shapes[] = {{1, 33, true, true, 0.1}, {256, 768, true, true, 0.1}, {1000, 7, false, true, 0.1}};
    EACH_ROW (each, shapes) op_same_for_any_threads(run, each, 4 << 20);
}

// Rows are seldom summed out of order, so only many rows and repetitions catch sums in the order of arrival.
TEST(weight_gradients_add_in_row_order_every_time) {
    enum { ROWS = 4096, COLS = 32, TIMES = 40 };
    const Shape s = {ROWS, COLS, true, false, 0.1};
    float first[2 * COLS];
    for (int time = 0; time < TIMES; time++) {
        AutoOp op = op_start(PRECISION_FP32, 1 + time % 4);
        Backward g = backward(&op, &s);
        if (time == 0) {
            memcpy(first, g.dw.data, sizeof first / 2);
            memcpy(first + COLS, g.db.data, sizeof first / 2);
        }
        assert_memory_equal(first, g.dw.data, sizeof first / 2);
        assert_memory_equal(first + COLS, g.db.data, sizeof first / 2);
    }
}

// --- norms over the heads of q and k

static const AttentionShape HEADS[] = {
    {.batch = 1, .seq = 1, .heads = 1, .kv_heads = 1, .head_dim = 2},
    {.batch = 3, .seq = 11, .heads = 4, .kv_heads = 2, .head_dim = 6},
    {.batch = 2, .seq = 70, .heads = 3, .kv_heads = 1, .head_dim = 64},
    {.batch = 1, .seq = 9, .heads = 8, .kv_heads = 4, .head_dim = 128},
};

static int64_t heads_width(const AttentionShape *s) { return (s->heads + 2 * s->kv_heads) * s->head_dim; }

typedef struct Heads {
    Operand qkv, kept, w[2], dqkv, dw[2];
} Heads;

static Heads heads_norm(Op *op, const AttentionShape *s) {
    int64_t rows = s->seq * s->batch, count = rows * heads_width(s);
    Backend *backend = op->backend;
    Heads h = {.qkv = op_operand(op, count, 1, 0.1, 1.0),
               .kept = op_output(op, rows * (s->heads + s->kv_heads) * s->head_dim),
               .w = {op_operand(op, s->head_dim, 2, 1.0, 0.5), op_operand(op, s->head_dim, 3, 1.0, 0.5)},
               .dqkv = op_operand(op, count, 4, 0.0, 1.0),
               .dw = {op_gradient(op, s->head_dim, 5, 1.0), op_gradient(op, s->head_dim, 6, 1.0)}};
    backend->heads_norm_forward(backend, h.qkv.data, h.kept.data, h.w[0].data, h.w[1].data, s, EPS);
    backend->heads_norm_backward(backend, h.dqkv.data, (float *)h.dw[0].data, (float *)h.dw[1].data, h.kept.data,
                                 h.w[0].data, h.w[1].data, s, EPS);
    return h;
}

// Values stay as they are; queries and keys are normalized head by head, and their gradients are those of a row.
static void check_heads(int precision, const AttentionShape *s) {
    AutoOp op = op_start(precision, 2);
    int64_t rows = s->seq * s->batch, width = heads_width(s), dim = s->head_dim, count = rows * width;
    Shape row = {1, dim, false, false, 0.0};
    Heads h = heads_norm(&op, s);
    double *x = h.qkv.value, *dx = h.dqkv.value, *out = memcpy(op_hold(&op, count * 8), x, (size_t)count * 8);
    double *dout = op_hold(&op, dim * 8), *row_out = op_hold(&op, dim * 8);
    for (int64_t head = 0; head < rows * (s->heads + s->kv_heads); head++) {
        int64_t of_row = head % (s->heads + s->kv_heads), at = head / (s->heads + s->kv_heads) * width + of_row * dim;
        int key = of_row >= s->heads;
        double *w = h.w[key].value;
        memcpy(dout, dx + at, (size_t)dim * 8);
        reference_row(&row, out + at, x + at, w, NULL);
        Loss l = {&row, x + at, w, NULL, dout, row_out, 1};
        for (int64_t i = 0; i < dim; i++) dx[at + i] = op_slope(loss, &l, &l.x[i]);
        for (int64_t i = 0; i < dim; i++) h.dw[key].value[i] += op_slope(loss, &l, &l.w[i]);
    }
    op_near("heads", op_result(&op, &h.qkv), out, count, op_bound(&op), 1.0);
    op_near("dx", op_result(&op, &h.dqkv), dx, count, precision == PRECISION_BF16 ? 0x1p-8 : 2e-5, 1.0);
    for (int i = 0; i < 2; i++)
        op_near("dw", op_result(&op, &h.dw[i]), h.dw[i].value, dim, 2e-5, sqrt((double)(rows * s->heads)));
}

TEST(heads_are_normalized_one_by_one) {
    EACH_CASE (precision, each, HEADS) check_heads(precision, each);
}

static int64_t run_heads(Op *op, const void *shape, unsigned char *out) {
    Heads h = heads_norm(op, shape);
    return op_outputs(out, &h.qkv, &h.dqkv, &h.dw[0], &h.dw[1]);
}

TEST(bits_of_heads_do_not_depend_on_threads) {
    EACH_ROW (each, HEADS) op_same_for_any_threads(run_heads, each, 4 << 20);
}
