// RMSNorm (Zhang & Sennrich 2019) and LayerNorm (Ba et al. 2016). RMSNorm is LayerNorm with a mean of zero and no bias.
//
//     xhat = (x - mean) * rstd,  out = xhat * w + b
//     g = dout * w,  dx = rstd * (g - mean(g) - xhat * mean(g * xhat)),  dw = sum dout * xhat,  db = sum dout
//
// A block keeps a row in registers, so each element is read once and written once. Statistics are fp32, computed from
// the values as stored, which the backward reads too. Variances are taken around the mean.
//
// Weight gradients: each block of the backward walks a run of rows in order and keeps its own sums in shared memory,
// where each thread touches only its own columns. A second launch adds the sums of all blocks in a fixed order. The
// number of blocks depends only on the shape and the device, so a rerun gives the same bits.
#include "narrow.cuh"

namespace {

// Layout of rows: groups of `heads` adjacent rows, with a stride of `width` elements from group to group. For
// contiguous rows, heads is 1 and width is the length of a row.
struct StridedRows {
    int heads;
    int64_t width;
};

__device__ __forceinline__ int64_t row_begin_(const StridedRows &rows, int64_t row, int cols) {
    return row / rows.heads * rows.width + row % rows.heads * cols;
}

struct Forward {
    Factor out; // plain, or 8-bit with contiguous rows
    void *sum;
    const void *x, *delta, *w, *b;
    int cols;
    float eps;
    StridedRows at; // layout of x and out
    void *kept;     // receives a copy of x in layout `keep`; NULL: no copy
    StridedRows keep;
};

template <typename T, int W, int UNITS, bool CENTERED, int KIND>
__global__ void __launch_bounds__(ROW_THREADS<UNITS>) norm_kernel(const Forward a) {
    SHARED(float, workspace, 2 * WARP);
    int64_t row = row_begin_(a.at, blockIdx.x, a.cols);
    T *kept = a.kept ? (T *)a.kept + row_begin_(a.keep, blockIdx.x, a.cols) : nullptr;
    const T *x = (const T *)a.x + row, *delta = a.delta ? (const T *)a.delta + row : nullptr;
    Piece<T, W> in[UNITS], more[UNITS], weight[UNITS], bias[UNITS];
    EACH_UNIT (u, column, a.cols) {
        in[u] = piece_load<W>(x + column);
        if (kept) piece_store(kept + column, in[u]);
        if (delta) more[u] = piece_load<W>(delta + column);
        weight[u] = piece_load<W>((const T *)a.w + column);
        if (CENTERED) bias[u] = piece_load<W>((const T *)a.b + column);
    }
    float mean[1] = {0.0f}, squares[1] = {0.0f};
    EACH_UNIT (u, column, a.cols) {
        if (delta) {
            Floats<W> total = piece_floats(in[u]);
            total += piece_floats(more[u]);
            in[u] = piece_round<T, W>(total);
            piece_store((T *)a.sum + row + column, in[u]);
        }
        Floats<W> value = piece_floats(in[u]);
        EACH (i, W) mean[0] += value.v[i];
    }
    if (CENTERED) {
        block_sum(mean, workspace);
        mean[0] /= (float)a.cols;
    } else {
        mean[0] = 0.0f;
    }
    EACH_UNIT (u, column, a.cols) {
        if (CENTERED) piece_repack(in[u]);
        Floats<W> value = piece_floats(in[u]);
        EACH (i, W) squares[0] += (value.v[i] - mean[0]) * (value.v[i] - mean[0]);
    }
    block_sum(squares, workspace + WARP);
    float rstd = 1.0f / sqrtf(squares[0] / (float)a.cols + a.eps);
#pragma unroll ROW_UNROLL < UNITS>
    for (int u = 0; u < UNITS; u++) {
        int column = row_column<W>(u);
        Floats<W> y = {};
        if (column < a.cols) {
            piece_repack(in[u]);
            Floats<W> w = piece_floats(weight[u]), b = {};
            y = piece_floats(in[u]);
            if (CENTERED) b = piece_floats(bias[u]);
            EACH (i, W) y.v[i] = (y.v[i] - mean[0]) * rstd * w.v[i] + b.v[i];
            if (KIND == FACTOR_PLAIN) store_floats<T, W>((T *)a.out.data + row + column, y);
        }
        if (KIND != FACTOR_PLAIN)
            narrow_store<KIND, T>(a.out, gridDim.x, a.cols, blockIdx.x, column, column < a.cols, y);
    }
}

// --- sums over rows. A block keeps its sums in "slots": a thread's `group` columns are contiguous, and the groups of
// all threads follow each other, so that a warp's accesses fall into 32 different banks.

struct Slots {
    int width, group; // W; columns per group: 4, or 1 if W < 4
    int threads;
    int64_t count; // elements of each array, >= columns
};

// Returns the column of slot i; columns past the row's length are padding.
__device__ __forceinline__ int64_t slot_column_(const Slots &s, int64_t i) {
    int64_t part = i / ((int64_t)s.group * s.threads); // unit * parts + group within the unit
    int64_t thread = i / s.group % s.threads, parts = s.width / s.group;
    return (part / parts * s.threads + thread) * s.width + part % parts * s.group + i % s.group;
}

// Adds the W values of this thread's unit u to their slots.
template <int W> __device__ __forceinline__ void slots_add_(float *slots, int u, const Floats<W> &x) {
    constexpr int G = W >= 4 ? 4 : 1;
    EACH (g, W / G) {
        float *at = slots + ((int64_t)(u * (W / G) + g) * blockDim.x + threadIdx.x) * G;
        Floats<G> sum = load_floats<G>(at);
        EACH (i, G) sum.v[i] += x.v[g * G + i];
        store_floats<float, G>(at, sum);
    }
}

// Adds all blocks' sums of array `blockIdx.y` to `first` or `second`. The blocks are cut into SEGMENTS runs; each run
// is added in block order, then the runs are added in order. So SEGMENTS loads are in flight; a single chain of
// additions would wait for every load.
enum { SEGMENTS = 32 };

__global__ void __launch_bounds__(WARP *SEGMENTS)
    finish_kernel(float *first, float *second, const float *sums, int blocks, int arrays, const Slots slots, int cols) {
    SHARED(float, parts, WARP *SEGMENTS);
    int64_t slot = (int64_t)blockIdx.x * WARP + threadIdx.x;
    float sum = 0.0f;
    int begin = (int)((int64_t)blocks * threadIdx.y / SEGMENTS);
    int end = (int)((int64_t)blocks * (threadIdx.y + 1) / SEGMENTS);
    if (slot < slots.count)
#pragma unroll 8
        for (int b = begin; b < end; b++) sum += sums[((int64_t)b * arrays + blockIdx.y) * slots.count + slot];
    parts[threadIdx.y * WARP + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || slot >= slots.count) return;
    for (int s = 1; s < SEGMENTS; s++) sum += parts[s * WARP + threadIdx.x];
    int64_t column = slot_column_(slots, slot);
    float *to = blockIdx.y == 0 ? first : second;
    if (column < cols) to[column] += sum;
}

void finish_launch_(Backend *be, float *first, float *second, int blocks, const Slots &slots, int64_t cols) {
    CudaBackend *cuda = cuda_self(be);
    int arrays = second ? 2 : 1;
    dim3 grid(launch_blocks(slots.count, WARP), (unsigned)arrays), block(WARP, SEGMENTS);
    CUDA_LAUNCH(be, grid, block, 0, finish_kernel, first, second, (const float *)cuda->scratch, blocks, arrays,
                slots, (int)cols);
}

struct Backward {
    void *dx;
    const void *dout, *x, *w;
    float *sums; // (blocks, 1 or 2 arrays of slots)
    int64_t rows, slots;
    int cols;
    float eps;
    StridedRows at, keep; // layout of dx and dout; layout of x
    bool replace;         // true: dx is overwritten, and may be dout; false: the gradient is added to dx
    bool shared; // true: sums stay in shared memory until the block ends; false (huge rows): in `sums` throughout
};

// The workspace has two halves, each with room for both reductions of a row. Rows alternate between the halves, so a
// fast thread cannot overwrite values that a slower thread still reads.
template <typename T, int W, int UNITS, bool CENTERED, int THREADS>
__global__ void __launch_bounds__(THREADS) norm_backward_kernel(const Backward a) {
    enum { WORKSPACE = 4 * WARP, ARRAYS = CENTERED ? 2 : 1 };
    SHARED(float, workspace, 2 * WORKSPACE);
    SHARED_DYNAMIC(float, dynamic);
    float *kept = a.sums + (int64_t)blockIdx.x * ARRAYS * a.slots;
    float *dw = a.shared ? dynamic : kept, *db = dw + a.slots;
    for (int64_t i = threadIdx.x; i < ARRAYS * a.slots; i += blockDim.x) dw[i] = 0.0f;
    Piece<T, W> weight[UNITS];
    EACH_UNIT (u, column, a.cols) weight[u] = piece_load<W>((const T *)a.w + column);
    __syncthreads();

    int64_t begin = a.rows * blockIdx.x / gridDim.x, end = a.rows * (blockIdx.x + 1) / gridDim.x;
    for (int64_t row = begin; row < end; row++) {
        float *mine = workspace + row % 2 * WORKSPACE;
        // LayerNorm has contiguous rows and always adds to dx. Testing CENTERED at compile time saves registers.
        int64_t at = CENTERED ? row * a.cols : row_begin_(a.at, row, a.cols);
        int64_t keep = CENTERED ? at : row_begin_(a.keep, row, a.cols);
        const bool adds = CENTERED || !a.replace;
        T *dx = (T *)a.dx + at;
        Piece<T, W> x[UNITS], dout[UNITS], old[UNITS];
        EACH_UNIT (u, column, a.cols) {
            x[u] = piece_load<W>((const T *)a.x + keep + column);
            dout[u] = piece_load<W>((const T *)a.dout + at + column);
            if (adds) old[u] = piece_load<W>(dx + column);
        }
        float mean[1] = {0.0f};
        if (CENTERED) {
            EACH_UNIT (u, column, a.cols) {
                Floats<W> value = piece_floats(x[u]);
                EACH (i, W) mean[0] += value.v[i];
            }
            block_sum(mean, mine + 3 * WARP);
            mean[0] /= (float)a.cols;
        }
        float sums[3] = {0.0f, 0.0f, 0.0f}; // sums of (x - mean)^2, g * (x - mean), g
        EACH_UNIT (u, column, a.cols) {
            if (CENTERED) piece_repack(x[u]);
            Floats<W> value = piece_floats(x[u]), upstream = piece_floats(dout[u]), w = piece_floats(weight[u]);
            EACH (i, W) {
                float centered = value.v[i] - mean[0], g = upstream.v[i] * w.v[i];
                sums[0] += centered * centered;
                sums[1] += g * centered;
                if (CENTERED) sums[2] += g;
            }
        }
        block_sum(sums, mine);
        float rstd = 1.0f / sqrtf(sums[0] / (float)a.cols + a.eps);
        float gx_mean = sums[1] * rstd / (float)a.cols, g_mean = sums[2] / (float)a.cols;
        EACH_UNIT (u, column, a.cols) {
            piece_repack(x[u]), piece_repack(dout[u]), piece_repack(weight[u]);
            Floats<W> value = piece_floats(x[u]), upstream = piece_floats(dout[u]), w = piece_floats(weight[u]);
            Floats<W> slope = {}, product;
            if (adds) slope = piece_floats(old[u]);
            EACH (i, W) {
                float xhat = (value.v[i] - mean[0]) * rstd;
                slope.v[i] += rstd * (upstream.v[i] * w.v[i] - g_mean - xhat * gx_mean);
                product.v[i] = upstream.v[i] * xhat;
            }
            store_floats<T, W>(dx + column, slope);
            slots_add_(dw, u, product);
            if (CENTERED) slots_add_(db, u, upstream);
        }
    }
    if (!a.shared) return;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < ARRAYS * a.slots; i += blockDim.x) kept[i] = dynamic[i];
}

