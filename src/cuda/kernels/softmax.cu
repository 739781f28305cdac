// Causal softmax over rows of attention scores, for the attention modes that materialize scores. A row sees the columns
// [from, seen), which are in its own document. The backward ignores `from`: probabilities before it are zero.
//
// Fused: a block keeps a row in registers. Each score is read and written once; pieces above the diagonal are not read.
// Unfused: cast, scale, mask, softmax and cast are separate passes over fp32 memory, as in a framework without fusion.
// They move 36 bytes per bf16 score; the fused form moves 3 on average. The unfused form is for comparison.
#include "row.cuh"

namespace {

constexpr float LOG2_E = 1.4426950408889634f;

__device__ __forceinline__ int row_from_(const CudaScores &r, int64_t query) {
    return r.places == nullptr ? 0 : (int)query - r.places[(query - r.first) * r.apart];
}

__device__ __forceinline__ int row_seen_(const CudaScores &r) { return (int)(r.first + blockIdx.x % r.rows) + 1; }

// Computes exp(scale * (x - max)) as a multiply-add and a power of two. p may be scores: threads share no elements.
template <typename T, int W, int UNITS>
__global__ void __launch_bounds__(ROW_THREADS<UNITS>) softmax_kernel(T *p, const T *scores, const CudaScores r) {
    SHARED(float, workspace, 2 * WARP);
    int64_t row = (int64_t)blockIdx.x * r.cols;
    int seen = row_seen_(r), from = row_from_(r, seen - 1);
    Piece<T, W> piece[UNITS];
    EACH_UNIT (u, column, seen) piece[u] = piece_load<W>(scores + row + column);
    float max = -INFINITY, sum[1] = {0.0f};
    EACH_UNIT (u, column, seen) {
        Floats<W> x = piece_floats(piece[u]);
        EACH (i, W)
            if (column + i >= from && column + i < seen) max = fmaxf(max, x.v[i]);
    }
    max = block_max(max, workspace);
    float factor = r.scale * LOG2_E, shift = max == -INFINITY ? 0.0f : max * factor;
    Floats<W> powers[UNITS];
    EACH_UNIT (u, column, seen) {
        powers[u] = piece_floats(piece[u]);
        EACH (i, W) {
            bool sees = column + i >= from && column + i < seen;
            powers[u].v[i] = sees ? exp2f(fmaf(powers[u].v[i], factor, -shift)) : 0.0f;
            sum[0] += powers[u].v[i];
        }
    }
    block_sum(sum, workspace + WARP);
    float share = 1.0f / sum[0];
    EACH_UNIT (u, column, r.cols) {
        Floats<W> y = {};
        if (column < seen)
            EACH (i, W) y.v[i] = powers[u].v[i] * share;
        store_floats<T, W>(p + row + column, y);
    }
}

// D is the type of dp and dscores: T, or float in the unfused form.
template <typename T, typename D, int W, int UNITS>
__global__ void __launch_bounds__(ROW_THREADS<UNITS>)
    softmax_backward_kernel(D *dscores, const D *dp, const T *p, const CudaScores r) {
    SHARED(float, workspace, WARP);
    int64_t row = (int64_t)blockIdx.x * r.cols;
    int seen = row_seen_(r);
    Piece<T, W> probability[UNITS];
    Piece<D, W> slope[UNITS];
    EACH_UNIT (u, column, seen) {
        probability[u] = piece_load<W>(p + row + column);
        slope[u] = piece_load<W>(dp + row + column);
    }
    float sum[1] = {0.0f};
    EACH_UNIT (u, column, seen) {
        Floats<W> x = piece_floats(probability[u]), d = piece_floats(slope[u]);
        EACH (i, W)
            if (column + i < seen) sum[0] += x.v[i] * d.v[i];
    }
    block_sum(sum, workspace);
    EACH_UNIT (u, column, r.cols) {
        Floats<W> y = {};
        if (column < seen) {
            piece_repack(probability[u]), piece_repack(slope[u]);
            Floats<W> x = piece_floats(probability[u]), d = piece_floats(slope[u]);
            EACH (i, W) y.v[i] = column + i < seen ? x.v[i] * (d.v[i] - sum[0]) * r.scale : 0.0f;
        }
        store_floats<D, W>(dscores + row + column, y);
    }
}

static bool softmax_refused_(CudaBackend *cuda, int64_t cols) {
    if (cols > ROW_LIMIT)
        cuda_refuse(cuda, "attention.mode none and recompute support at most 32768 positions on a GPU; use flash");
    return cols > ROW_LIMIT;
}

template <typename T> void softmax_forward_launch_(Backend *be, T *p, const T *scores, const CudaScores *s) {
    RowPlan plan = row_plan(s->cols, PACK<T>, aligned_16(p, scores));
    FOR_ROW(plan, CUDA_LAUNCH(be, (unsigned)(s->matrices * s->rows), (unsigned)plan.threads, 0,
                              (softmax_kernel<T, W, UNITS>), p, scores, *s));
}

// A piece of p fills 16 bytes. If p is bf16 and D is float, the pieces of dp and dscores fill 32 bytes.
template <typename T, typename D>
void softmax_backward_launch_(Backend *be, D *dscores, const D *dp, const T *p, const CudaScores *s) {
    constexpr uintptr_t MASK = PACK<T> * sizeof(D) - 1;
    bool aligned = aligned_16(p) && (((uintptr_t)dscores | (uintptr_t)dp) & MASK) == 0;
    RowPlan plan = row_plan(s->cols, PACK<T>, aligned);
    FOR_ROW(plan, CUDA_LAUNCH(be, (unsigned)(s->matrices * s->rows), (unsigned)plan.threads, 0,
                              (softmax_backward_kernel<T, D, W, UNITS>), dscores, dp, p, *s));
}

// --- the passes of the unfused form over `wide`

enum { PASS_THREADS = 256 };
enum SoftmaxPass { PASS_SCALE, PASS_MASK_SCORES, PASS_MASK_SLOPES };

__global__ void __launch_bounds__(PASS_THREADS)
    pass_kernel(float *wide, int64_t count, const CudaScores r, SoftmaxPass pass) {
    int64_t at = ((int64_t)blockIdx.x * PASS_THREADS + threadIdx.x) * 4;
    for (int i = 0; i < 4 && at + i < count; i++) {
        int64_t row = (at + i) / r.cols % r.rows, column = (at + i) % r.cols;
        float x = wide[at + i];
        if (pass == PASS_SCALE) x *= r.scale;
        else if (column > r.first + row || column < row_from_(r, r.first + row))
            x = pass == PASS_MASK_SCORES ? -INFINITY : 0.0f;
        wide[at + i] = x;
    }
}

void pass_launch_(Backend *be, float *wide, const CudaScores *s, SoftmaxPass pass) {
    int64_t count = s->matrices * s->rows * s->cols;
    CUDA_LAUNCH(be, launch_blocks(count, 4 * PASS_THREADS), PASS_THREADS, 0, pass_kernel, wide, count, *s,
                pass);
}

// Returns the shape of the same scores without a mask: each row sees all its columns.
static CudaScores whole_rows_(const CudaScores *s) {
    return CudaScores{s->matrices * s->rows, 1, s->cols, s->cols - 1, 1.0f, nullptr, 0};
}

} // namespace

