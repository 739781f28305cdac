// AdamW (Loshchilov & Hutter 2019), the elementwise passes of Muon and the squared norms of the gradients, over all
// tensors of a stage in one or two launches. Tensors are cut into runs of at most RUN elements, one block per
// run, so many small tensors keep the device as busy as a single large tensor. A block finds its tensor by binary
// search in the table of first runs: a dozen reads from L2, while the update of a run moves half a megabyte.
//
// A run never spans two tensors, so the bits of a tensor's norm do not depend on the tensors next to it.
#include "backend/adamw.h"
#include "base/units.h"
#include "row.cuh"

namespace {

enum { THREADS = 256, RUN = 1 << 14 };

struct TensorEntry {
    void *weight;
    float *master, *m, *v, *gradient; // master: the fp32 weight; weight is NULL if the master is the only copy
    int64_t count, first_run;
    int decay, aligned, written;
    float scale;
};

// Returns the largest number of tensors per launch. The table fills half of the scratch; norms use the other half.
static int64_t table_limit_(const CudaBackend *cuda) { return cuda->scratch_bytes / 2 / (int64_t)sizeof(TensorEntry); }

struct FoundRun {
    const TensorEntry *entry;
    int64_t begin, end; // elements
};

__device__ __forceinline__ FoundRun find_run_(const TensorEntry *entries, int count, int64_t run) {
    int low = 0, high = count - 1; // finds the last entry with first_run <= run; its tensor is not empty
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (entries[middle].first_run <= run) low = middle;
        else high = middle - 1;
    }
    const TensorEntry *entry = entries + low;
    int64_t begin = (run - entry->first_run) * RUN, end = begin + RUN;
    return FoundRun{entry, begin, end < entry->count ? end : entry->count};
}

// --- the passes over all elements: AdamW's update, the update of a matrix whose direction Muon has left in the
// gradient, and Muon's momentum

enum TensorPass { ADAMW, MUON, MOMENTUM };

// In AdamW's pass four loads of W floats are in flight before the first is used. With bf16 weights W is 8, so that the
// store of the weights is 16 bytes wide too.
template <typename T, TensorPass PASS, int W>
__device__ __forceinline__ void update_piece_(const TensorEntry &t, int64_t at, const AdamwCoefficients &c,
                                              float decay) {
    Floats<W> g = load_floats<W>(t.gradient + at), m = {}, v = {}, w = {};
    if (PASS != MUON) m = load_floats<W>(t.m + at);
    if (PASS == ADAMW) v = load_floats<W>(t.v + at);
    if (PASS != MOMENTUM) w = load_floats<W>(t.master + at);
    EACH (i, W) {
        float scaled = g.v[i] * c.gradient_scale, change = c.lr * t.scale * g.v[i];
        if (PASS != MUON) m.v[i] = c.beta1 * m.v[i] + c.rest1 * scaled;
        if (PASS == ADAMW) {
            v.v[i] = c.beta2 * v.v[i] + c.rest2 * (scaled * scaled);
            change = c.rate * m.v[i] / (sqrtf(v.v[i]) * c.root_scale + c.eps);
        }
        w.v[i] -= change + decay * w.v[i];
        g.v[i] = PASS == MOMENTUM ? c.beta1 * m.v[i] + c.rest1 * scaled : 0.0f;
    }
    if (PASS == MOMENTUM || !t.written) store_floats<float, W>(t.gradient + at, g);
    if (PASS != MUON) store_floats<float, W>(t.m + at, m);
    if (PASS == ADAMW) store_floats<float, W>(t.v + at, v);
    if (PASS == MOMENTUM) return;
    store_floats<float, W>(t.master + at, w);
    if (t.weight) store_floats<T, W>((T *)t.weight + at, w);
}

