// The router, the order of rows by expert and grouped products against float64; gradients against central differences.
#include "op_check.h"

#include <float.h>
#include <stdlib.h>

enum { MOST_EXPERTS = 300, MOST_CHOSEN = 8 };

// --- router: logits

static void check_logits(int precision, int64_t rows, int64_t hidden, int64_t experts) {
    AutoOp op = op_start(precision, 2);
    Operand x = op_operand(&op, rows * hidden, 1, 0, 1), w = op_operand(&op, experts * hidden, 2, 0, 1);
    Operand logits = op_blank(&op, rows * experts, sizeof(float));
    double *want = op_hold(&op, rows * experts * 8);
    op.backend->router_forward(op.backend, logits.data, x.data, w.data, rows, hidden, experts);
    for (int64_t i = 0; i < rows * experts; i++)
        for (int64_t k = 0; k < hidden; k++)
            want[i] += x.value[i / experts * hidden + k] * w.value[i % experts * hidden + k];
    op_near("logits", op_read(&op, &logits), want, rows * experts, 2e-6, sqrt((double)hidden));
    float *one = op_poison(&op, experts * 4);
    for (int64_t r = 0; r < rows; r++) {
        const char *from = (const char *)x.data + r * hidden * op.backend->element;
        op.backend->router_forward(op.backend, one, from, w.data, 1, hidden, experts);
        assert_memory_equal(one, (float *)logits.data + r * experts, (size_t)experts * 4);
    }
}

TEST(logits_are_fp32_in_both_precisions_and_do_not_depend_on_other_rows) {
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        check_logits(precision, 1, 8, 2);
        check_logits(precision, 67, 72, 8);
        check_logits(precision, 130, 520, 40);
    }
}

// --- routing in float64

typedef struct Routed {
    double score[MOST_EXPERTS], weight[MOST_CHOSEN];
    int chosen[MOST_CHOSEN];
} Routed;

static const double *sorted_by; // read by descending

static int descending(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    double difference = sorted_by[y] - sorted_by[x];
    return difference != 0 ? (difference > 0 ? 1 : -1) : x - y;
}

