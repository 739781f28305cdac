// Mixtures of experts: the router, the order of rows by expert, and products with each expert's own weights.
//
// The products use gemm.c in both precisions, since a row's bits may not depend on how many other rows chose the same
// expert. With oneDNN they would: an fp32 product of up to 15 rows has other bits than one of 256 rows.
#include "gemm.h"

#include "base/units.h"
#include "lanes.h"

#include <assert.h>

// --- router

// The largest key seen; among equal keys, the one with the lower index.
typedef struct Best {
    float key;
    int64_t index; // -1: none
} Best;

// Returns the best of keys[first, last) that comes after `before` in descending order.
static Best best_after_(const float *keys, int64_t first, int64_t last, Best before) {
    Best best = {0, -1};
    for (int64_t i = first; i < last; i++) {
        bool after = before.index < 0 || keys[i] < before.key || (keys[i] == before.key && i > before.index);
        if (after && (best.index < 0 || keys[i] > best.key)) best = (Best){keys[i], i};
    }
    return best;
}

// One row's logits and scores (E), the largest logit, and the sum of exp(logit - most).
typedef struct RouteScores {
    const RouteShape *shape;
    const float *logits, *score;
    float most, sum;
} RouteScores;

static RouteScores scores_open_(const RouteShape *shape, const float *logits, float *score) {
    RouteScores s = {shape, logits, score, logits[0], 0};
    for (int64_t e = 1; e < shape->experts; e++) s.most = logits[e] > s.most ? logits[e] : s.most;
    for (int64_t e = 0; e < shape->experts; e++) score[e] = cpu_expf(logits[e] - s.most);
    s.sum = lanes_sum(score, shape->experts);
    for (int64_t e = 0; e < shape->experts; e++)
        score[e] = shape->sigmoid ? 1.0f / (1.0f + cpu_expf(-logits[e])) : score[e] / s.sum;
    return s;
}

// Lowers the keys of experts in groups that cannot be chosen to -infinity.
static void close_groups_(float *keys, const RouteShape *shape) {
    int64_t each = shape->experts / shape->groups;
    float group[ROUTE_GROUPS_MAX];
    bool open[ROUTE_GROUPS_MAX] = {false};
    for (int64_t g = 0; g < shape->groups; g++) {
        Best first = best_after_(keys, g * each, (g + 1) * each, (Best){0, -1});
        Best second = best_after_(keys, g * each, (g + 1) * each, first);
        group[g] = first.key + second.key;
    }
    Best last = {0, -1};
    for (int64_t i = 0; i < shape->top_groups; i++) {
        last = best_after_(group, 0, shape->groups, last);
        open[last.index] = true;
    }
    for (int64_t e = 0; e < shape->experts; e++)
        if (!open[e / each]) keys[e] = -INFINITY;
}

// Writes the chosen experts' scores, and returns their divisor in the weights. Normalized softmax is softmax over the
// chosen logits.
static float chosen_scores_(float *scores, const RouteScores *s, const int32_t *chosen) {
    const RouteShape *shape = s->shape;
    bool softmax = shape->normalize && !shape->sigmoid;
    float most = s->logits[chosen[0]], sum = 0;
    for (int64_t j = 1; j < shape->chosen; j++) most = s->logits[chosen[j]] > most ? s->logits[chosen[j]] : most;
    for (int64_t j = 0; j < shape->chosen; j++)
        sum += scores[j] = softmax ? cpu_expf(s->logits[chosen[j]] - most) : s->score[chosen[j]];
    return !shape->normalize ? 1 : softmax ? sum : sum + 1e-20f;
}

