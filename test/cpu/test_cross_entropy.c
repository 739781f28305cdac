// Vocabulary-parallel cross-entropy against the float64 softmax of the whole row.
#include "op_check.h"

// `ranks` ranks share `vocab` columns, each storing `width` of them, padding last.
typedef struct Shape {
    int64_t rows, vocab, ranks, width;
    double spread;
    float z_loss;
} Shape;

static const Shape SHAPES[] = {
    {1, 1, 1, 1, 1.0, 0},          {3, 7, 1, 128, 1.0, 0},
    {5, 33, 3, 16, 3.0, 0},        {4, 768, 2, 384, 10.0, 0},
    {7, 1000, 4, 256, 30.0, 0},    {2, 50257, 1, 50304, 5.0, 0},
    {40, 257, 2, 256, 4.0, 0},     {3, 7, 1, 128, 1.0, 0.5f},
    {5, 33, 3, 16, 3.0, 1e-2f},    {2, 50257, 1, 50304, 5.0, 1e-4f},
    {4, 768, 2, 384, 10.0, 1e-4f},
};
enum { MAX_RANKS = 4 };

static int64_t rank_first(const Shape *s, int64_t rank) {
    return rank * s->width < s->vocab ? rank * s->width : s->vocab;
}

static int64_t rank_count(const Shape *s, int64_t rank) { return rank_first(s, rank + 1) - rank_first(s, rank); }

typedef struct Sharded {
    Operand logits[MAX_RANKS];
    int32_t *targets;
    float *gathered, *loss;
} Sharded;

static Sharded sharded(Op *op, const Shape *s) {
    Sharded c = {.targets = op_hold(op, s->rows * 4)};
    c.gathered = op_poison(op, s->ranks * s->rows * 3 * (int64_t)sizeof(float));
    c.loss = op_poison(op, s->rows * (int64_t)sizeof(float));
    for (int64_t i = 0; i < s->rows; i++) c.targets[i] = (int32_t)((op_random(5, i) + 1.0) / 2.0 * (double)s->vocab);
    for (int64_t rank = 0; rank < s->ranks; rank++) {
        c.logits[rank] = op_operand(op, s->rows * s->width, (uint64_t)rank + 20, 0.5, s->spread);
    }
    return c;
}

static void stats_pass(Op *op, const Shape *s, Sharded *c) {
    for (int64_t rank = 0; rank < s->ranks; rank++)
        op->backend->cross_entropy_stats(op->backend, c->gathered + rank * s->rows * 3, c->logits[rank].data,
                                         c->targets, s->rows, s->width, rank_first(s, rank), rank_count(s, rank));
}

static void gradient_pass(Op *op, const Shape *s, Sharded *c, int64_t rank, float scale) {
    op->backend->cross_entropy_gradient(op->backend, c->logits[rank].data, c->loss, c->gathered, (int)s->ranks,
                                        c->targets, s->rows, s->width, rank_first(s, rank), rank_count(s, rank), scale,
                                        s->z_loss);
}

// -log p of the row's target, over all ranks, and z_loss * log(Z)^2.
typedef struct Row {
    const Shape *shape;
    const Sharded *sharded;
    int64_t row;
} Row;

static double logit_at(const Row *r, int64_t token) {
    int64_t rank = token / r->shape->width;
    return r->sharded->logits[rank].value[r->row * r->shape->width + token % r->shape->width];
}

static double row_log_sum(const Row *r) {
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < r->shape->vocab; i++) max = fmax(max, logit_at(r, i));
    for (int64_t i = 0; i < r->shape->vocab; i++) sum += exp(logit_at(r, i) - max);
    return log(sum) + max;
}

static double row_loss(void *context) {
    const Row *r = context;
    double log_z = row_log_sum(r);
    return log_z - logit_at(r, r->sharded->targets[r->row]) + (double)r->shape->z_loss * log_z * log_z;
}

static void check(int precision, const Shape *s) {
    AutoOp op = op_start(precision, 2);
    Sharded c = sharded(&op, s);
    float scale = 0.125f;
    stats_pass(&op, s, &c);
    for (int64_t rank = 0; rank < s->ranks; rank++) {
        gradient_pass(&op, s, &c, rank, scale);
        double *want = op_hold(&op, s->rows * s->width * 8), *got = op_result(&op, &c.logits[rank]);
        for (int64_t row = 0; row < s->rows; row++) {
            Row r = {s, &c, row};
            double log_sum = row_log_sum(&r), loss = row_loss(&r), measured = (double)c.loss[row];
            op_near("loss", &measured, &loss, 1, 2e-6, 1.0);
            for (int64_t i = 0; i < s->width; i++) {
                int64_t token = rank_first(s, rank) + i;
                if (i >= rank_count(s, rank)) assert_true(got[row * s->width + i] == 0.0);
                else
                    want[row * s->width + i] =
                        (double)scale * (exp(logit_at(&r, token) - log_sum) * (1 + 2 * (double)s->z_loss * log_sum) -
                                         (token == c.targets[row]));
            }
        }
        // The target's entry is a difference that may cancel, so the tolerance has a floor in proportion to scale.
        op_near("dlogits", got, want, s->rows * s->width, precision == PRECISION_BF16 ? 0x1p-8 : 1e-5, 1e-3 * scale);
    }
}