// --- launches

template <typename T, bool CENTERED, int KIND>
void norm_forward_launch_(Backend *be, const Forward &a, int64_t rows) {
    bool aligned = aligned_16(a.x, a.delta, a.w, a.b) && aligned_16(a.out.data, a.sum);
    RowPlan plan = row_plan(a.cols, PACK<T>, aligned || KIND != FACTOR_PLAIN);
    FOR_ROW(plan, CUDA_LAUNCH(be, (unsigned)rows, (unsigned)plan.threads, 0,
                              (norm_kernel<T, W, UNITS, CENTERED, KIND>), a));
}

// Returns the number of blocks of a backward: as many as run at once on all multiprocessors, but at most one per row,
// and no more than have room for their sums in scratch. A multiprocessor runs 1,024 threads of 64 registers each, or
// fewer if shared memory limits them.
static int backward_blocks_(const CudaBackend *cuda, int64_t rows, int threads, int64_t sums_bytes) {
    int64_t resident = 1024 / threads, fits = cuda->shared_bytes / (sums_bytes + 1024 + 2048);
    if (resident > fits) resident = fits;
    int64_t blocks = (resident < 1 ? 1 : resident) * cuda->multiprocessors, kept = cuda->scratch_bytes / sums_bytes;
    if (blocks > kept) blocks = kept;
    return (int)(blocks < rows ? blocks : rows);
}

