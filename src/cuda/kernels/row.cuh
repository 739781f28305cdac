// Kernels with one block per row: the columns that each thread holds, and sums and maxima over the block.
//
// A row is read once and stays in registers, UNITS pieces of W columns per thread. Unit u of thread t is piece u *
// threads + t, so the 32 pieces of a warp are 512 contiguous bytes. Each statistic needs a barrier, during which a
// block has no loads in flight. Rows of 8,192 bf16 take 512 threads, so two to four blocks share a multiprocessor, and
// one block waits while the others load.
#pragma once

#include "vector.cuh"

enum { WARP = 32, ROW_LIMIT = 32768 }; // ROW_LIMIT: most columns of a row
constexpr unsigned ALL_LANES = 0xffffffffu;

// Rows that do not divide into pieces use the scalar form: up to ROW_SCALAR_UNITS elements per thread, in local memory.
// It is correct but slow; no shipped model has such rows. Its loops over units are not unrolled, because unrolled loops
// make nvcc take 1.5 times as long for norms.
enum { ROW_SCALAR_UNITS = 32 };
template <int UNITS> constexpr int ROW_UNROLL = UNITS == ROW_SCALAR_UNITS ? 1 : 64; // 64: complete unrolling

template <int UNITS> constexpr int ROW_THREADS = UNITS == 1 ? 256 : 1024;

struct RowPlan {
    int units; // units per thread: 1, 2 or 4 pieces of 16 bytes, or ROW_SCALAR_UNITS single elements
    int threads;
};

static inline int row_block_threads(int64_t pieces, int units) {
    int64_t threads = (pieces + units - 1) / units;
    return (int)((threads + WARP - 1) / WARP * WARP);
}

static inline RowPlan row_plan(int64_t cols, int pack, bool aligned) {
    int64_t pieces = cols / pack;
    if (!aligned || cols % pack != 0 || pieces > 4096)
        return RowPlan{ROW_SCALAR_UNITS, cols < 1024 ? row_block_threads(cols, 1) : 1024};
    int units = pieces <= 256 ? 1 : pieces <= 2048 ? 2 : 4;
    return RowPlan{units, row_block_threads(pieces, units)};
}

// Runs the statements that follow with W and UNITS of the plan; T is the element type.
#define FOR_ROW(plan, ...)                                                                                             \
    do {                                                                                                               \
        if ((plan).units == 1) WITH(constexpr int W = PACK<T>; constexpr int UNITS = 1, __VA_ARGS__)                   \
        else if ((plan).units == 2) WITH(constexpr int W = PACK<T>; constexpr int UNITS = 2, __VA_ARGS__)              \
        else if ((plan).units == 4) WITH(constexpr int W = PACK<T>; constexpr int UNITS = 4, __VA_ARGS__)              \
        else WITH(constexpr int W = 1; constexpr int UNITS = ROW_SCALAR_UNITS, __VA_ARGS__)                            \
    } while (0)

// Returns the first column of this thread's unit u. The unit exists if this column is below the row's length.
template <int W> __device__ __forceinline__ int row_column(int u) {
    return (u * (int)blockDim.x + (int)threadIdx.x) * W;
}

// Runs the statement for this thread's units u that begin below `cols`; `column` is the first column of u.
#define EACH_UNIT(u, column, cols)                                                                                     \
    _Pragma("unroll ROW_UNROLL<UNITS>") for (int u = 0; u < UNITS; u++) if (const int column = row_column<W>(u);       \
                                                                            column < (cols))

// --- over a warp: a butterfly leaves the same bits in every lane, since both lanes of a pair add the same two numbers.
template <int N> __device__ __forceinline__ void warp_sum(float (&x)[N]) {
#pragma unroll
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        EACH (n, N) x[n] += __shfl_xor_sync(ALL_LANES, x[n], lane);
}

template <typename T> __device__ __forceinline__ T larger(T a, T b) { return a > b ? a : b; }
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }

// Returns the largest x of the lanes whose numbers differ only in the bits from `first` to below `end`.
template <typename T> __device__ __forceinline__ T warp_largest(T x, int first = 1, int end = WARP) {
#pragma unroll
    for (int lane = first; lane < end; lane *= 2) x = larger(x, __shfl_xor_sync(ALL_LANES, x, lane));
    return x;
}

// --- over a block of full warps, with one barrier each. workspace: N * WARP floats of shared memory, which no other
// code may access between the last barrier before the call and the first barrier after it.
template <int N> __device__ __forceinline__ void block_sum(float (&x)[N], float *workspace) {
    int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    warp_sum(x);
    EACH (n, N)
        if (lane == 0) workspace[n * WARP + threadIdx.x / WARP] = x[n];
    __syncthreads();
    EACH (n, N) x[n] = lane < warps ? workspace[n * WARP + lane] : 0.0f;
    warp_sum(x);
}

__device__ __forceinline__ float block_max(float x, float *workspace) {
    int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    x = warp_largest(x);
    if (lane == 0) workspace[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_largest(lane < warps ? workspace[lane] : -INFINITY);
}