static int ascending(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

// Fills order (count) with indices, the largest key first.
static void sort(int *order, const double *keys, int64_t count) {
    for (int i = 0; i < count; i++) order[i] = i;
    sorted_by = keys;
    qsort(order, (size_t)count, sizeof *order, descending);
}

static void score(Routed *r, const double *logits, const RouteShape *s) {
    double most = -INFINITY, sum = 0;
    for (int64_t e = 0; e < s->experts; e++) most = fmax(most, logits[e]);
    for (int64_t e = 0; e < s->experts; e++) sum += exp(logits[e] - most);
    for (int64_t e = 0; e < s->experts; e++)
        r->score[e] = s->sigmoid ? 1 / (1 + exp(-logits[e])) : exp(logits[e] - most) / sum;
}

static void weigh(Routed *r, const RouteShape *s) {
    double sum = 0;
    for (int64_t j = 0; j < s->chosen; j++) sum += r->score[r->chosen[j]];
    for (int64_t j = 0; j < s->chosen; j++)
        r->weight[j] = s->scale * r->score[r->chosen[j]] / (s->normalize ? sum + (s->sigmoid ? 1e-20 : 0) : 1);
}

static void choose(Routed *r, const double *logits, const double *bias, const RouteShape *s) {
    double keys[MOST_EXPERTS], group[MOST_EXPERTS];
    int order[MOST_EXPERTS];
    int64_t each = s->experts / s->groups;
    score(r, logits, s);
    for (int64_t e = 0; e < s->experts; e++) keys[e] = r->score[e] + (bias == NULL ? 0 : bias[e]);
    for (int64_t g = 0; g < s->groups; g++) {
        sort(order, keys + g * each, each);
        group[g] = keys[g * each + order[0]] + (each > 1 ? keys[g * each + order[1]] : 0);
    }
    sort(order, group, s->groups);
    for (int64_t i = s->top_groups; i < s->groups; i++)
        for (int64_t e = 0; e < each; e++) keys[order[i] * each + e] = -INFINITY;
    sort(order, keys, s->experts);
    memcpy(r->chosen, order, (size_t)s->chosen * sizeof *order);
    qsort(r->chosen, (size_t)s->chosen, sizeof *order, ascending);
    weigh(r, s);
}

static const RouteShape ROUTES[] = {
    {8, 2, false, true, 1, 1, 1},    {128, 8, false, true, 1, 1, 1},   {5, 5, false, true, 1, 1, 1},
    {64, 6, false, false, 1, 1, 1},  {16, 1, false, false, 1.5, 1, 1}, {1, 1, false, true, 1, 1, 1},
    {256, 8, true, true, 2.5, 8, 4}, {160, 8, true, true, 1, 1, 1},    {33, 3, true, false, 1, 1, 1},
    {12, 4, true, true, 2.5, 12, 5}, {300, 2, false, true, 1, 3, 2},
};

typedef struct Route {
    Operand logits, bias, weights;
    int32_t *chosen;
    const float *with; // bias, or NULL
} Route;

static Route route(Op *op, const RouteShape *s, int64_t rows, bool biased) {
    Route r = {.logits = op_gradient(op, rows * s->experts, 1, 3.0), .bias = op_gradient(op, s->experts, 2, 0.2)};
    r.weights = op_blank(op, rows * s->chosen, sizeof(float));
    r.chosen = op_poison(op, rows * s->chosen * 4);
    r.with = biased ? r.bias.data : NULL;
    op->backend->route_forward(op->backend, r.chosen, r.weights.data, r.logits.data, r.with, rows, s);
    op_read(op, &r.weights);
    return r;
}

static void check_route(const RouteShape *s, int64_t rows, bool biased) {
    AutoOp op = op_start(PRECISION_FP32, 2);
    Route r = route(&op, s, rows, biased);
    for (int64_t row = 0; row < rows; row++) {
        Routed want;
        choose(&want, r.logits.value + row * s->experts, biased ? r.bias.value : NULL, s);
        for (int64_t j = 0; j < s->chosen; j++) assert_int_equal(r.chosen[row * s->chosen + j], want.chosen[j]);
        op_near("weights", r.weights.value + row * s->chosen, want.weight, s->chosen, 4e-6, 1e-6);
    }
}

TEST(routes_and_weights_agree_with_float64) {
    EACH_ROW (each, ROUTES)
        for (int biased = 0; biased < 2; biased++) {
            check_route(each, 1, biased);
            check_route(each, 77, biased);
        }
}

static void check_equal_logits(float logit, bool sigmoid) {
    const RouteShape s = {40, 3, sigmoid, true, 1, 1, 1};
    AutoOp op = op_start(PRECISION_FP32, 1);
    float *logits = op_hold(&op, 40 * 4), *weights = op_poison(&op, 3 * 4);
    int32_t *chosen = op_poison(&op, 3 * 4);
    for (int i = 0; i < 40; i++) logits[i] = logit;
    op.backend->route_forward(op.backend, chosen, weights, logits, NULL, 1, &s);
    for (int j = 0; j < 3; j++) assert_int_equal(chosen[j], j);
    for (int j = 0; j < 3; j++) assert_float_equal(weights[j], 1.0f / 3, 1e-7f);
}

TEST(of_equal_scores_the_lower_index_is_chosen) {
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        check_equal_logits(0.0f, sigmoid);
        check_equal_logits(-3.0f, sigmoid);
    }
    check_equal_logits(-1000.0f, false);
    check_equal_logits(1000.0f, true);
    const RouteShape pairs = {6, 3, false, true, 1, 1, 1}, groups = {6, 2, true, true, 1, 3, 1};
    AutoOp op = op_start(PRECISION_FP32, 1);
    const float several[] = {1, 2, 2, 0, 1, 2}, same[] = {0, 1, 1, 0, 1, 0};
    float *logits = op_hold(&op, sizeof several), *weights = op_hold(&op, 3 * 4);
    int32_t *chosen = op_hold(&op, 3 * 4);
    memcpy(logits, several, sizeof several);
    op.backend->route_forward(op.backend, chosen, weights, logits, NULL, 1, &pairs);
    assert_true(chosen[0] == 1 && chosen[1] == 2 && chosen[2] == 5);
    memcpy(logits, same, sizeof same);
    op.backend->route_forward(op.backend, chosen, weights, logits, NULL, 1, &groups);
    assert_true(chosen[0] == 0 && chosen[1] == 1);
}

