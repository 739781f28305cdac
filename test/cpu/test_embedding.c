// Embedding: rows of a table that may be split over tensor ranks, and its gradient, whose order of sums is promised.
#include "op_check.h"

typedef struct Shape {
    int64_t positions, batch, hidden, vocab, first, count;
    bool wpe;
} Shape;

static const Shape SHAPES[] = {
    {1, 1, 1, 1, 0, 1, true},        {5, 3, 7, 10, 0, 10, true},     {5, 3, 33, 10, 4, 3, false},
    {64, 4, 768, 257, 0, 257, true}, {300, 2, 1000, 5, 0, 5, false}, {9, 2, 2500, 30, 10, 20, true},
};

static int32_t *tokens(Op *op, const Shape *s) {
    int64_t rows = s->positions * s->batch;
    int32_t *t = op_hold(op, rows * (int64_t)sizeof *t);
    for (int64_t i = 0; i < rows; i++) t[i] = (int32_t)((op_random(11, i) + 1.0) / 2.0 * (double)s->vocab);
    return t;
}

static void check_forward(int precision, const Shape *s, int64_t document) {
    AutoOp op = op_start(precision, 2);
    int64_t rows = s->positions * s->batch, hidden = s->hidden;
    const int32_t *t = tokens(&op, s), *positions = op_places(&op, s->positions, s->batch, document);
    Operand wte = op_operand(&op, s->count * hidden, 1, 0.0, 1.0);
    Operand wpe = op_operand(&op, s->positions * hidden, 2, 0.0, 1.0), x = op_output(&op, rows * hidden);
    double *want = op_hold(&op, rows * hidden * 8);
    for (int64_t i = 0; i < rows * hidden; i++) {
        int64_t row = i / hidden, column = i % hidden, token = t[row] - s->first;
        int64_t position = positions == NULL ? row / s->batch : positions[row];
        want[i] = token >= 0 && token < s->count ? wte.value[token * hidden + column] : 0.0;
        if (s->wpe) want[i] += wpe.value[position * hidden + column];
    }
    op.backend->embedding_forward(op.backend, x.data, t, positions, wte.data, s->wpe ? wpe.data : NULL, rows, hidden,
                                  s->batch, s->first, s->count);
    op_near("embedding", op_read(&op, &x), want, rows * hidden, op_bound(&op), 1e-3);
}

TEST(forward_adds_token_and_position) {
    EACH_CASE (precision, each, SHAPES)
        for (int64_t document = 0; document < 4; document += 3) check_forward(precision, each, document);
}

// The promise is exact: fp32 sums in row order. So the reference adds floats, and bits are compared. With documents,
// the rows are a part of longer sequences: their positions begin beyond the number of their own.
static void check_backward(int precision, const Shape *s, int threads, int64_t document) {
    AutoOp op = op_start(precision, threads);
    int64_t rows = s->positions * s->batch, hidden = s->hidden;
    const int32_t *t = tokens(&op, s);
    int32_t *positions = op_places(&op, s->positions, s->batch, document);
    int64_t before = positions == NULL ? 0 : s->positions + 1, places = before + s->positions;
    for (int64_t row = 0; before > 0 && row < rows; row++) positions[row] += (int32_t)before;
    Operand dx = op_operand(&op, rows * hidden, 3, 0.0, 1.0);
    Operand dwte = op_gradient(&op, s->count * hidden, 4, 1.0), dwpe = op_gradient(&op, places * hidden, 5, 1.0);
    float *want_wte = memcpy(op_hold(&op, dwte.bytes), dwte.data, (size_t)dwte.bytes);
    float *want_wpe = memcpy(op_hold(&op, dwpe.bytes), dwpe.data, (size_t)dwpe.bytes);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < hidden; i++) {
            float value = (float)dx.value[row * hidden + i];
            int64_t token = t[row] - s->first, position = positions == NULL ? row / s->batch : positions[row];
            if (token >= 0 && token < s->count) want_wte[token * hidden + i] += value;
            if (s->wpe) want_wpe[position * hidden + i] += value;
        }
    op.backend->embedding_backward(op.backend, dwte.data, s->wpe ? dwpe.data : NULL, places, dx.data, t, positions,
                                   rows, hidden, s->batch, s->first, s->count);
    assert_memory_equal(dwte.data, want_wte, (size_t)dwte.bytes);
    assert_memory_equal(dwpe.data, want_wpe, (size_t)dwpe.bytes);
}

TEST(gradient_adds_in_row_order_for_any_threads) {
    EACH_CASE (precision, each, SHAPES)
        for (int threads = 1; threads <= 3; threads++) check_backward(precision, each, threads, 3 * (threads - 1));
}