enum { WIDE_THREADS = 640 };

template <typename T, bool CENTERED> void norm_backward_launch_(Backend *be, Backward &a, float *dw, float *db) {
    CudaBackend *cuda = cuda_self(be);
    RowPlan plan = row_plan(a.cols, PACK<T>, aligned_16(a.dx, a.dout, a.x, a.w));
    const int width = plan.units == ROW_SCALAR_UNITS ? 1 : PACK<T>;
    const int64_t units = (a.cols / width + plan.threads - 1) / plan.threads;
    const Slots slots = {width, width >= 4 ? 4 : 1, plan.threads, units * width * plan.threads};
    int64_t bytes = (CENTERED ? 2 : 1) * slots.count * (int64_t)sizeof(float);
    int blocks = backward_blocks_(cuda, a.rows, plan.threads, bytes);
    a.slots = slots.count;
    a.sums = (float *)cuda->scratch;
    a.shared = bytes + 8192 <= cuda->shared_bytes;
    size_t dynamic = a.shared ? (size_t)bytes : 0;
    // LayerNorm with two pieces per thread needs more than 64 registers, the limit for 1,024 threads. Above 512 threads
    // a multiprocessor holds only one block anyway, so blocks of up to 640 threads may use 96 registers per thread.
    if (CENTERED && plan.units == 2 && plan.threads > 512 && plan.threads <= WIDE_THREADS) {
        CUDA_LAUNCH(be, (unsigned)blocks, (unsigned)plan.threads, dynamic,
                    (norm_backward_kernel<T, PACK<T>, 2, true, WIDE_THREADS>), a);
    } else {
        FOR_ROW(plan, CUDA_LAUNCH(be, (unsigned)blocks, (unsigned)plan.threads, dynamic,
                                  (norm_backward_kernel<T, W, UNITS, CENTERED, ROW_THREADS<UNITS>>), a));
    }
    finish_launch_(be, dw, CENTERED ? db : nullptr, blocks, slots, a.cols);
}

