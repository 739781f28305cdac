// AdamW and Muon's elementwise passes against float64 over several steps, and the squared norms that clipping is built
// on.
#include "op_check.h"

enum { TENSORS = 7, STEPS = 5 };
// More than one chunk, exactly one, and less than a vector.
static const int64_t COUNTS[TENSORS] = {1, 7, 33, 32768, 100003, 768, 32769};

typedef struct State {
    AdamwTensor tensors[TENSORS];
    Operand weight[TENSORS], master[TENSORS], m[TENSORS], v[TENSORS];
} State;

static AdamwStep step_at(int64_t step) {
    return (AdamwStep){.lr = 1e-3 * (double)step,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .eps = 1e-8,
                       .weight_decay = 0.1,
                       .gradient_scale = step == 3 ? 0.25 : 1.0,
                       .step = step};
}

// Tensors 2 and 5 do not decay; the gradient of tensor 1 is left as it is; where the run is bf16 every tensor has a
// master.
static State state_make(Op *op) {
    State s = {0};
    for (int i = 0; i < TENSORS; i++) {
        bool master = op->backend->precision == PRECISION_BF16;
        s.master[i] = op_gradient(op, COUNTS[i], (uint64_t)i + 1, 0.5);
        s.weight[i] = master ? op_output(op, COUNTS[i]) : s.master[i];
        s.m[i] = op_gradient(op, COUNTS[i], 0, 0.0);
        s.v[i] = op_gradient(op, COUNTS[i], 0, 0.0);
        s.tensors[i] = (AdamwTensor){.weight = s.weight[i].data,
                                     .master = master ? s.master[i].data : NULL,
                                     .m = s.m[i].data,
                                     .v = s.v[i].data,
                                     .gradient = op_hold(op, COUNTS[i] * (int64_t)sizeof(float)),
                                     .count = COUNTS[i],
                                     .decay = i != 2 && i != 5,
                                     .written = i == 1};
    }
    return s;
}

// Returns a gradient; magnitudes differ widely, and some are zero.
static double gradient_at(int tensor, int64_t i, int64_t step) {
    double size = i % 5 == 4 ? 0.0 : pow(10.0, (double)(i % 5) - 4.0);
    return (double)(float)(size * op_random((uint64_t)(100 * step + tensor), i));
}

static void gradients_set(State *s, int64_t step) {
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < COUNTS[t]; i++) s->tensors[t].gradient[i] = (float)gradient_at(t, i, step);
}

static void reference_step(const AdamwStep *a, double *w, double *m, double *v, double g, bool decay) {
    g *= a->gradient_scale;
    *m = a->beta1 * *m + (1 - a->beta1) * g;
    *v = a->beta2 * *v + (1 - a->beta2) * g * g;
    double m_hat = *m / (1 - pow(a->beta1, (double)a->step)), v_hat = *v / (1 - pow(a->beta2, (double)a->step));
    *w -= a->lr * (m_hat / (sqrt(v_hat) + a->eps) + (decay ? a->weight_decay : 0.0) * *w);
}

typedef struct Reference {
    double *w[TENSORS], *m[TENSORS], *v[TENSORS];
} Reference;

static Reference reference_make(Op *op, const State *s) {
    Reference r;
    for (int t = 0; t < TENSORS; t++) {
        r.w[t] = memcpy(op_hold(op, COUNTS[t] * 8), s->master[t].value, (size_t)COUNTS[t] * 8);
        r.m[t] = op_hold(op, COUNTS[t] * 8);
        r.v[t] = op_hold(op, COUNTS[t] * 8);
    }
    return r;
}

static void assert_weights(Op *op, State *s, const Reference *r) {
    for (int t = 0; t < TENSORS; t++) {
        op_near("weight", op_read(op, &s->master[t]), r->w[t], COUNTS[t], 1e-6, 0.5);
        if (op->backend->precision == PRECISION_BF16)
            op_near("bf16", op_read(op, &s->weight[t]), s->master[t].value, COUNTS[t], 0x1.01p-8, 0.0);
    }
}

TEST(several_steps_agree_with_float64) {
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        AutoOp op = op_start(precision, 2);
        State s = state_make(&op);
        Reference r = reference_make(&op, &s);
        for (int64_t step = 1; step <= STEPS; step++) {
            AdamwStep a = step_at(step);
            gradients_set(&s, step);
            op.backend->adamw(op.backend, s.tensors, TENSORS, &a);
            for (int t = 0; t < TENSORS; t++)
                for (int64_t i = 0; i < COUNTS[t]; i++) {
                    double g = gradient_at(t, i, step);
                    reference_step(&a, &r.w[t][i], &r.m[t][i], &r.v[t][i], g, s.tensors[t].decay);
                    assert_true(s.tensors[t].gradient[i] == (t == 1 ? (float)g : 0.0f));
                }
        }
        assert_weights(&op, &s, &r);
    }
}