TEST(a_nan_makes_the_weights_of_its_row_nan) {
    EACH_ROW (s, ROUTES) {
        AutoOp op = op_start(PRECISION_FP32, 1);
        float *logits = op_hold(&op, 2 * s->experts * 4), *weights = op_hold(&op, 2 * s->chosen * 4);
        int32_t *chosen = op_poison(&op, 2 * s->chosen * 4);
        for (int64_t at = 0; at < s->experts;
             at += at < s->experts - 1 && at + 7 >= s->experts ? s->experts - 1 - at : 7) {
            for (int64_t e = 0; e < 2 * s->experts; e++) logits[e] = e == s->experts + at ? NAN : (float)(e % 5);
            op.backend->route_forward(op.backend, chosen, weights, logits, NULL, 2, s);
            for (int64_t j = 0; j < s->chosen; j++) {
                assert_int_equal(chosen[s->chosen + j], j);
                assert_true(isnan(weights[s->chosen + j]) && isfinite(weights[j]));
            }
        }
    }
}

// --- router: gradient

// The float64 loss of one row, as a function of its logits, with the chosen experts fixed.
typedef struct Loss {
    const RouteShape *shape;
    Routed routed;
    double logits[MOST_EXPERTS], z;
    const double *dweights, *share;
} Loss;

static double loss(void *context) {
    Loss *l = context;
    const RouteShape *s = l->shape;
    double total = 0, sum = 0, exponentials = 0;
    score(&l->routed, l->logits, s);
    weigh(&l->routed, s);
    for (int64_t j = 0; j < s->chosen; j++) total += l->dweights[j] * l->routed.weight[j];
    for (int64_t e = 0; e < s->experts; e++) sum += l->routed.score[e], exponentials += exp(l->logits[e]);
    for (int64_t e = 0; e < s->experts && l->share != NULL; e++)
        total += l->share[e] * l->routed.score[e] / (s->sigmoid ? sum : 1);
    return total + l->z * log(exponentials) * log(exponentials);
}

static void check_route_backward(int precision, const RouteShape *s, int64_t rows, bool shared, double z) {
    AutoOp op = op_start(precision, 2);
    Route r = route(&op, s, rows, s->sigmoid);
    Operand dweights = op_gradient(&op, rows * s->chosen, 5, 1), share = op_gradient(&op, s->experts, 6, 1);
    Operand dlogits = op_output(&op, rows * s->experts);
    op.backend->route_backward(op.backend, dlogits.data, dweights.data, r.chosen, r.logits.data,
                               shared ? share.data : NULL, z, rows, s);
    op_read(&op, &dlogits);
    for (int64_t row = 0; row < rows; row++) {
        Loss l = {.shape = s, .z = z, .dweights = dweights.value + row * s->chosen};
        double slope[MOST_EXPERTS];
        l.share = shared ? share.value : NULL;
        for (int64_t j = 0; j < s->chosen; j++) l.routed.chosen[j] = r.chosen[row * s->chosen + j];
        memcpy(l.logits, r.logits.value + row * s->experts, (size_t)s->experts * 8);
        for (int64_t e = 0; e < s->experts; e++) slope[e] = op_slope(loss, &l, &l.logits[e]);
        op_near("dlogits", dlogits.value + row * s->experts, slope, s->experts, op_bound(&op), 0.5);
    }
}

