// Elementwise operations: conversions, sums, SwiGLU, GELU. Each thread issues all its 16-byte loads before it computes;
// blocks are many and short, and the hardware balances them.
#include "narrow.cuh"

#include "base/normal.h"

#include <math.h>

namespace {

enum { THREADS = 256 };

// --- out[i] = f(a[i], b[i]), in pieces of W elements: map_kernel gets a count that W divides. The remainder goes one
// element at a time, and so do all elements if a pointer is not aligned.

struct Sum {
    float a = 1, b = 1;
    __device__ float of(float x, float y) const { return a * x + b * y; }
};
struct First {
    __device__ static float of(float a, float) { return a; }
};

// For large negative x, exp overflows to infinity and the quotient is 0. __fdividef also returns 0 for divisors above
// 2^126, where the exact value is below 1e-36.
__device__ __forceinline__ float sigmoid_(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

// (1 + tanh(u)) / 2 = sigmoid_(2u), which avoids the cancellation near tanh(u) = -1.
constexpr float GELU_SLOPE = 2.0f * 0.7978845608f, GELU_CUBE = 0.044715f;
__device__ __forceinline__ float gelu_share_(float x) { return sigmoid_(GELU_SLOPE * (x + GELU_CUBE * x * x * x)); }
struct Gelu {
    __device__ static float of(float x, float) { return x * gelu_share_(x); }
};
struct GeluSlope { // a is the upstream gradient, b is the input x of GELU
    __device__ static float of(float dout, float x) {
        float s = gelu_share_(x);
        return dout * (s + x * s * (1.0f - s) * GELU_SLOPE * (1.0f + 3.0f * GELU_CUBE * x * x));
    }
};

// Pieces of each input per thread. With two pieces, even an operation with only one input has two loads in flight.
enum { PIECES = 2 };

template <typename F, typename To, typename A, typename B, int W>
__global__ void __launch_bounds__(THREADS) map_kernel(To *out, const A *a, const B *b, int64_t count, const F f) {
    int64_t base = ((int64_t)blockIdx.x * PIECES * THREADS + threadIdx.x) * W;
    Piece<A, W> left[PIECES];
    Piece<B, W> right[PIECES];
    EACH_PIECE (p, at, base, count) {
        left[p] = piece_load<W>(a + at);
        if (b) right[p] = piece_load<W>(b + at);
    }
    EACH_PIECE (p, at, base, count) {
        Floats<W> x = piece_floats(left[p]), y = {}, z;
        if (b) y = piece_floats(right[p]);
        EACH (i, W) z.v[i] = f.of(x.v[i], y.v[i]);
        store_floats<To, W>(out + at, z);
    }
}

template <typename F, int W, typename To, typename A, typename B>
void map_launch_(Backend *be, To *out, const A *a, const B *b, int64_t count, F f) {
    CUDA_LAUNCH(be, launch_blocks(count, PIECES * THREADS * W), THREADS, 0, (map_kernel<F, To, A, B, W>), out, a, b,
                count, f);
}

// W elements of the narrowest type fill 16 bytes, so accesses to the other types are at least as wide.
template <typename F, typename To, typename A, typename B>
void pointwise_map_(Backend *be, To *out, const A *a, const B *b, int64_t count, F f = {}) {
    constexpr int W = sizeof(To) < sizeof(A) ? PACK<To> : PACK<A>;
    constexpr uintptr_t MASK = W * (sizeof(To) > sizeof(A) ? sizeof(To) : sizeof(A)) - 1;
    int64_t whole = (((uintptr_t)out | (uintptr_t)a | (uintptr_t)b) & MASK) == 0 ? count / W * W : 0;
    map_launch_<F, W>(be, out, a, b, whole, f);
    map_launch_<F, 1>(be, out + whole, a + whole, b ? b + whole : b, count - whole, f);
}

} // namespace

void cuda_from_float(Backend *be, void *to, const float *from, int64_t count) {
    FOR_ELEMENT(be, (pointwise_map_<First, T, float, float>(be, (T *)to, from, nullptr, count)));
}

void cuda_to_float(Backend *be, float *to, const void *from, int64_t count) {
    FOR_ELEMENT(be, (pointwise_map_<First, float, T, T>(be, to, (const T *)from, nullptr, count)));
}

void cuda_combine(Backend *be, void *out, double a, const void *x, double b, const void *y, int64_t count) {
    const Sum f = {(float)a, (float)b};
    FOR_ELEMENT(be, (pointwise_map_<Sum, T, T, T>(be, (T *)out, (const T *)x, (const T *)y, count, f)));
}

void cuda_accumulate(Backend *be, float *to, const float *from, int64_t count) {
    pointwise_map_<Sum, float, float, float>(be, to, to, from, count);
}

void cuda_accumulate_narrow(Backend *be, float *to, const void *from, int64_t count) {
    FOR_ELEMENT(be, (pointwise_map_<Sum, float, T, float>(be, to, (const T *)from, to, count)));
}

// --- the sum of one block per rank

namespace {

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    sum_blocks_kernel(T *out, const T *own, const T *others, int ranks, int rank, int64_t count) {
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (at >= count) return;
    auto block = [&](int q) { return (q == rank ? own : others + q * count) + at; };
    store_floats<T, W>(out + at, sum_pieces<T, W>(ranks, block));
}

} // namespace

void cuda_sum_blocks(Backend *be, void *out, const void *own, const void *others, int ranks, int rank, int64_t count) {
    FOR_WIDTH(be, aligned_16(out, own, others) && count % PACK<T> == 0,
              CUDA_LAUNCH(be, launch_blocks(count, THREADS * W), THREADS, 0, (sum_blocks_kernel<T, W>), (T *)out,
                          (const T *)own, (const T *)others, ranks, rank, count));
}

void cuda_gelu_forward(Backend *be, void *out, const void *x, int64_t count) {
    FOR_ELEMENT(be, (pointwise_map_<Gelu, T, T, T>(be, (T *)out, (const T *)x, nullptr, count)));
}

void cuda_gelu_backward(Backend *be, void *dx, const void *dout, const void *x, int64_t count) {
    FOR_ELEMENT(be, (pointwise_map_<GeluSlope, T, T, T>(be, (T *)dx, (const T *)dout, (const T *)x, count)));
}

// --- rows: each thread handles one piece of a row. All threads of a block share the row, so the division is uniform.

namespace {

struct RowPlace {
    int64_t row;
    int column;
};

template <int W> __device__ __forceinline__ RowPlace pointwise_place_(int cols) {
    unsigned per_row = ((unsigned)cols / W + THREADS - 1) / THREADS;
    unsigned row = blockIdx.x / per_row;
    return RowPlace{row, (int)((blockIdx.x - row * per_row) * THREADS + threadIdx.x) * W};
}

template <int W> unsigned row_blocks_(int64_t rows, int64_t cols) {
    return (unsigned)(rows * launch_blocks(cols / W, THREADS));
}

template <typename T, int W> __global__ void __launch_bounds__(THREADS) bias_kernel(T *y, const T *bias, int cols) {
    RowPlace at = pointwise_place_<W>(cols);
    if (at.column >= cols) return;
    T *to = y + at.row * cols + at.column;
    Floats<W> x = load_floats<W>(to);
    x += load_floats<W>(bias + at.column);
    store_floats<T, W>(to, x);
}

template <typename T, typename A, int W>
__global__ void __launch_bounds__(THREADS)
    columns_kernel(T *to, int64_t to_cols, const A *from, int64_t from_cols, int cols) {
    RowPlace at = pointwise_place_<W>(cols);
    if (at.column >= cols) return;
    store_floats<T, W>(to + at.row * to_cols + at.column, load_floats<W>(from + at.row * from_cols + at.column));
}

template <typename T, typename A>
void columns_launch_(Backend *be, T *to, int64_t to_cols, const A *from, int64_t from_cols, int64_t rows,
                     int64_t cols) {
    constexpr uintptr_t MASK = PACK<T> * sizeof(A) - 1;
    bool fits = (to_cols | from_cols | cols) % PACK<T> == 0 && aligned_16(to) && ((uintptr_t)from & MASK) == 0;
    FOR_PIECES(fits, CUDA_LAUNCH(be, (row_blocks_<W>(rows, cols)), THREADS, 0, (columns_kernel<T, A, W>), to, to_cols,
                                 from, from_cols, (int)cols));
}

// --- SwiGLU (Shazeer 2020)

template <typename T, int W, int KIND>
__global__ void __launch_bounds__(THREADS)
    swiglu_kernel(const Factor out, const T *gate_up, const float *scale, const int64_t rows, int ffn) {
    RowPlace at = pointwise_place_<W>(ffn);
    Floats<W> y = {};
    if (at.column < ffn) {
        const T *from = gate_up + at.row * 2 * ffn + at.column;
        const Floats<W> gate = load_floats<W>(from), up = load_floats<W>(from + ffn);
        EACH (i, W) y.v[i] = gate.v[i] * sigmoid_(gate.v[i]) * up.v[i];
        if (scale) {
            const float factor = scale[at.row];
            EACH (i, W) y.v[i] *= factor;
        }
        if (KIND == FACTOR_PLAIN) store_floats<T, W>((T *)out.data + at.row * ffn + at.column, y);
    }
    if (KIND != FACTOR_PLAIN) narrow_store<KIND, T>(out, rows, ffn, at.row, at.column, at.column < ffn, y);
}

// Sets the gradients of gate and up for d, the gradient of y = silu(gate) * up. Returns y.
__device__ __forceinline__ float swiglu_slopes_(float *dgate, float *dup, float d, float gate, float up) {
    const float s = sigmoid_(gate), silu = gate * s;
    *dup = d * silu;
    *dgate = d * up * (s + silu * (1.0f - s));
    return silu * up;
}

template <typename T, int W, int KIND>
__global__ void __launch_bounds__(THREADS)
    swiglu_backward_kernel(const Factor dgate_up, const T *dout, const T *gate_up, const int64_t rows, int ffn) {
    RowPlace at = pointwise_place_<W>(ffn);
    bool live = at.column < ffn;
    Floats<W> dgate = {}, dup = {};
    if (live) {
        int64_t in = at.row * 2 * ffn + at.column;
        const Floats<W> gate = load_floats<W>(gate_up + in), up = load_floats<W>(gate_up + in + ffn);
        const Floats<W> dy = load_floats<W>(dout + at.row * ffn + at.column);
        EACH (i, W) swiglu_slopes_(&dgate.v[i], &dup.v[i], dy.v[i], gate.v[i], up.v[i]);
        store_floats<T, W>((T *)dgate_up.source + in, dgate);
        store_floats<T, W>((T *)dgate_up.source + in + ffn, dup);
    }
    if (KIND == FACTOR_PLAIN) return;
    narrow_store<KIND, T>(dgate_up, rows, 2 * ffn, at.row, at.column, live, dgate);
    narrow_store<KIND, T>(dgate_up, rows, 2 * ffn, at.row, ffn + at.column, live, dup);
}

// With a scale, a block computes a whole row, since dscale is a sum over it.
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    swiglu_scaled_backward_kernel(T *dgate_up, float *dscale, const T *dout, const T *gate_up, const float *scale,
                                  int ffn) {
    SHARED(float, workspace, WARP);
    const int64_t row = blockIdx.x, in = row * 2 * ffn;
    const float factor = scale[row];
    float sum[1] = {0.0f};
    for (int column = threadIdx.x * W; column < ffn; column += THREADS * W) {
        const Floats<W> gate = load_floats<W>(gate_up + in + column), up = load_floats<W>(gate_up + in + ffn + column);
        const Floats<W> dy = load_floats<W>(dout + row * ffn + column);
        Floats<W> dgate, dup;
        EACH (i, W) sum[0] += dy.v[i] * swiglu_slopes_(&dgate.v[i], &dup.v[i], dy.v[i] * factor, gate.v[i], up.v[i]);
        store_floats<T, W>(dgate_up + in + column, dgate);
        store_floats<T, W>(dgate_up + in + ffn + column, dup);
    }
    block_sum(sum, workspace);
    if (threadIdx.x == 0) dscale[row] = sum[0];
}

template <typename T>
void swiglu_scaled_backward_(Backend *be, T *dgate_up, float *dscale, const T *dout, const T *gate_up,
                             const float *scale, int64_t rows, int ffn) {
    FOR_PIECES(ffn % PACK<T> == 0 && aligned_16(dgate_up, dout, gate_up),
               CUDA_LAUNCH(be, (unsigned)rows, THREADS, 0, (swiglu_scaled_backward_kernel<T, W>), dgate_up, dscale,
                           dout, gate_up, scale, ffn));
}

} // namespace

void cuda_bias_add(Backend *be, void *y, const void *bias, int64_t rows, int64_t cols) {
    FOR_WIDTH(be, cols % PACK<T> == 0 && aligned_16(y, bias),
              CUDA_LAUNCH(be, (row_blocks_<W>(rows, cols)), THREADS, 0, (bias_kernel<T, W>), (T *)y, (const T *)bias,
                          (int)cols));
}

void cuda_copy_columns(Backend *be, void *to, int64_t to_cols, const void *from, int64_t from_cols, bool wide,
                       int64_t rows, int64_t cols) {
    FOR_ELEMENT(be, {
        if (wide) columns_launch_<T, float>(be, (T *)to, to_cols, (const float *)from, from_cols, rows, cols);
        else columns_launch_<T, T>(be, (T *)to, to_cols, (const T *)from, from_cols, rows, cols);
    });
}

void cuda_swiglu_forward(Backend *be, Factor out, const void *gate_up, const float *scale, int64_t rows, int64_t ffn) {
    bool aligned = aligned_16(out.data, gate_up);
    narrow_clear(be, out, rows, ffn);
    FOR_RESULT(be, out.kind,
               FOR_PIECES(KIND != FACTOR_PLAIN || (aligned && ffn % PACK<T> == 0),
                          CUDA_LAUNCH(be, (row_blocks_<W>(rows, ffn)), THREADS, 0, (swiglu_kernel<T, W, KIND>), out,
                                      (const T *)gate_up, scale, rows, (int)ffn)));
}

// If numbers of both halves (gate and up) would share a scale, a separate pass quantizes dgate_up.
void cuda_swiglu_backward(Backend *be, Factor dgate_up, float *dscale, const void *dout, const void *gate_up,
                          const float *scale, int64_t rows, int64_t ffn) {
    if (scale) {
        FOR_ELEMENT(be, (swiglu_scaled_backward_(be, (T *)dgate_up.source, dscale, (const T *)dout, (const T *)gate_up,
                                                 scale, rows, (int)ffn)));
        return;
    }
    bool aligned = aligned_16(dgate_up.source, dout, gate_up);
    bool apart = dgate_up.kind != FACTOR_PLAIN && ffn % factor_block_cols(dgate_up.kind) != 0;
    narrow_clear(be, dgate_up, rows, 2 * ffn);
    FOR_RESULT(be, apart ? FACTOR_PLAIN : dgate_up.kind,
               FOR_PIECES(KIND != FACTOR_PLAIN || (aligned && ffn % PACK<T> == 0),
                          CUDA_LAUNCH(be, (row_blocks_<W>(rows, ffn)), THREADS, 0, (swiglu_backward_kernel<T, W, KIND>),
                                      dgate_up, (const T *)dout, (const T *)gate_up, rows, (int)ffn)));
    if (apart) cuda_quantize(be, dgate_up, factor_plain(dgate_up.source), rows, 2 * ffn, false);
}

// --- initial weights, drawn on the device with the same bits as base/random.c: base/normal.h uses no operation that a
// GPU rounds differently. A thread draws one block of four normals and writes the values that belong to its row.

namespace {

// blocks: number of blocks of four normals that are drawn for a row, by one thread each. The number suffices even if
// the row begins in the middle of a block.
__global__ void __launch_bounds__(THREADS)
    normal_kernel(float *to, const int64_t rows, const int64_t cols, const int64_t blocks, const NormalRows draw) {
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = at / blocks;
    if (row >= rows) return;
    uint64_t first = draw.first + (uint64_t)row * draw.stride;
    int64_t start = (at % blocks) * NORMAL_LANES - (int64_t)(first % NORMAL_LANES);
    float lanes[NORMAL_LANES];
    normal_block(draw.seed, draw.stream, first / NORMAL_LANES + (uint64_t)(at % blocks), lanes);
    EACH (lane, NORMAL_LANES)
        if (start + lane >= 0 && start + lane < cols) to[row * cols + start + lane] = draw.scale * lanes[lane];
}

} // namespace

void cuda_draw_normal(Backend *be, float *to, int64_t rows, int64_t cols, const NormalRows *draw) {
    int64_t blocks = (cols + 2 * NORMAL_LANES - 2) / NORMAL_LANES;
    CUDA_LAUNCH(be, launch_blocks(rows * blocks, THREADS), THREADS, 0, normal_kernel, to, rows, cols, blocks, *draw);
}