void cpu_route_forward(Backend *be, int32_t *chosen, float *weights, const float *logits, const float *bias,
                       int64_t rows, const RouteShape *shape) {
    int64_t experts = shape->experts, k = shape->chosen;
    assert(k <= ROUTE_CHOSEN_MAX && shape->groups <= ROUTE_GROUPS_MAX);
    CPU_PARALLEL_FOR(be)
    for (int64_t row = 0; row < rows; row++) {
        float *score = cpu_scratch(be, 2 * experts), *keys = score + experts, scores[ROUTE_CHOSEN_MAX];
        int32_t *to = chosen + row * k;
        RouteScores s = scores_open_(shape, logits + row * experts, score);

        // 1. The keys to compare experts by. Without bias and groups, the key is the logit, which has the same order as
        // the score.
        bool plain = bias == NULL && shape->groups <= 1, broken = false;
        for (int64_t e = 0; e < experts; e++) {
            keys[e] = plain ? s.logits[e] : s.score[e] + (bias == NULL ? 0 : bias[e]);
            broken |= isnan(keys[e]) != 0;
        }

        // 2. The best k, in ascending order of their index.
        if (shape->groups > 1 && !broken) close_groups_(keys, shape);
        Best last = {0, -1};
        for (int64_t j = 0; j < k; j++) {
            last = broken ? (Best){0, j} : best_after_(keys, 0, experts, last);
            assert(last.index >= 0);
            int64_t at = j;
            for (; at > 0 && to[at - 1] > last.index; at--) to[at] = to[at - 1];
            to[at] = (int32_t)last.index;
        }

        // 3. Their weights.
        float divisor = chosen_scores_(scores, &s, to);
        for (int64_t j = 0; j < k; j++) weights[row * k + j] = broken ? NAN : (float)shape->scale * scores[j] / divisor;
    }
}

void cpu_route_backward(Backend *be, void *dlogits, const float *dweights, const int32_t *chosen, const float *logits,
                        const float *share, double z, int64_t rows, const RouteShape *shape) {
    int64_t experts = shape->experts, k = shape->chosen;
    bool softmax_of_chosen = shape->normalize && !shape->sigmoid;
    CPU_PARALLEL_FOR(be)
    for (int64_t row = 0; row < rows; row++) {
        float *sum = cpu_scratch(be, 3 * experts), *dscores = sum + experts, *score = dscores + experts;
        const float *dweight = dweights + row * k;
        const int32_t *picked = chosen + row * k;
        RouteScores s = scores_open_(shape, logits + row * experts, score);
        memset(sum, 0, (size_t)experts * sizeof *sum);

        // 1. The gradient of the scores through p: the scores, or with sigmoid the scores divided by their sum.
        float all = 1, dot = 0;
        if (shape->sigmoid && share != NULL) all = lanes_sum(score, experts);
        for (int64_t e = 0; e < experts && shape->sigmoid && share != NULL; e++) dot += share[e] * (score[e] / all);
        for (int64_t e = 0; e < experts; e++) dscores[e] = share == NULL ? 0 : (share[e] - dot) / all;

        // 2. Through the weights, w = scale s / D, D the sum of the chosen scores: ds_i = scale / D (dw_i - sum of
        // dw_j s_j / D). Where the scores are softmax over the chosen logits, dl_i = s_i ds_i.
        float scores[ROUTE_CHOSEN_MAX], divisor = chosen_scores_(scores, &s, picked);
        dot = 0;
        for (int64_t j = 0; j < k && shape->normalize; j++) dot += dweight[j] * (scores[j] / divisor);
        for (int64_t j = 0; j < k; j++) {
            float d = (float)shape->scale * (dweight[j] - dot) / divisor;
            if (softmax_of_chosen) sum[picked[j]] += scores[j] * d;
            else dscores[picked[j]] += d;
        }

        // 3. The gradient of the logits through all scores, plus z times the gradient of logsumexp(logits)^2.
        float slope = 2.0f * (float)z * (s.most + logf(s.sum));
        dot = 0;
        for (int64_t e = 0; e < experts && !shape->sigmoid; e++) dot += dscores[e] * score[e];
        for (int64_t e = 0; e < experts; e++) {
            sum[e] += score[e] * (shape->sigmoid ? 1 - score[e] : 1) * (dscores[e] - dot);
            if ((float)z != 0) sum[e] += slope * (cpu_expf(s.logits[e] - s.most) / s.sum);
        }
        cpu_store(be, dlogits, row * experts, sum, experts);
    }
}

// Rows are added in order, so that the sum does not depend on the threads.
void cpu_route_balance(Backend *be, double *sum, const float *logits, const float *share, int64_t rows,
                       const RouteShape *shape) {
    int64_t experts = shape->experts;
    float *score = cpu_scratch(be, experts);
    *sum = 0;
    for (int64_t row = 0; row < rows; row++) {
        RouteScores s = scores_open_(shape, logits + row * experts, score);
        double all = shape->sigmoid ? lanes_sum(score, experts) : 1, dot = 0;
        for (int64_t e = 0; e < experts; e++) dot += (double)share[e] * (double)s.score[e];
        *sum += dot / all;
    }
}

