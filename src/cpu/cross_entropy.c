// Softmax and cross-entropy over a vocabulary that may be split over tensor ranks. Each rank describes its columns by
// (maximum, sum of exponentials, target logit). All ranks then combine the gathered descriptions in rank order, so they
// compute the same bits. Each row is computed by one thread.
#include "cpu.h"
#include "lanes.h"

#include "base/units.h"

// Columns processed at once. Sums within a piece are fp32, sums over pieces double: with 50,000 columns a plain fp32
// sum would lose digits that the gradient needs.
enum { PIECE = 1024 };

// Wide enough that compilers vectorize the loop over the lanes instead of unrolling it.
enum { MAX_LANES = 128 };

static float piece_max_(const float *restrict x, int64_t n, float max) {
    float lanes[MAX_LANES];
    for (int lane = 0; lane < MAX_LANES; lane++) lanes[lane] = max;
    int64_t whole = lanes_whole(n, MAX_LANES);
    for (int64_t i = 0; i < whole; i += MAX_LANES)
        for (int lane = 0; lane < MAX_LANES; lane++)
            lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    for (int64_t i = whole; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int lane = 0; lane < MAX_LANES; lane++) max = lanes[lane] > max ? lanes[lane] : max;
    return max;
}

static float piece_exp_sum_(const float *restrict x, int64_t n, float max) {
    float exps[PIECE];
    for (int64_t i = 0; i < n; i++) exps[i] = cpu_expf(x[i] - max);
    return lanes_sum(exps, n);
}

// The maximum ignores NaN but the sum does not, so a NaN reaches the loss. Columns that are all -inf sum to zero.
void cpu_cross_entropy_stats(Backend *backend, float *stats, const void *logits, const int32_t *targets, int64_t rows,
                             int64_t width, int64_t first, int64_t count) {
    CPU_PARALLEL_FOR(cpu_self(backend))
    for (int64_t row = 0; row < rows; row++) {
        float workspace[PIECE], max = -INFINITY;
        int64_t at = row * width, own = (int64_t)targets[row] - first;
        for (int64_t column = 0; column < count; column += PIECE) {
            int64_t n = min_i64(count - column, PIECE);
            max = piece_max_(cpu_load(backend, workspace, logits, at + column, n), n, max);
        }
        float base = max == -INFINITY ? 0.0f : max;
        double sum = 0.0;
        for (int64_t column = 0; column < count; column += PIECE) {
            int64_t n = min_i64(count - column, PIECE);
            sum += (double)piece_exp_sum_(cpu_load(backend, workspace, logits, at + column, n), n, base);
        }
        stats[row * 3] = max;
        stats[row * 3 + 1] = (float)sum;
        stats[row * 3 + 2] = own >= 0 && own < count ? *cpu_load(backend, workspace, logits, at + own, 1) : 0.0f;
    }
}

typedef struct RowSoftmax {
    float max;
    double sum;
    double share; // factor of every probability in the gradient: 1 without z_loss
    float loss;
} RowSoftmax;

static RowSoftmax row_combine_(const float *gathered, int ranks, int64_t rows, int64_t row, double z_loss) {
    RowSoftmax whole = {.max = -INFINITY, .share = 1.0};
    double target = 0.0;
    for (int rank = 0; rank < ranks; rank++) {
        float max = gathered[(rank * rows + row) * 3];
        if (max > whole.max) whole.max = max;
    }
    for (int rank = 0; rank < ranks; rank++) {
        const float *stats = gathered + (rank * rows + row) * 3;
        whole.sum += (double)stats[1] * exp((double)stats[0] - (double)whole.max);
        target += (double)stats[2];
    }
    double log_z = log(whole.sum) + (double)whole.max, loss = log_z - target;
    if (z_loss > 0.0) {
        loss += z_loss * log_z * log_z;
        whole.share += 2.0 * z_loss * log_z;
    }
    whole.loss = (float)loss;
    return whole;
}

// With `scale`, replaces each row's logits by their gradient; `scale` is subtracted from the target's entry before
// rounding to bf16.
void cpu_cross_entropy_gradient(Backend *backend, void *logits, float *loss, const float *gathered, int ranks,
                                const int32_t *targets, int64_t rows, int64_t width, int64_t first, int64_t count,
                                float scale, float z_loss) {
    CPU_PARALLEL_FOR(cpu_self(backend))
    for (int64_t row = 0; row < rows; row++) {
        RowSoftmax softmax = row_combine_(gathered, ranks, rows, row, scale == 0.0f ? 0.0 : (double)z_loss);
        if (targets[row] < 0) softmax.loss = 0.0f, softmax.share = 0.0;
        loss[row] = softmax.loss;
        if (scale == 0.0f) continue;
        float workspace[PIECE], factor = (float)((double)scale * softmax.share / softmax.sum), max = softmax.max;
        int64_t own = (int64_t)targets[row] - first;
        for (int64_t column = 0; column < width; column += PIECE) {
            int64_t at = row * width + column, n = min_i64(width - column, PIECE);
            int64_t real = max_i64(0, min_i64(count - column, n));
            cpu_load(backend, workspace, logits, at, n);
            float *x = cpu_place(backend, workspace, logits, at);
            for (int64_t i = 0; i < real; i++) x[i] = cpu_expf(x[i] - max) * factor;
            memset(x + real, 0, (size_t)(n - real) * sizeof *x);
            if (own >= column && own < column + real) x[own - column] -= scale;
            cpu_store(backend, logits, at, x, n);
        }
    }
}