void cuda_softmax_forward(Backend *be, void *p, const void *scores, float *wide, const CudaScores *shape) {
    CudaBackend *cuda = cuda_self(be);
    CudaScores all = whole_rows_(shape);
    int64_t count = shape->matrices * shape->rows * shape->cols;
    if (softmax_refused_(cuda, shape->cols)) return;
    if (wide == nullptr) {
        FOR_ELEMENT(be, (softmax_forward_launch_<T>(be, (T *)p, (const T *)scores, shape)));
        return;
    }
    cuda_to_float(be, wide, scores, count);
    pass_launch_(be, wide, shape, PASS_SCALE);
    pass_launch_(be, wide, shape, PASS_MASK_SCORES);
    softmax_forward_launch_<float>(be, wide, wide, &all);
    cuda_from_float(be, p, wide, count);
}

void cuda_softmax_backward(Backend *be, void *dscores, const void *dp, const void *p, float *wide,
                           const CudaScores *shape) {
    CudaBackend *cuda = cuda_self(be);
    CudaScores all = whole_rows_(shape);
    int64_t count = shape->matrices * shape->rows * shape->cols;
    if (softmax_refused_(cuda, shape->cols)) return;
    if (wide == nullptr) {
        FOR_ELEMENT(be,
                    (softmax_backward_launch_<T, T>(be, (T *)dscores, (const T *)dp, (const T *)p, shape)));
        return;
    }
    cuda_to_float(be, wide, dp, count);
    pass_launch_(be, wide, shape, PASS_MASK_SLOPES); // values above the diagonal are undefined
    FOR_ELEMENT(be, (softmax_backward_launch_<T, float>(be, wide, wide, (const T *)p, &all)));
    pass_launch_(be, wide, shape, PASS_SCALE);
    cuda_from_float(be, dscores, wide, count);
}
