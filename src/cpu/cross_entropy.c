// Softmax and cross-entropy over a vocabulary that may be split over tensor ranks. Each rank describes its columns by
// (maximum, sum of exponentials, target logit). All ranks then combine the gathered descriptions in rank order, so they
// compute the same bits. Each row is computed by one thread.
#include "cpu.h"
#include "lanes.h"

#include "base/units.h"

// Columns processed at once. Sums within a piece are fp32, sums over pieces double: with 50,000 columns a plain fp32
// sum would lose digits that the gradient needs.
enum { PIECE = 1024 };

// The maximum ignores NaN but the sum does not, so a NaN reaches the loss. Columns that are all -inf sum to zero.
void cpu_cross_entropy_stats(Backend *be, float *stats, const void *logits, const int32_t *targets, int64_t rows,
                             int64_t width, int64_t first, int64_t count) {
    CPU_PARALLEL_FOR(be)
    for (int64_t row = 0; row < rows; row++) {
        float workspace[PIECE], max = -INFINITY;
        int64_t at = row * width, own = (int64_t)targets[row] - first;
        for (int64_t column = 0; column < count; column += PIECE) {
            int64_t n = min_i64(count - column, PIECE);
            max = lanes_max(cpu_load(be, workspace, logits, at + column, n), n, max);
        }
        float base = max == -INFINITY ? 0.0f : max;
        double sum = 0.0;
        for (int64_t column = 0; column < count; column += PIECE) {
            float exps[PIECE];
            int64_t n = min_i64(count - column, PIECE);
            const float *x = cpu_load(be, workspace, logits, at + column, n);
            for (int64_t i = 0; i < n; i++) exps[i] = cpu_expf(x[i] - base);
            sum += (double)lanes_sum(exps, n);
        }
        stats[row * 3] = max;
        stats[row * 3 + 1] = (float)sum;
        stats[row * 3 + 2] = own >= 0 && own < count ? *cpu_load(be, workspace, logits, at + own, 1) : 0.0f;
    }
}

// With `scale`, replaces each row's logits by their gradient; `scale` is subtracted from the target's entry before
// rounding to bf16.
void cpu_cross_entropy_gradient(Backend *be, void *logits, float *loss, const float *gathered, int ranks,
                                const int32_t *targets, int64_t rows, int64_t width, int64_t first, int64_t count,
                                float scale, float z_loss) {
    CPU_PARALLEL_FOR(be)
    for (int64_t row = 0; row < rows; row++) {
        float workspace[PIECE], max = -INFINITY;
        double target = 0.0, sum = 0.0, share = 1.0; // share: factor of every probability in the gradient
        for (int rank = 0; rank < ranks; rank++) {
            float own = gathered[(rank * rows + row) * 3];
            if (own > max) max = own;
        }
        for (int rank = 0; rank < ranks; rank++) {
            const float *stats = gathered + (rank * rows + row) * 3;
            sum += (double)stats[1] * exp((double)stats[0] - (double)max);
            target += (double)stats[2];
        }
        double log_z = log(sum) + (double)max, of_row = log_z - target, z = scale == 0.0f ? 0.0 : (double)z_loss;
        if (z > 0.0) of_row += z * log_z * log_z, share += 2.0 * z * log_z;
        loss[row] = targets[row] < 0 ? 0.0f : (float)of_row;
        if (scale == 0.0f) continue;
        if (targets[row] < 0) share = 0.0;
        float factor = (float)((double)scale * share / sum);
        int64_t own = (int64_t)targets[row] - first;
        for (int64_t column = 0; column < width; column += PIECE) {
            int64_t at = row * width + column, n = min_i64(width - column, PIECE);
            int64_t real = max_i64(0, min_i64(count - column, n));
            cpu_load(be, workspace, logits, at, n);
            float *x = cpu_place(be, workspace, logits, at);
            for (int64_t i = 0; i < real; i++) x[i] = cpu_expf(x[i] - max) * factor;
            memset(x + real, 0, (size_t)(n - real) * sizeof *x);
            if (own >= column && own < column + real) x[own - column] -= scale;
            cpu_store(be, logits, at, x, n);
        }
    }
}