TEST(a_row_without_a_target_has_no_loss_and_no_gradient) {
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        const Shape *s = &SHAPES[2];
        AutoOp op = op_start(precision, 2);
        Sharded c = sharded(&op, s);
        int64_t row = s->rows / 2;
        c.targets[row] = -1;
        stats_pass(&op, s, &c);
        for (int64_t rank = 0; rank < s->ranks; rank++) {
            gradient_pass(&op, s, &c, rank, 0.125f);
            const double *got = op_result(&op, &c.logits[rank]);
            for (int64_t i = 0; i < s->width; i++) assert_true(got[row * s->width + i] == 0.0);
        }
        assert_true(c.loss[row] == 0.0f);
        for (int64_t i = 0; i < s->rows; i++) assert_true(i == row || c.loss[i] > 0.0f);
    }
}

TEST(loss_and_gradient_agree_with_float64) {
    EACH_CASE (precision, each, SHAPES) check(precision, each);
}

// Evaluations use a scale of zero.
TEST(scale_zero_leaves_the_logits_alone_and_z_loss_out) {
    const Shape plain = {5, 33, 1, 48, 3.0, 0}, s = {5, 33, 1, 48, 3.0, 0.1f};
    AutoOp op = op_start(PRECISION_FP32, 2);
    Sharded c = sharded(&op, &s);
    unsigned char before[5 * 48 * sizeof(float)];
    memcpy(before, c.logits[0].data, sizeof before);
    stats_pass(&op, &s, &c);
    gradient_pass(&op, &s, &c, 0, 0.0f);
    assert_memory_equal(before, c.logits[0].data, sizeof before);
    for (int64_t row = 0; row < s.rows; row++) {
        Row r = {&plain, &c, row};
        double want = row_loss(&r), got = (double)c.loss[row];
        op_near("loss", &got, &want, 1, 2e-6, 1.0);
    }
}

// Padding may hold anything: it takes no probability and gets no gradient.
TEST(padding_is_never_read) {
    const Shape s = {2, 20, 1, 32, 1.0, 0};
    AutoOp op = op_start(PRECISION_FP32, 1);
    Sharded c = sharded(&op, &s);
    float *logits = c.logits[0].data;
    for (int64_t row = 0; row < s.rows; row++)
        for (int64_t i = s.vocab; i < s.width; i++) logits[row * s.width + i] = i % 2 ? NAN : 1e30f;
    stats_pass(&op, &s, &c);
    gradient_pass(&op, &s, &c, 0, 1.0f);
    for (int64_t row = 0; row < s.rows; row++) {
        double sum = 0;
        for (int64_t i = 0; i < s.vocab; i++) sum += (double)logits[row * s.width + i];
        for (int64_t i = s.vocab; i < s.width; i++) assert_true(logits[row * s.width + i] == 0.0f);
        assert_true(fabs(sum) < 1e-6);
    }
}

// One rank all -inf, or without columns, and single -inf elsewhere: probability zero, no NaN.
TEST(minus_infinity_is_probability_zero) {
    const Shape s = {1, 34, 3, 17, 1.0, 0}; // the third rank has padding only
    AutoOp op = op_start(PRECISION_FP32, 1);
    Sharded c = sharded(&op, &s);
    float *first = c.logits[0].data, *second = c.logits[1].data;
    for (int64_t i = 0; i < s.width; i++) first[i] = -INFINITY;
    for (int64_t i = 0; i < s.width; i++) second[i] = i % 3 ? 0.0f : -INFINITY;
    c.targets[0] = (int32_t)s.width + 1;
    stats_pass(&op, &s, &c);
    for (int64_t rank = 0; rank < s.ranks; rank++) gradient_pass(&op, &s, &c, rank, 1.0f);
    assert_float_equal(c.loss[0], log(11.0), 1e-6);
    for (int64_t i = 0; i < s.width; i++) {
        assert_true(first[i] == 0.0f);
        assert_float_equal(second[i], (i % 3 ? 1.0 / 11.0 : 0.0) - (i == 1), 1e-6);
        assert_true(((float *)c.logits[2].data)[i] == 0.0f);
    }
}

TEST(what_is_not_finite_reaches_the_loss) {
    static const float bad[] = {NAN, INFINITY};
    for (int kind = 0; kind < 2; kind++)
        for (int64_t place = 0; place < 33; place++) {
            const Shape s = {1, 33, 1, 33, 1.0, 0};
            AutoOp op = op_start(PRECISION_FP32, 1);
            Sharded c = sharded(&op, &s);
            ((float *)c.logits[0].data)[place] = bad[kind];
            stats_pass(&op, &s, &c);
            gradient_pass(&op, &s, &c, 0, 0.0f);
            assert_false(isfinite(c.loss[0]));
        }
}

static int64_t run(Op *op, const void *shape, unsigned char *out) {
    const Shape *s = shape;
    Sharded c = sharded(op, s);
    stats_pass(op, s, &c);
    int64_t at = 0;
    for (int64_t rank = 0; rank < s->ranks; rank++) {
        gradient_pass(op, s, &c, rank, 0.1f);
        at = op_append(out, at, &c.logits[rank]);
    }
    memcpy(out + at, c.loss, (size_t)s->rows * sizeof(float));
    return at + s->rows * (int64_t)sizeof(float);
}

TEST(bits_do_not_depend_on_threads) {
    EACH_ROW (each, SHAPES) op_same_for_any_threads(run, each, 1 << 20);
}