TEST(router_gradients_agree_with_differences) {
    EACH_CASE (precision, each, ROUTES)
        for (int shared = 0; shared < 2; shared++) {
            check_route_backward(precision, each, 3, shared, 0);
            check_route_backward(precision, each, 3, shared, 0.05);
        }
}

TEST(the_balance_loss_is_the_sum_over_all_scores) {
    enum { ROWS = 37 };
    EACH_ROW (s, ROUTES) {
        AutoOp op = op_start(PRECISION_FP32, 2);
        Route r = route(&op, s, ROWS, false);
        Operand share = op_gradient(&op, s->experts, 6, 1);
        double sum = 0, want = 0;
        for (int64_t row = 0; row < ROWS; row++) {
            Routed routed;
            double all = 0, dot = 0;
            score(&routed, r.logits.value + row * s->experts, s);
            for (int64_t e = 0; e < s->experts; e++) all += routed.score[e], dot += share.value[e] * routed.score[e];
            want += s->sigmoid ? dot / all : dot;
        }
        op.backend->route_balance(op.backend, &sum, r.logits.data, share.data, ROWS, s);
        assert_float_equal(sum, want, 1e-5 * (1 + fabs(want)));
    }
}

TEST(a_bias_grows_where_fewer_copies_than_the_mean_came) {
    static const float counts[] = {0, 3, 2.0f, 16777215.0f, 2, 1};
    static const float want[] = {0.5f, -0.25f, 0.25f, -0.5f, 1, 1.25f}, before[] = {0.25f, 0, 0.25f, -0.25f, 1, 1};
    AutoOp op = op_start(PRECISION_BF16, 1);
    float *bias = op_hold(&op, sizeof before), *count = op_hold(&op, sizeof counts);
    memcpy(bias, before, sizeof before), memcpy(count, counts, sizeof counts);
    op.backend->route_bias(op.backend, bias, count, 6, 2.0, 0.25);
    for (int i = 0; i < 6; i++) assert_true(bias[i] == want[i] && count[i] == 0);
}

// --- the order of rows

static void check_order(int precision, const RouteShape *s, int64_t rows, int64_t parts, int64_t cols) {
    AutoOp op = op_start(precision, 2);
    Backend *b = op.backend;
    Route r = route(&op, s, rows, false);
    int64_t copies = rows * s->chosen, at = 0, bytes = cols * b->element;
    int64_t *counts = op_poison(&op, parts * s->experts * 8);
    int32_t *place = op_poison(&op, copies * 4);
    b->route_counts(b, counts, parts, r.chosen, rows, s);
    b->route_places(b, place, r.chosen, rows, s);
    for (int64_t part = 0; part < parts; part++)
        for (int64_t e = 0; e < s->experts; e++) {
            int64_t count = 0;
            for (int64_t i = rows * part / parts * s->chosen; i < rows * (part + 1) / parts * s->chosen; i++)
                count += r.chosen[i] == e;
            assert_int_equal(counts[part * s->experts + e], count);
        }
    for (int64_t e = 0; e < s->experts; e++)
        for (int64_t i = 0; i < copies; i++)
            if (r.chosen[i] == e) assert_int_equal(place[i], at++);
    Operand x = op_operand(&op, rows * cols, 7, 0, 1), sorted = op_output(&op, copies * cols);
    Operand back = op_output(&op, copies * cols), y = op_output(&op, rows * cols);
    b->rows_scatter(b, sorted.data, x.data, place, rows, s->chosen, bytes);
    b->rows_gather(b, back.data, sorted.data, place, copies, bytes);
    b->rows_combine(b, y.data, sorted.data, place, rows, s->chosen, cols);
    for (int64_t i = 0; i < copies; i++) {
        const char *from = (const char *)x.data + i / s->chosen * bytes;
        assert_memory_equal((char *)sorted.data + place[i] * bytes, from, (size_t)bytes);
        assert_memory_equal((char *)back.data + i * bytes, from, (size_t)bytes);
    }
    double *want = op_hold(&op, rows * cols * 8);
    for (int64_t i = 0; i < rows * cols; i++) want[i] = (double)s->chosen * x.value[i];
    op_near("combined", op_read(&op, &y), want, rows * cols, op_bound(&op), 0);
}