template <typename T, TensorPass PASS>
__device__ __forceinline__ void update_run_(const FoundRun &run, const AdamwCoefficients &c) {
    constexpr int W = PACK<T>;
    const TensorEntry t = *run.entry;
    float decay = t.decay ? c.decay : 0.0f;
    int64_t whole = run.begin + (t.aligned ? (run.end - run.begin) / W * W : 0);
    for (int64_t at = run.begin + threadIdx.x * W; at < whole; at += THREADS * W)
        update_piece_<T, PASS, W>(t, at, c, decay);
    for (int64_t at = whole + threadIdx.x; at < run.end; at += THREADS) update_piece_<T, PASS, 1>(t, at, c, decay);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    adamw_kernel(const TensorEntry *entries, int count, const AdamwCoefficients c) {
    FoundRun run = find_run_(entries, count, blockIdx.x);
    if (run.entry->v) update_run_<T, ADAMW>(run, c);
    else update_run_<T, MUON>(run, c);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    momentum_kernel(const TensorEntry *entries, int count, const AdamwCoefficients c) {
    update_run_<T, MOMENTUM>(find_run_(entries, count, blockIdx.x), c);
}

// --- squared norms, in double. A run is summed as a tree that depends only on the run's length. The sums of a
// tensor's runs are added as a tree that depends only on the number of runs.

template <int W> __device__ __forceinline__ void add_squares_(double &sum, const float *x) {
    Floats<W> value = load_floats<W>(x);
    EACH (i, W) sum += (double)value.v[i] * (double)value.v[i];
}

// Returns the sum of x over the block, valid in thread 0.
__device__ __forceinline__ double block_sum_double_(double x, double *workspace) {
    for (int lane = WARP / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(ALL_LANES, x, lane);
    if (threadIdx.x % WARP == 0) workspace[threadIdx.x / WARP] = x;
    __syncthreads();
    double sum = 0.0;
    if (threadIdx.x == 0)
        for (int warp = 0; warp < THREADS / WARP; warp++) sum += workspace[warp];
    return sum;
}

// A thread adds the same elements in the same order whether it loads four at once or one at a time, so the alignment of
// a tensor does not change a bit of its norm.
__global__ void __launch_bounds__(THREADS) squares_kernel(double *sums, const TensorEntry *entries, int count) {
    SHARED(double, workspace, THREADS / WARP);
    enum { W = 4 };
    FoundRun run = find_run_(entries, count, blockIdx.x);
    const float *x = run.entry->gradient;
    double sum = 0.0;
    int64_t whole = run.begin + (run.end - run.begin) / W * W;
    if (run.entry->aligned) {
#pragma unroll 4
        for (int64_t at = run.begin + threadIdx.x * W; at < whole; at += THREADS * W) add_squares_<W>(sum, x + at);
    } else {
        for (int64_t at = run.begin + threadIdx.x * W; at < whole; at += THREADS * W)
            for (int i = 0; i < W; i++) add_squares_<1>(sum, x + at + i);
    }
    if (whole + threadIdx.x < run.end) add_squares_<1>(sum, x + whole + threadIdx.x);
    sum = block_sum_double_(sum, workspace);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS) norms_kernel(double *norms, const double *sums, const TensorEntry *entries) {
    SHARED(double, workspace, THREADS / WARP);
    const TensorEntry *t = entries + blockIdx.x;
    int64_t runs = (t->count + RUN - 1) / RUN;
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < runs; i += THREADS) sum += sums[t->first_run + i];
    sum = block_sum_double_(sum, workspace);
    if (threadIdx.x == 0) norms[blockIdx.x] = sum;
}

// --- the table, a few kilobytes, built for each call and copied in stream order.

constexpr int64_t TABLE_PIECE = 256;

static TensorEntry entry_make_(const AdamwTensor *t, int64_t first_run, int64_t weight_bytes) {
    TensorEntry e = {};
    e.master = t->master ? t->master : (float *)t->weight;
    e.weight = t->master ? t->weight : nullptr;
    e.m = t->m, e.v = t->v, e.gradient = t->gradient, e.count = t->count, e.first_run = first_run;
    e.decay = t->decay, e.written = t->written, e.scale = (float)t->scale;
    // With bf16 weights a thread accesses eight floats at once, so the fp32 arrays need an alignment of 32 bytes.
    uintptr_t floats = (uintptr_t)e.master | (uintptr_t)e.m | (uintptr_t)e.v | (uintptr_t)e.gradient;
    e.aligned = (floats & (weight_bytes == 2 ? 31 : 15)) == 0 && ((uintptr_t)e.weight & 15) == 0;
    return e;
}

// Copies the entries of `count` tensors to the scratch. Returns the total number of runs.
static int64_t table_upload_(CudaBackend *cuda, const AdamwTensor *tensors, int64_t count) {
    TensorEntry piece[TABLE_PIECE];
    int64_t runs = 0;
    for (int64_t begin = 0; begin < count; begin += TABLE_PIECE) {
        int64_t n = count - begin < TABLE_PIECE ? count - begin : TABLE_PIECE;
        for (int64_t i = 0; i < n; i++) {
            piece[i] = entry_make_(&tensors[begin + i], runs, cuda->backend.element);
            runs += (tensors[begin + i].count + RUN - 1) / RUN;
        }
        cuda->backend.upload(&cuda->backend, (TensorEntry *)cuda->scratch + begin, piece, n * (int64_t)sizeof *piece);
    }
    return runs;
}

} // namespace

static void update_all_(Backend *be, const AdamwTensor *tensors, int64_t tensor_count, const AdamwStep *step,
                        bool momentum) {
    CudaBackend *cuda = cuda_self(be);
    const TensorEntry *entries = (const TensorEntry *)cuda->scratch;
    AdamwCoefficients c = adamw_coefficients(step);
    for (int64_t begin = 0; begin < tensor_count; begin += table_limit_(cuda)) {
        int64_t count = min_i64(tensor_count - begin, table_limit_(cuda));
        unsigned runs = (unsigned)table_upload_(cuda, tensors + begin, count);
        FOR_ELEMENT(be, {
            if (momentum) CUDA_LAUNCH(be, runs, THREADS, 0, (momentum_kernel<T>), entries, (int)count, c);
            else CUDA_LAUNCH(be, runs, THREADS, 0, (adamw_kernel<T>), entries, (int)count, c);
        });
    }
}

void cuda_adamw(Backend *be, const AdamwTensor *tensors, int64_t tensor_count, const AdamwStep *step) {
    update_all_(be, tensors, tensor_count, step, false);
}

void cuda_momentum(Backend *be, const AdamwTensor *tensors, int64_t tensor_count, double beta, double gradient_scale) {
    const AdamwStep step = {0, beta, 0, 0, 0, gradient_scale, 1};
    update_all_(be, tensors, tensor_count, &step, true);
}

// Half of the scratch holds a double per tensor and per run: 2 million doubles, enough for 34e9 elements.
void cuda_squared_norms(Backend *be, double *out, const AdamwTensor *tensors, int64_t tensor_count) {
    CudaBackend *cuda = cuda_self(be);
    const TensorEntry *entries = (const TensorEntry *)cuda->scratch;
    double *norms = (double *)((char *)cuda->scratch + cuda->scratch_bytes / 2);
    for (int64_t begin = 0; begin < tensor_count; begin += table_limit_(cuda)) {
        int64_t count = min_i64(tensor_count - begin, table_limit_(cuda));
        int64_t runs = table_upload_(cuda, tensors + begin, count);
        double *sums = norms + count;
        if ((count + runs) * (int64_t)sizeof(double) > cuda->scratch_bytes / 2) {
            cuda_refuse(cuda, "gradient norms of more than 30e9 elements per GPU are unsupported; use more GPUs");
            return;
        }
        CUDA_LAUNCH(be, (unsigned)runs, THREADS, 0, squares_kernel, sums, entries, (int)count);
        CUDA_LAUNCH(be, (unsigned)count, THREADS, 0, norms_kernel, norms, (const double *)sums, entries);
        cuda_note(cuda,
                  cudaMemcpyAsync(out + begin, norms, (size_t)count * sizeof *norms, cudaMemcpyDeviceToHost,
                                  cuda_compute(cuda)),
                  "norms of gradients");
        cuda_note(cuda, cudaStreamSynchronize(cuda_compute(cuda)), "norms of gradients");
    }
}