static bool norm_refused_(CudaBackend *cuda, int64_t cols) {
    if (cols > ROW_LIMIT) cuda_refuse(cuda, "norms on a GPU support at most 32768 columns; use a smaller model.hidden");
    return cols > ROW_LIMIT;
}

} // namespace

void cuda_norm_forward(Backend *be, Factor out, void *sum, const void *x, const void *delta, const void *w,
                       const void *b, int64_t rows, int64_t cols, double eps) {
    CudaBackend *cuda = cuda_self(be);
    if (norm_refused_(cuda, cols)) return;
    narrow_clear(be, out, rows, cols);
    Forward a = {out, sum, x, delta, w, b, (int)cols, (float)eps, {1, cols}, nullptr, {1, cols}};
    FOR_RESULT(be, out.kind, {
        if (b) norm_forward_launch_<T, true, KIND>(be, a, rows);
        else norm_forward_launch_<T, false, KIND>(be, a, rows);
    });
}

void cuda_norm_backward(Backend *be, void *dx, float *dw, float *db, const void *dout, const void *x,
                        const void *w, int64_t rows, int64_t cols, double eps) {
    CudaBackend *cuda = cuda_self(be);
    if (rows == 0 || norm_refused_(cuda, cols)) return;
    Backward a = {dx, dout, x, w, nullptr, rows, 0, (int)cols, (float)eps, {1, cols}, {1, cols}, false, true};
    FOR_ELEMENT(be, {
        if (db) norm_backward_launch_<T, true>(be, a, dw, db);
        else norm_backward_launch_<T, false>(be, a, dw, nullptr);
    });
}

// --- norms over the heads of q and k: each head is a row within a row of qkv

// Describes the query heads of qkv, or the key heads if `keys`. first: element of their first head in a row of qkv, and
// in a row of kept.
struct HeadRows {
    int64_t rows, first;
    StridedRows at, keep;
};

static HeadRows heads_(const AttentionShape *s, bool keys) {
    const int heads = (int)(keys ? s->kv_heads : s->heads);
    return HeadRows{s->seq * s->batch * heads, keys ? s->heads * s->head_dim : 0, {heads, attention_qkv_width(s)},
                    {heads, (s->heads + s->kv_heads) * s->head_dim}};
}