TEST(rows_are_counted_and_ordered_by_expert_and_back) {
    static const int64_t sizes[][3] = {{1, 1, 2}, {64, 4, 8}, {129, 3, 33}, {1000, 7, 64}};
    EACH_CASE (precision, each, ROUTES)
        for (int n = 0; n < 4; n++) check_order(precision, each, sizes[n][0], sizes[n][1], sizes[n][2]);
}

// In fp32 another order gives another sum; in bf16 each sum of two rounds to 256, and the sum of all to 258.
TEST(copies_are_added_in_their_order_and_rounded_once) {
    enum { K = 4 };
    static const float copies[2][K] = {{1.0f, 1e8f, -1e8f, 0.5f}, {256.0f, 0.75f, 0.75f, 0.75f}};
    static const int32_t order[K] = {1, 0, 2, 3};
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        const float *parts = copies[precision == PRECISION_BF16];
        AutoOp op = op_start(precision, 1);
        float *floats = op_hold(&op, K * 4);
        int32_t *place = op_hold(&op, K * 4);
        Operand x = op_output(&op, K), y = op_output(&op, 1);
        memcpy(floats, parts, K * 4), memcpy(place, order, K * 4);
        op.backend->from_float(op.backend, x.data, floats, K);
        op.backend->rows_combine(op.backend, y.data, x.data, place, 1, K, 1);
        float want = ((parts[1] + parts[0]) + parts[2]) + parts[3];
        assert_float_equal((float)op_read(&op, &y)[0], precision == PRECISION_BF16 ? 258.0f : want, 0);
    }
}

// --- grouped products

typedef struct Grouped {
    int64_t experts, in, out, most; // most: rows of an expert
} Grouped;

static const Grouped GROUPS[] = {{1, 8, 16, 5}, {5, 40, 72, 9}, {8, 64, 33, 70}, {3, 264, 400, 130}};
enum { MOST_GROUPED = 16 };

// Every third expert has no rows.
static void rows_of(const Grouped *g, int64_t *first) {
    for (int64_t n = 0; n < g->experts; n++)
        first[n + 1] = first[n] + (n % 3 == 1 ? 0 : 1 + (int64_t)((op_random(9, n) + 1) / 2 * (double)g->most));
}

// The weights of an expert are followed by 24 other numbers.
typedef struct Products {
    int64_t first[MOST_GROUPED + 1], rows, stride;
    Operand x, w, dy, y, dx, dw;
} Products;

static Products products(Op *op, const Grouped *g) {
    Products p = {.stride = g->in * g->out + 24};
    Backend *b = op->backend;
    rows_of(g, p.first);
    p.rows = p.first[g->experts];
    p.x = op_operand(op, p.rows * g->in, 1, 0, 1);
    p.w = op_operand(op, g->experts * p.stride, 2, 0, 1);
    p.dy = op_operand(op, p.rows * g->out, 3, 0, 1);
    p.y = op_output(op, p.rows * g->out);
    p.dx = op_output(op, p.rows * g->in);
    p.dw = op_gradient(op, g->experts * p.stride, 4, 1);
    b->experts_forward(b, p.y.data, p.x.data, p.w.data, p.stride, p.first, g->experts, g->in, g->out);
    b->experts_backward_input(b, p.dx.data, p.dy.data, p.w.data, p.stride, p.first, g->experts, g->in, g->out);
    b->experts_backward_weight(b, p.dw.data, p.stride, p.dy.data, p.x.data, p.first, g->experts, g->in, g->out);
    return p;
}