// Every other tensor is a matrix of Muon's: its momentum, then an update by whatever direction the gradient holds.
TEST(momentum_and_the_update_of_matrices_agree_with_float64) {
    const double beta = 0.95;
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        AutoOp op = op_start(precision, 2);
        State s = state_make(&op);
        Reference r = reference_make(&op, &s); // v: the direction
        for (int t = 0; t < TENSORS; t++) s.tensors[t].v = NULL, s.tensors[t].scale = 0.2 * sqrt((double)COUNTS[t]);
        for (int64_t step = 1; step <= STEPS; step++) {
            AdamwStep a = step_at(step);
            gradients_set(&s, step);
            op.backend->momentum(op.backend, s.tensors, TENSORS, beta, a.gradient_scale);
            for (int t = 0; t < TENSORS; t++) {
                double *left = op_hold(&op, COUNTS[t] * 8), decay = s.tensors[t].decay ? a.weight_decay : 0.0;
                for (int64_t i = 0; i < COUNTS[t]; i++) {
                    double g = a.gradient_scale * gradient_at(t, i, step);
                    r.m[t][i] = beta * r.m[t][i] + (1 - beta) * g;
                    r.v[t][i] = beta * r.m[t][i] + (1 - beta) * g;
                    left[i] = (double)s.tensors[t].gradient[i];
                    r.w[t][i] -= a.lr * (s.tensors[t].scale * left[i] + decay * r.w[t][i]);
                }
                op_near("direction", left, r.v[t], COUNTS[t], 1e-5, 1e-3);
            }
            op.backend->adamw(op.backend, s.tensors, TENSORS, &a);
            for (int t = 0; t < TENSORS; t++)
                for (int64_t i = 0; t != 1 && i < COUNTS[t]; i++) assert_true(s.tensors[t].gradient[i] == 0.0f);
        }
        assert_weights(&op, &s, &r);
    }
}

// A tensor's norm does not depend on the other tensors of the call, so the split of tensors over stages and ranks
// changes no bit of the norm over all tensors.
TEST(squared_norms_agree_with_float64) {
    AutoOp op = op_start(PRECISION_FP32, 2);
    State s = state_make(&op);
    double got[TENSORS], want[TENSORS] = {0}, alone;
    gradients_set(&s, 1);
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < COUNTS[t]; i++) want[t] += gradient_at(t, i, 1) * gradient_at(t, i, 1);
    op.backend->squared_norms(op.backend, got, s.tensors, TENSORS);
    op_near("squared norm", got, want, TENSORS, 1e-13, 0.0);
    for (int t = 0; t < TENSORS; t++) {
        op.backend->squared_norms(op.backend, &alone, &s.tensors[t], 1);
        assert_memory_equal(&alone, &got[t], sizeof alone);
    }
}

// 4,000 tensors of one element and one of 3 million: more chunks than are summed at once.
TEST(many_tensors_are_counted_once_each) {
    enum { SMALL = 4000, LARGE = 3 << 20 };
    AutoOp op = op_start(PRECISION_FP32, 3);
    AdamwTensor *tensors = op_hold(&op, (SMALL + 1) * (int64_t)sizeof *tensors);
    float *gradient = op_hold(&op, LARGE * (int64_t)sizeof *gradient);
    double *norms = op_poison(&op, (SMALL + 1) * (int64_t)sizeof *norms);
    for (int64_t i = 0; i < LARGE; i++) gradient[i] = (float)(i % 4096);
    for (int i = 0; i < SMALL; i++) tensors[i] = (AdamwTensor){.gradient = gradient + i, .count = 1};
    tensors[SMALL] = (AdamwTensor){.gradient = gradient, .count = LARGE};
    op.backend->squared_norms(op.backend, norms, tensors, SMALL + 1);
    for (int i = 0; i < SMALL; i++) assert_true(norms[i] == (double)i * i);
    assert_true(norms[SMALL] == 4095.0 * 4096.0 * 8191.0 / 6.0 * (LARGE / 4096));
}

TEST(what_is_not_finite_shows_in_the_norm) {
    AutoOp op = op_start(PRECISION_FP32, 2);
    State s = state_make(&op);
    double norms[TENSORS];
    gradients_set(&s, 1);
    s.tensors[4].gradient[100002] = NAN;
    s.tensors[3].gradient[5] = -INFINITY;
    s.tensors[5].gradient[5] = 3e38f;
    op.backend->squared_norms(op.backend, norms, s.tensors, TENSORS);
    assert_true(isnan(norms[4]) && isinf(norms[3]) && isfinite(norms[5]) && isfinite(norms[6]));
}

static int64_t run(Op *op, const void *shape, unsigned char *out) {
    (void)shape;
    State s = state_make(op);
    double norms[TENSORS];
    for (int64_t step = 1; step <= 2; step++) {
        AdamwStep a = step_at(step);
        gradients_set(&s, step);
        op->backend->squared_norms(op->backend, norms, s.tensors, TENSORS);
        op->backend->momentum(op->backend, s.tensors, 2, 0.95, 1.0);
        op->backend->adamw(op->backend, s.tensors, TENSORS, &a);
    }
    int64_t at = sizeof norms;
    memcpy(out, norms, sizeof norms);
    for (int t = 0; t < TENSORS; t++) {
        at = op_append(out, at, &s.weight[t]);
        at = op_append(out, at, &s.m[t]);
        at = op_append(out, at, &s.v[t]);
    }
    return at;
}

TEST(bits_do_not_depend_on_threads) { op_same_for_any_threads(run, NULL, 4 << 20); }
