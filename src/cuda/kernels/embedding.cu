// Token and position embeddings. The gradient of the token table is a scatter in a fixed order: rows with the same
// token are added in row order.
//
// Atomic sums would not fix that order. Instead, a first launch records the first and the last row of each token by
// atomic maxima, which give the same result in any order. In the second launch, the block of a token's first row adds
// all rows of the token in order; the other blocks of that token return at once. Most tokens occur only a few times in
// a microbatch, so few blocks look beyond their own row. Such a block reads 4 bytes from L2 for each row that it scans.
#include "vector.cuh"

namespace {

enum { THREADS = 256, WARP = 32, WARPS = THREADS / WARP };

struct Table {
    const int32_t *tokens;
    int64_t rows, hidden, batch, first, count;
};

// Returns the index, in this rank's part of the vocabulary, of the token in `row`; -1 if another rank holds it.
__device__ __forceinline__ int64_t table_token_(const Table &t, int64_t row) {
    int64_t token = t.tokens[row] - t.first;
    return token >= 0 && token < t.count ? token : -1;
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    embedding_kernel(T *x, const T *wte, const T *wpe, const int32_t *positions, const Table t) {
    int64_t row = blockIdx.x, token = table_token_(t, row);
    int64_t at = positions ? positions[row] : row / t.batch;
    const T *from = wte + token * t.hidden, *position = wpe ? wpe + at * t.hidden : nullptr;
    T *to = x + row * t.hidden;
#pragma unroll 4
    for (int64_t column = threadIdx.x * W; column < t.hidden; column += THREADS * W) {
        Floats<W> value = {};
        if (token >= 0) value = load_floats<W>(from + column);
        if (position) value += load_floats<W>(position + column);
        store_floats<T, W>(to + column, value);
    }
}

// The rows of one token, as (rows - first row) and (last row + 1). Zero means that no row has the token.
struct Span {
    int first, last;
};

__global__ void __launch_bounds__(THREADS) spans_kernel(Span *spans, const Table t) {
    int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row >= t.rows) return;
    int64_t token = table_token_(t, row);
    if (token < 0) return;
    atomicMax(&spans[token].first, (int)(t.rows - row));
    atomicMax(&spans[token].last, (int)row + 1);
}

// Adds the rows `base + bit` of dx for every set bit of `matches`, lowest bit first. Four loads are issued before the
// first sum; the sums follow in order.
template <typename T, int W>
__device__ __forceinline__ void add_matches_(Floats<W> &sum, const T *dx, int64_t hidden, int64_t base,
                                             unsigned matches) {
    enum { AHEAD = 4 };
    while (matches) {
        Piece<T, W> piece[AHEAD];
        bool there[AHEAD];
        EACH (k, AHEAD) {
            there[k] = matches != 0;
            if (there[k]) piece[k] = piece_load<W>(dx + (base + __ffs((int)matches) - 1) * hidden);
            matches &= matches - 1;
        }
        EACH (k, AHEAD)
            if (there[k]) sum += piece_floats(piece[k]);
    }
}

// One block per row and part of the columns. A scan step compares THREADS rows; each warp packs its 32 results into one
// word of `matches`.
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    embedding_backward_kernel(float *dwte, const T *dx, const Span *spans, const Table t) {
    SHARED(unsigned, matches, WARPS);
    int64_t row = blockIdx.x, token = table_token_(t, row);
    if (token < 0) return;
    Span span = spans[token];
    if (t.rows - span.first != row) return;
    int64_t column = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * W;
    bool mine = column < t.hidden;
    const T *from = dx + column;
    float *to = dwte + token * t.hidden + column;
    Floats<W> sum = {};
    if (mine) {
        sum = load_floats<W>(to);
        sum += load_floats<W>(from + row * t.hidden);
    }
    for (int64_t base = row + 1; base < span.last; base += THREADS) {
        int64_t other = base + threadIdx.x;
        bool same = other < span.last && t.tokens[other] - t.first == token;
        unsigned found = __ballot_sync(0xffffffffu, same);
        if (threadIdx.x % WARP == 0) matches[threadIdx.x / WARP] = found;
        __syncthreads();
        for (int w = 0; mine && w < WARPS; w++) add_matches_<T, W>(sum, from, t.hidden, base + w * WARP, matches[w]);
        __syncthreads();
    }
    if (mine) store_floats<float, W>(to, sum);
}

// Adds the gradient of one position to dwpe, over the sequences of the batch in order.
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    position_backward_kernel(float *dwpe, const T *dx, int64_t hidden, int64_t batch) {
    int64_t column = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * W, position = blockIdx.x;
    if (column >= hidden) return;
    Floats<W> sum = load_floats<W>(dwpe + position * hidden + column);
#pragma unroll 4
    for (int64_t b = 0; b < batch; b++) sum += load_floats<W>(dx + (position * batch + b) * hidden + column);
    store_floats<float, W>(dwpe + position * hidden + column, sum);
}

template <typename T, int W> void scatter_launch_(Backend *be, float *to, const T *dx, const Table &t) {
    CudaBackend *cuda = cuda_self(be);
    Span *spans = (Span *)cuda->scratch;
    cuda_note(cuda, cudaMemsetAsync(spans, 0, (size_t)t.count * sizeof *spans, cuda_compute(cuda)), "embedding");
    CUDA_LAUNCH(be, launch_blocks(t.rows, THREADS), THREADS, 0, spans_kernel, spans, t);
    dim3 grid((unsigned)t.rows, launch_blocks(t.hidden, THREADS * W));
    CUDA_LAUNCH(be, grid, THREADS, 0, (embedding_backward_kernel<T, W>), to, dx, spans, t);
}

template <typename T, int W>
void embedding_backward_launch_(Backend *be, float *dwte, float *dwpe, int64_t places, const T *dx,
                                const int32_t *positions, const Table &t) {
    Table by_position = {positions, t.rows, t.hidden, t.batch, 0, places};
    dim3 grid((unsigned)(t.rows / t.batch), launch_blocks(t.hidden, THREADS * W));
    scatter_launch_<T, W>(be, dwte, dx, t);
    if (dwpe && positions) scatter_launch_<T, W>(be, dwpe, dx, by_position);
    else if (dwpe) CUDA_LAUNCH(be, grid, THREADS, 0, (position_backward_kernel<T, W>), dwpe, dx, t.hidden, t.batch);
}

} // namespace