void cuda_heads_norm_forward(Backend *be, void *qkv, void *kept, const void *wq, const void *wk,
                             const AttentionShape *shape, double eps) {
    CudaBackend *cuda = cuda_self(be);
    if (norm_refused_(cuda, shape->head_dim)) return;
    for (int keys = 0; keys < 2; keys++) {
        const HeadRows heads = heads_(shape, keys);
        Forward a = {};
        a.x = (char *)qkv + heads.first * be->element, a.kept = (char *)kept + heads.first * be->element;
        a.out = factor_plain(a.x), a.w = keys ? wk : wq;
        a.cols = (int)shape->head_dim, a.eps = (float)eps, a.at = heads.at, a.keep = heads.keep;
        FOR_ELEMENT(be, (norm_forward_launch_<T, false, FACTOR_PLAIN>(be, a, heads.rows)));
    }
}

void cuda_heads_norm_backward(Backend *be, void *dqkv, float *dwq, float *dwk, const void *kept, const void *wq,
                              const void *wk, const AttentionShape *shape, double eps) {
    CudaBackend *cuda = cuda_self(be);
    if (norm_refused_(cuda, shape->head_dim)) return;
    for (int keys = 0; keys < 2; keys++) {
        const HeadRows heads = heads_(shape, keys);
        Backward a = {};
        a.dx = (char *)dqkv + heads.first * be->element, a.x = (char *)kept + heads.first * be->element;
        a.dout = a.dx, a.w = keys ? wk : wq, a.rows = heads.rows;
        a.cols = (int)shape->head_dim, a.eps = (float)eps, a.at = heads.at, a.keep = heads.keep, a.replace = true;
        FOR_ELEMENT(be, (norm_backward_launch_<T, false>(be, a, keys ? dwk : dwq, nullptr)));
    }
}

// --- column sums, for the gradients of biases. A block sums 32 pieces of columns (512 contiguous bytes per row) over a
// run of rows. Each of its 8 warps sums every eighth row; the sums of the warps are added in shared memory.

namespace {

enum { STRIP_WARPS = 8 };

template <typename T, int W>
__global__ void __launch_bounds__(WARP *STRIP_WARPS)
    column_sums_kernel(float *sums, const T *x, int64_t rows, int cols) {
    SHARED(float, parts, STRIP_WARPS *WARP *W);
    int column = (blockIdx.x * WARP + threadIdx.x) * W;
    int64_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
    Floats<W> sum = {};
    if (column < cols)
#pragma unroll 4
        for (int64_t row = begin + threadIdx.y; row < end; row += STRIP_WARPS)
            sum += load_floats<W>(x + row * cols + column);
    EACH (i, W) parts[(threadIdx.y * W + i) * WARP + threadIdx.x] = sum.v[i];
    __syncthreads();
    if (threadIdx.y > 0 || column >= cols) return;
    for (int warp = 1; warp < STRIP_WARPS; warp++)
        EACH (i, W) sum.v[i] += parts[(warp * W + i) * WARP + threadIdx.x];
    float *to = sums + (int64_t)blockIdx.y * cols + column;
    EACH (i, W) to[i] = sum.v[i];
}

template <typename T, int W>
void column_sums_launch_(Backend *be, float *sums, const T *x, int64_t rows, int64_t cols) {
    CudaBackend *cuda = cuda_self(be);
    int64_t strips = launch_blocks(cols / W, WARP), runs = (8 * cuda->multiprocessors + strips - 1) / strips;
    int64_t kept = cuda->scratch_bytes / (cols * (int64_t)sizeof(float));
    if (runs > kept) runs = kept;
    if (runs > rows) runs = rows;
    dim3 grid((unsigned)strips, (unsigned)runs), block(WARP, STRIP_WARPS);
    CUDA_LAUNCH(be, grid, block, 0, (column_sums_kernel<T, W>), (float *)cuda->scratch, x, rows, (int)cols);
    finish_launch_(be, sums, nullptr, (int)runs, Slots{1, 1, (int)cols, cols}, cols);
}

} // namespace

void cuda_column_sums(Backend *be, float *sums, const void *x, int64_t rows, int64_t cols) {
    if (rows == 0) return;
    FOR_WIDTH(be, cols % PACK<T> == 0 && aligned_16(x),
              (column_sums_launch_<T, W>(be, sums, (const T *)x, rows, cols)));
}