static void check_products(int precision, const Grouped *g) {
    AutoOp op = op_start(precision, 2);
    Products p = products(&op, g);
    double *y = op_hold(&op, p.rows * g->out * 8), *dx = op_hold(&op, p.rows * g->in * 8), *dw = p.dw.value;
    for (int64_t n = 0; n < g->experts; n++)
        for (int64_t r = p.first[n]; r < p.first[n + 1]; r++)
            for (int64_t o = 0; o < g->out; o++)
                for (int64_t i = 0; i < g->in; i++) {
                    int64_t at = n * p.stride + o * g->in + i;
                    y[r * g->out + o] += p.x.value[r * g->in + i] * p.w.value[at];
                    dx[r * g->in + i] += p.dy.value[r * g->out + o] * p.w.value[at];
                    dw[at] += p.dy.value[r * g->out + o] * p.x.value[r * g->in + i];
                }
    op_near("y", op_read(&op, &p.y), y, p.y.count, op_bound(&op), sqrt((double)g->in));
    op_near("dx", op_read(&op, &p.dx), dx, p.dx.count, op_bound(&op), sqrt((double)g->out));
    op_near("dw", op_result(&op, &p.dw), dw, p.dw.count, 4e-6, sqrt((double)g->most));
}

TEST(grouped_products_agree_with_float64) {
    EACH_CASE (precision, each, GROUPS) check_products(precision, each);
}

// Every row has the bits that it has alone, and among any other rows; `y` and `dx` of a whole cut into single experts'
// rows, and those into halves.
static void check_alone(int precision, const Grouped *g) {
    AutoOp op = op_start(precision, 2);
    Backend *b = op.backend;
    Products p = products(&op, g);
    int64_t in = g->in * b->element, out = g->out * b->element;
    Operand y = op_output(&op, p.rows * g->out), dx = op_output(&op, p.rows * g->in);
    for (int64_t n = 0; n < g->experts; n++)
        for (int64_t from = p.first[n], to; from < p.first[n + 1]; from = to) {
            to = from + (p.first[n + 1] - from + 1) / 2; // halves, down to one row
            const int64_t first[2] = {0, to - from};
            const char *w = (const char *)p.w.data + n * p.stride * b->element;
            b->experts_forward(b, (char *)y.data + from * out, (char *)p.x.data + from * in, w, 0, first, 1, g->in,
                               g->out);
            b->experts_backward_input(b, (char *)dx.data + from * in, (char *)p.dy.data + from * out, w, 0, first, 1,
                                      g->in, g->out);
        }
    assert_memory_equal(y.data, p.y.data, (size_t)y.bytes);
    assert_memory_equal(dx.data, p.dx.data, (size_t)dx.bytes);
}

TEST(a_row_has_the_same_bits_among_any_other_rows) {
    EACH_CASE (precision, each, GROUPS) check_alone(precision, each);
}

// --- threads

static int64_t run_route(Op *op, const void *shape, unsigned char *out) {
    const RouteShape *s = shape;
    enum { ROWS = 131, COLS = 40 };
    Backend *b = op->backend;
    Route r = route(op, s, ROWS, true);
    Operand dlogits = op_output(op, ROWS * s->experts), x = op_operand(op, ROWS * COLS, 3, 0, 1);
    Operand sorted = op_output(op, ROWS * s->chosen * COLS), y = op_output(op, ROWS * COLS);
    int32_t *place = op_hold(op, ROWS * s->chosen * 4);
    b->route_backward(b, dlogits.data, r.weights.data, r.chosen, r.logits.data, r.bias.data, 0.1, ROWS, s);
    b->route_places(b, place, r.chosen, ROWS, s);
    b->rows_scatter(b, sorted.data, x.data, place, ROWS, s->chosen, COLS * b->element);
    b->rows_combine(b, y.data, sorted.data, place, ROWS, s->chosen, COLS);
    return op_outputs(out, &dlogits, &r.weights, &sorted, &y);
}

static int64_t run_products(Op *op, const void *shape, unsigned char *out) {
    Products p = products(op, shape);
    return op_outputs(out, &p.y, &p.dx, &p.dw);
}

TEST(bits_do_not_depend_on_threads) {
    EACH_ROW (each, ROUTES) op_same_for_any_threads(run_route, each, 4 << 20);
    EACH_ROW (each, GROUPS) op_same_for_any_threads(run_products, each, 8 << 20);
}