void cpu_route_bias(Backend *be, float *bias, float *counts, int64_t count, double mean, double rate) {
    (void)be;
    for (int64_t i = 0; i < count; i++) {
        double less = mean - (double)counts[i];
        bias[i] += (float)(less > 0 ? rate : less < 0 ? -rate : 0);
        counts[i] = 0;
    }
}

// --- the order of rows by expert

void cpu_route_counts(Backend *be, int64_t *counts, int64_t parts, const int32_t *chosen, int64_t rows,
                      const RouteShape *shape) {
    (void)be;
    memset(counts, 0, (size_t)(parts * shape->experts) * sizeof *counts);
    for (int64_t part = 0; part < parts; part++)
        for (int64_t i = rows * part / parts * shape->chosen; i < rows * (part + 1) / parts * shape->chosen; i++)
            counts[part * shape->experts + chosen[i]]++;
}

void cpu_route_places(Backend *be, int32_t *place, const int32_t *chosen, int64_t rows, const RouteShape *shape) {
    int64_t copies = rows * shape->chosen, experts = shape->experts;
    int32_t *next = (int32_t *)cpu_scratch(be, experts + 1);
    memset(next, 0, (size_t)(experts + 1) * sizeof *next);
    for (int64_t i = 0; i < copies; i++) next[chosen[i] + 1]++;
    for (int64_t e = 0; e < experts; e++) next[e + 1] += next[e];
    for (int64_t i = 0; i < copies; i++) place[i] = next[chosen[i]]++;
}

void cpu_rows_scatter(Backend *be, void *to, const void *from, const int32_t *place, int64_t rows, int64_t k,
                      int64_t bytes) {
    CPU_PARALLEL_FOR(be)
    for (int64_t i = 0; i < rows * k; i++)
        memcpy((char *)to + place[i] * bytes, (const char *)from + i / k * bytes, (size_t)bytes);
}

void cpu_rows_gather(Backend *be, void *to, const void *from, const int32_t *place, int64_t count, int64_t bytes) {
    (void)be;
    CPU_PARALLEL_FOR(be)
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)to + i * bytes, (const char *)from + place[i] * bytes, (size_t)bytes);
}

void cpu_rows_combine(Backend *be, void *to, const void *from, const int32_t *place, int64_t rows, int64_t k,
                      int64_t cols) {
    enum { PIECE = 1024 };
    CPU_PARALLEL_FOR(be)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t at = 0; at < cols; at += PIECE) {
            float sum[PIECE], workspace[PIECE];
            int64_t n = min_i64(cols - at, PIECE);
            for (int64_t j = 0; j < k; j++) {
                const float *x = cpu_load(be, workspace, from, place[row * k + j] * cols + at, n);
                if (j == 0) memcpy(sum, x, (size_t)n * sizeof *sum);
                else cpu_accumulate_row(sum, x, n);
            }
            cpu_store(be, to, row * cols + at, sum, n);
        }
}

// --- products. Row (or column) tiles of all experts are one list, so that threads are busy with few rows each, too.

enum { TILE_ROWS = 64, TILE_COLS = CPU_GEMM_COLS };

// C (m, n) = op(A) op(B), summed over k; C is fp32 and accumulates, or has the run's precision and is overwritten.
typedef struct ExpertProduct {
    int64_t m, n, k;
    CpuOperand a, b;
    void *c;
    bool adds;
} ExpertProduct;

static int64_t tiles_(const ExpertProduct *p) {
    return (p->m + TILE_ROWS - 1) / TILE_ROWS * ((p->n + TILE_COLS - 1) / TILE_COLS);
}