void cuda_embedding_forward(Backend *be, void *x, const int32_t *tokens, const int32_t *positions, const void *wte,
                            const void *wpe, int64_t rows, int64_t hidden, int64_t batch, int64_t first,
                            int64_t count) {
    Table t = {tokens, rows, hidden, batch, first, count};
    FOR_WIDTH(be, hidden % PACK<T> == 0 && aligned_16(x, wte, wpe),
              CUDA_LAUNCH(be, (unsigned)rows, THREADS, 0, (embedding_kernel<T, W>), (T *)x, (const T *)wte,
                          (const T *)wpe, positions, t));
}

void cuda_embedding_backward(Backend *be, float *dwte, float *dwpe, int64_t places, const void *dx,
                             const int32_t *tokens, const int32_t *positions, int64_t rows, int64_t hidden,
                             int64_t batch, int64_t first, int64_t count) {
    CudaBackend *cuda = cuda_self(be);
    Table t = {tokens, rows, hidden, batch, first, count};
    if (rows == 0) return;
    int64_t largest = dwpe && positions && places > count ? places : count;
    if (largest * (int64_t)sizeof(Span) > cuda->scratch_bytes || rows >= INT32_MAX) {
        cuda_refuse(cuda, count < largest
                              ? "embedding: a GPU supports at most 4 million positions; use a shorter seq_len"
                              : "embedding: a GPU supports at most 4 million vocabulary rows; use more tensor "
                                "ranks");
        return;
    }
    // dwte and dwpe are always fp32. PACK<T> elements are 16 bytes in an fp32 run, 32 bytes (two accesses) in bf16.
    FOR_WIDTH(be,
              hidden % PACK<T> == 0 && aligned_16(dwte, dwpe, dx) &&
                  (((uintptr_t)dwte | (uintptr_t)dwpe) & (4 * PACK<T> - 1)) == 0,
              (embedding_backward_launch_<T, W>(be, dwte, dwpe, places, (const T *)dx, positions, t)));
}
