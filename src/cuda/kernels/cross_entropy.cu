// Softmax and cross-entropy over a vocabulary that may be split over tensor ranks, one block per row. Pass 1 reads each
// logit once; each thread keeps a maximum and the sum of exponentials relative to it, rescaled when the maximum grows.
// Pass 2 reads each logit once and replaces it by its gradient. No logit is ever stored in fp32.
#include "row.cuh"

#include <math.h>

namespace {

constexpr int THREADS = 512, PIECES = 4;

struct LogitColumns {
    int64_t width;
    int64_t first, count;
};

// Returns the value to subtract before exp: the maximum, or 0 if all columns are -inf, since -inf - -inf is NaN.
__device__ __forceinline__ float shift_of_(float max) { return max == -INFINITY ? 0.0f : max; }

// Loads PIECES pieces before use: 64 bytes in flight per thread, 64 KB per multiprocessor with two 512-thread blocks.
template <typename T, int W>
__device__ __forceinline__ void online_softmax_(float *max, float *sum, const T *row, int64_t count) {
    for (int64_t base = threadIdx.x * W; base < count; base += PIECES * THREADS * W) {
        Piece<T, W> piece[PIECES];
        float most = *max;
        EACH_PIECE (k, at, base, count) piece[k] = piece_load<W>(row + at);
        EACH_PIECE (k, at, base, count) {
            Floats<W> x = piece_floats(piece[k]);
            EACH (i, W)
                if (at + i < count) most = fmaxf(most, x.v[i]);
        }
        const float shift = shift_of_(most);
        *sum *= expf(*max - shift);
        *max = most;
        EACH_PIECE (k, at, base, count) {
            Floats<W> x = piece_floats(piece[k]);
            EACH (i, W)
                if (at + i < count) *sum += expf(x.v[i] - shift);
        }
    }
}

// fmaxf drops a NaN, so the maximum does not show it, but the sum becomes NaN, and the loss with it.
template <typename T, int W>
__global__ void __launch_bounds__(THREADS, 2)
    stats_kernel(float *stats, const T *logits, const int32_t *targets, const LogitColumns c) {
    SHARED(float, workspace, 2 * WARP);
    const T *row = logits + (int64_t)blockIdx.x * c.width;
    float max = -INFINITY, sum[1] = {0.0f};
    online_softmax_<T, W>(&max, sum, row, c.count);
    float whole = block_max(max, workspace);
    sum[0] *= expf(max - shift_of_(whole));
    block_sum(sum, workspace + WARP);
    if (threadIdx.x > 0) return;
    int64_t own = targets[blockIdx.x] - c.first;
    float *out = stats + (int64_t)blockIdx.x * 3;
    out[0] = whole;
    out[1] = sum[0];
    out[2] = own >= 0 && own < c.count ? load_floats<1>(row + own).v[0] : 0.0f;
}

struct GatheredStats {
    const float *stats; // (ranks, rows, 3)
    int ranks;
    int64_t rows;
};

// Returns the loss of a row from the statistics of all ranks, combined in rank order. It computes in double, since the
// loss is a difference of larger numbers. *share: the factor of every probability in the gradient, 1 without z_loss.
__device__ __forceinline__ float combine_(const GatheredStats &g, int64_t row, double z_loss, float *max, double *sum,
                                          double *share) {
    double target = 0.0;
    *max = -INFINITY, *sum = 0.0;
    for (int rank = 0; rank < g.ranks; rank++) *max = fmaxf(*max, g.stats[(rank * g.rows + row) * 3]);
    for (int rank = 0; rank < g.ranks; rank++) {
        const float *stats = g.stats + (rank * g.rows + row) * 3;
        *sum += (double)stats[1] * exp((double)stats[0] - (double)*max);
        target += (double)stats[2];
    }
    double log_z = log(*sum) + (double)*max, loss = log_z - target;
    *share = 1.0;
    if (z_loss > 0.0) {
        loss += z_loss * log_z * log_z;
        *share += 2.0 * z_loss * log_z;
    }
    return (float)loss;
}

// Thread 0 combines the statistics of the row; the other threads need only the maximum and the factor.
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    gradient_kernel(T *logits, float *loss, const GatheredStats gathered, const int32_t *targets, const LogitColumns c,
                    float scale, float z_loss) {
    SHARED(float, shared, 2);
    int64_t row = blockIdx.x, own = targets[row] - c.first;
    if (threadIdx.x == 0) {
        double sum, share;
        bool asked = targets[row] >= 0;
        float of_row = combine_(gathered, row, scale == 0.0f ? 0.0 : (double)z_loss, &shared[0], &sum, &share);
        loss[row] = asked ? of_row : 0.0f;
        shared[1] = asked ? (float)((double)scale * share / sum) : 0.0f;
    }
    if (scale == 0.0f) return;
    __syncthreads();
    float max = shared[0], factor = shared[1];
    T *x = logits + row * c.width;
    for (int64_t base = threadIdx.x * W; base < c.width; base += PIECES * THREADS * W) {
        Piece<T, W> piece[PIECES];
        EACH_PIECE (k, column, base, c.width) piece[k] = piece_load<W>(x + column);
        EACH_PIECE (k, column, base, c.width) {
            Floats<W> y = piece_floats(piece[k]);
            EACH (i, W) {
                y.v[i] = column + i < c.count ? expf(y.v[i] - max) * factor : 0.0f;
                if (column + i == own && own < c.count) y.v[i] -= scale; // subtracts in fp32, before rounding to T
            }
            store_floats<T, W>(x + column, y);
        }
    }
}

} // namespace

void cuda_cross_entropy_stats(Backend *be, float *stats, const void *logits, const int32_t *targets, int64_t rows,
                              int64_t width, int64_t first, int64_t count) {
    LogitColumns c = {width, first, count};
    FOR_WIDTH(be, width % PACK<T> == 0 && aligned_16(logits),
              CUDA_LAUNCH(be, (unsigned)rows, THREADS, 0, (stats_kernel<T, W>), stats, (const T *)logits, targets, c));
}

void cuda_cross_entropy_gradient(Backend *be, void *logits, float *loss, const float *gathered, int ranks,
                                 const int32_t *targets, int64_t rows, int64_t width, int64_t first, int64_t count,
                                 float scale, float z_loss) {
    LogitColumns c = {width, first, count};
    GatheredStats g = {gathered, ranks, rows};
    int threads = scale == 0.0f ? (int)WARP : THREADS; // evaluation: thread 0 writes only the loss
    FOR_WIDTH(be, width % PACK<T> == 0 && aligned_16(logits),
              CUDA_LAUNCH(be, (unsigned)rows, threads, 0, (gradient_kernel<T, W>), (T *)logits, loss, g, targets, c,
                          scale, z_loss));
}