// Computes one tile. Tiles of the same columns are neighbours, since they read the same part of B.
static void tile_(Backend *be, const ExpertProduct *p, int64_t index, bool wide) {
    float *workspace = cpu_scratch(be, cpu_linear_workspace()), *sums = workspace + CPU_GEMM_WORKSPACE;
    int64_t down = (p->m + TILE_ROWS - 1) / TILE_ROWS;
    int64_t row = index % down * TILE_ROWS, col = index / down * TILE_COLS;
    int64_t m = min_i64(p->m - row, TILE_ROWS), n = min_i64(p->n - col, TILE_COLS);
    bool direct = wide || !cpu_is_bf16(be);
    int64_t stride = direct ? p->n : n;
    float *c = direct ? (float *)p->c + row * p->n + col : sums;
    cpu_gemm(workspace, m, n, p->k, gemm_part(p->a, row, 0), gemm_part(p->b, 0, col), p->adds, c, stride);
    for (int64_t r = 0; r < m && !direct; r++) cpu_store(be, p->c, (row + r) * p->n + col, sums + r * n, n);
}

static CpuOperand matrix_(const Backend *be, const void *data, int64_t row, int64_t stride, bool transposed) {
    return (CpuOperand){(const char *)data + row * stride * be->element, stride, transposed, cpu_is_bf16(be), NULL};
}

typedef enum ExpertKind { FORWARD, INPUT, WEIGHT } ExpertKind;

// The operands of a grouped product. x: activations (rows, in), y: (rows, out); two of w, x and y are read.
typedef struct Experts {
    ExpertKind kind;
    const void *x, *y, *w;
    float *dw;
    int64_t stride, in, out;
    const int64_t *first;
} Experts;

static ExpertProduct product_of_(const Backend *be, const Experts *e, int64_t n) {
    int64_t row = e->first[n], rows = e->first[n + 1] - row, in = e->in, out = e->out;
    const char *w = (const char *)e->w + (e->w == NULL ? 0 : n * e->stride * be->element);
    CpuOperand x = matrix_(be, e->x, row, in, false), y = matrix_(be, e->y, row, out, false);
    if (e->kind == FORWARD)
        return (ExpertProduct){rows, out, in, x, matrix_(be, w, 0, in, true), (void *)y.data, false};
    if (e->kind == INPUT) return (ExpertProduct){rows, in, out, y, matrix_(be, w, 0, in, false), (void *)x.data, false};
    return (ExpertProduct){rows == 0 ? 0 : out, in, rows, transposed(y), x, e->dw + n * e->stride, true};
}

static void multiply_(Backend *be, const Experts *e, int64_t experts) {
    int64_t most = 0;
    for (int64_t n = 0; n < experts; n++) {
        const ExpertProduct p = product_of_(be, e, n);
        most = max_i64(most, tiles_(&p));
    }
    CPU_PARALLEL_FOR_DYNAMIC(be)
    for (int64_t i = 0; i < experts * most; i++) {
        const ExpertProduct p = product_of_(be, e, i / most);
        if (i % most < tiles_(&p)) tile_(be, &p, i % most, e->kind == WEIGHT);
    }
}

void cpu_experts_forward(Backend *be, void *y, const void *x, const void *w, int64_t stride, const int64_t *first,
                         int64_t experts, int64_t in, int64_t out) {
    const Experts e = {FORWARD, x, y, w, NULL, stride, in, out, first};
    multiply_(be, &e, experts);
}

void cpu_experts_backward_input(Backend *be, void *dx, const void *dy, const void *w, int64_t stride,
                                const int64_t *first, int64_t experts, int64_t in, int64_t out) {
    const Experts e = {INPUT, dx, dy, w, NULL, stride, in, out, first};
    multiply_(be, &e, experts);
}

void cpu_experts_backward_weight(Backend *be, float *dw, int64_t stride, const void *dy, const void *x,
                                 const int64_t *first, int64_t experts, int64_t in, int64_t out) {
    const Experts e = {WEIGHT, x, dy, NULL, dw, stride, in, out, first};
    multiply_(be, &e, experts);
}

// The logits are floats in both precisions; no product of linear.c writes such an output.
void cpu_router_forward(Backend *be, float *logits, const void *x, const void *w, int64_t rows, int64_t hidden,
                        int64_t experts) {
    const ExpertProduct p = {rows,   experts, hidden, matrix_(be, x, 0, hidden, false), matrix_(be, w, 0, hidden, true),
                             logits, false};
    CPU_PARALLEL_FOR_DYNAMIC(be)
    for (int64_t i = 0; i < tiles_(&p); i++) tile_(be, &p, i, true);
}
