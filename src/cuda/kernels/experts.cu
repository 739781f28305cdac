// Mixtures of experts: the router, one warp for a row, and the order of rows by expert. No sum or order depends on the
// time at which blocks run, so the only atomics count integers.
#include "row.cuh"

#include <cassert>
#include <cstdint>
#include <math.h>
#include <stdlib.h>
#include <string.h>

namespace {

enum { THREADS = 256 };

// --- router

struct Router {
    const float *logits;
    int experts, chosen, groups, top_groups;
    bool sigmoid, normalize;
    float scale;
};

Router router_(const float *logits, const RouteShape *shape) {
    return Router{logits,         (int)shape->experts, (int)shape->chosen, (int)shape->groups, (int)shape->top_groups,
                  shape->sigmoid, shape->normalize,    (float)shape->scale};
}

// One row: the largest logit and the sum of exp(logit - most), the same in every lane.
struct RouterRow {
    const float *logits;
    float most, sum;
};

__device__ __forceinline__ RouterRow router_row_(const Router &r) {
    RouterRow row = {r.logits + (int64_t)blockIdx.x * r.experts, -INFINITY, 0.0f};
    for (int e = threadIdx.x; e < r.experts; e += WARP) row.most = fmaxf(row.most, row.logits[e]);
    row.most = warp_largest(row.most);
    float sum[1] = {0.0f};
    for (int e = threadIdx.x; e < r.experts; e += WARP) sum[0] += expf(row.logits[e] - row.most);
    warp_sum(sum);
    row.sum = sum[0];
    return row;
}

__device__ __forceinline__ float router_score_(const Router &r, const RouterRow &row, int e) {
    float logit = row.logits[e];
    return r.sigmoid ? 1.0f / (1.0f + expf(-logit)) : expf(logit - row.most) / row.sum;
}

// The key to compare experts by: the logit if it has the same order as the score, else the score.
__device__ __forceinline__ float router_key_(const Router &r, const RouterRow &row, const float *bias, int e) {
    if (!bias && r.groups <= 1) return row.logits[e];
    return router_score_(r, row, e) + (bias ? bias[e] : 0.0f);
}

// A key and its index as one number: a larger key gives a larger number; of equal keys, the lower index does. The sum
// turns -0 into 0. 0 is below all keys.
typedef unsigned long long Ranked;

__device__ __forceinline__ Ranked rank_(float key, int index) {
    unsigned bits = __float_as_uint(key + 0.0f);
    return (Ranked)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | (unsigned)~index;
}

__device__ __forceinline__ int ranked_index_(Ranked x) { return (int)~(unsigned)x; }

// Returns the best expert of [first, last) below `before` in groups whose bit of `open` is set.
__device__ __forceinline__ Ranked router_next_(const Router &r, const RouterRow &row, const float *bias, int first,
                                               int last, unsigned open, Ranked before) {
    const int each = r.experts / r.groups;
    Ranked best = 0;
    for (int e = first + threadIdx.x; e < last; e += WARP) {
        Ranked x = open >> e / each & 1 ? rank_(router_key_(r, row, bias, e), e) : 0;
        if (x < before && x > best) best = x;
    }
    return warp_largest(best);
}

// Returns a bit for each group whose experts can be chosen. Lane g compares group g by the sum of its two best keys.
__device__ __forceinline__ unsigned router_groups_(const Router &r, const RouterRow &row, const float *bias) {
    const int each = r.experts / r.groups;
    Ranked own = 0, last = ~(Ranked)0;
    unsigned open = 0;
    for (int g = 0; g < r.groups; g++) {
        Ranked first = router_next_(r, row, bias, g * each, (g + 1) * each, ALL_LANES, ~(Ranked)0);
        Ranked second = router_next_(r, row, bias, g * each, (g + 1) * each, ALL_LANES, first);
        float key = router_key_(r, row, bias, ranked_index_(first));
        if (second) key += router_key_(r, row, bias, ranked_index_(second));
        if ((int)threadIdx.x == g) own = rank_(key, g);
    }
    for (int i = 0; i < r.top_groups; i++) {
        last = warp_largest(own < last ? own : 0);
        open |= 1u << ranked_index_(last);
    }
    return open;
}

__device__ __forceinline__ bool router_has_nan_(const Router &r, const RouterRow &row, const float *bias) {
    bool found = false;
    for (int e = threadIdx.x; e < r.experts; e += WARP) found |= isnan(router_key_(r, row, bias, e)) != 0;
    return __ballot_sync(ALL_LANES, found) != 0;
}

// The score of chosen expert `threadIdx.x` as the weights use it, and its divisor. Normalized softmax is softmax over
// the chosen logits. Lanes past the last chosen expert get 0.
struct ChosenScore {
    float score, divisor;
};

__device__ __forceinline__ ChosenScore chosen_score_(const Router &r, const RouterRow &row, int expert) {
    const bool softmax = r.normalize && !r.sigmoid, live = (int)threadIdx.x < r.chosen;
    float most = warp_largest(live ? row.logits[expert] : -INFINITY), sum[1] = {0.0f};
    if (live) sum[0] = softmax ? expf(row.logits[expert] - most) : router_score_(r, row, expert);
    ChosenScore own = {sum[0], 1.0f};
    warp_sum(sum);
    if (r.normalize) own.divisor = softmax ? sum[0] : sum[0] + 1e-20f;
    return own;
}

__global__ void __launch_bounds__(WARP)
    route_kernel(int32_t *chosen, float *weights, const float *bias, const Router r) {
    SHARED(int, best, ROUTE_CHOSEN_MAX);
    SHARED(int, list, ROUTE_CHOSEN_MAX);
    const RouterRow row = router_row_(r);
    const bool broken = router_has_nan_(r, row, bias), live = (int)threadIdx.x < r.chosen;
    unsigned open = ALL_LANES;
    if (!broken && r.groups > 1) open = router_groups_(r, row, bias);
    Ranked last = ~(Ranked)0;
    for (int j = 0; j < r.chosen; j++) {
        if (!broken) last = router_next_(r, row, bias, 0, r.experts, open, last);
        if (threadIdx.x == 0) best[j] = broken ? j : ranked_index_(last);
    }
    __syncthreads();
    int next = live ? best[threadIdx.x] : 0, lower = 0;
    for (int j = 0; j < r.chosen; j++) lower += best[j] < next;
    if (live) list[lower] = next; // in ascending order
    __syncthreads();
    const int expert = live ? list[threadIdx.x] : 0;
    const ChosenScore own = chosen_score_(r, row, expert);
    if (!live) return;
    const int64_t at = (int64_t)blockIdx.x * r.chosen + threadIdx.x;
    chosen[at] = expert;
    weights[at] = broken ? NAN : r.scale * own.score / own.divisor;
}

// Writes the gradient through the weights into own (E): of the chosen logits where the weights are softmax over them,
// else of the chosen scores.
__device__ __forceinline__ void weights_backward_(float *own, const Router &r, const RouterRow &row,
                                                  const float *dweights, const int32_t *chosen) {
    const int64_t at = (int64_t)blockIdx.x * r.chosen + threadIdx.x;
    const bool live = (int)threadIdx.x < r.chosen;
    const int expert = live ? chosen[at] : 0;
    const float dweight = live ? dweights[at] : 0.0f;
    const ChosenScore mine = chosen_score_(r, row, expert);
    float dot[1] = {r.normalize && live ? dweight * (mine.score / mine.divisor) : 0.0f};
    warp_sum(dot);
    for (int e = threadIdx.x; e < r.experts; e += WARP) own[e] = 0.0f;
    __syncthreads();
    const float d = r.scale * (dweight - dot[0]) / mine.divisor;
    if (live) own[expert] = r.normalize && !r.sigmoid ? mine.score * d : d;
    __syncthreads();
}

// With sigmoid, share is the gradient with respect to each score divided by the sum of the row's scores.
struct ShareSums {
    float sum, dot;
};

__device__ __forceinline__ ShareSums share_sums_(const Router &r, const RouterRow &row, const float *share) {
    float sum[1] = {0.0f}, dot[1] = {0.0f};
    if (!share || !r.sigmoid) return ShareSums{1.0f, 0.0f};
    for (int e = threadIdx.x; e < r.experts; e += WARP) sum[0] += router_score_(r, row, e);
    warp_sum(sum);
    for (int e = threadIdx.x; e < r.experts; e += WARP) dot[0] += share[e] * (router_score_(r, row, e) / sum[0]);
    warp_sum(dot);
    return ShareSums{sum[0], dot[0]};
}

template <typename T>
__global__ void __launch_bounds__(WARP) route_backward_kernel(T *dlogits, const float *dweights, const int32_t *chosen,
                                                              const float *share, float z, const Router r) {
    SHARED_DYNAMIC(float, own);
    const RouterRow row = router_row_(r);
    const bool logits_direct = r.normalize && !r.sigmoid;
    const float slope = z == 0.0f ? 0.0f : 2.0f * z * (row.most + logf(row.sum));
    weights_backward_(own, r, row, dweights, chosen);
    const ShareSums sums = share_sums_(r, row, share);
    float dot[1] = {0.0f};
    for (int e = threadIdx.x; e < r.experts && !r.sigmoid; e += WARP)
        dot[0] += ((share ? share[e] : 0.0f) + (logits_direct ? 0.0f : own[e])) * router_score_(r, row, e);
    warp_sum(dot);
    for (int e = threadIdx.x; e < r.experts; e += WARP) {
        const float score = router_score_(r, row, e);
        float dscore = share ? (share[e] - sums.dot) / sums.sum : 0.0f, dlogit = logits_direct ? own[e] : 0.0f;
        if (!logits_direct) dscore += own[e];
        dlogit += score * (r.sigmoid ? 1.0f - score : 1.0f) * (dscore - dot[0]);
        if (z != 0.0f) dlogit += slope * (expf(row.logits[e] - row.most) / row.sum);
        store_floats<T, 1>(dlogits + (int64_t)blockIdx.x * r.experts + e, Floats<1>{{dlogit}});
    }
}

__global__ void __launch_bounds__(WARP) balance_kernel(float *dots, const float *share, const Router r) {
    const RouterRow row = router_row_(r);
    float dot[1] = {0.0f};
    if (r.sigmoid) dot[0] = share_sums_(r, row, share).dot;
    for (int e = threadIdx.x; e < r.experts && !r.sigmoid; e += WARP) dot[0] += share[e] * router_score_(r, row, e);
    if (!r.sigmoid) warp_sum(dot);
    if (threadIdx.x == 0) dots[blockIdx.x] = dot[0];
}

__global__ void __launch_bounds__(THREADS)
    bias_kernel(float *bias, float *counts, int64_t count, double mean, float rate) {
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (i >= count) return;
    const double less = mean - (double)counts[i];
    bias[i] += less > 0 ? rate : less < 0 ? -rate : 0.0f;
    counts[i] = 0.0f;
}

// --- the order of rows. A block reads the experts of some rows into shared memory, and each of its threads counts, or
// places, the copies for its own experts in their order.

enum { LIST = 2048 };

struct RoutedRows {
    const int32_t *chosen;
    int64_t rows;         // rows of all blocks
    int k, experts, each; // each: rows of a block
};

RoutedRows copies_(const int32_t *chosen, int64_t rows, const RouteShape *shape) {
    return RoutedRows{chosen, rows, (int)shape->chosen, (int)shape->experts, (int)(LIST / shape->chosen)};
}

// Reads the experts of rows [from, to), at most `each`. Returns their number.
__device__ __forceinline__ int copies_read_(int *list, const RoutedRows &c, int64_t from, int64_t to) {
    if (to > from + c.each) to = from + c.each;
    const int count = to > from ? (int)(to - from) * c.k : 0;
    for (int i = threadIdx.x; i < count; i += THREADS) list[i] = c.chosen[from * c.k + i];
    __syncthreads();
    return count;
}

__device__ __forceinline__ int copies_of_(const int *list, int count, int expert) {
    int found = 0;
#pragma unroll 4
    for (int i = 0; i < count; i++) found += list[i] == expert;
    return found;
}

__global__ void __launch_bounds__(THREADS)
    counts_kernel(unsigned long long *counts, const RoutedRows c, int64_t parts, int blocks) {
    SHARED(int, list, LIST);
    const int64_t part = blockIdx.x / blocks, first = c.rows * part / parts;
    const int count = copies_read_(list, c, first + blockIdx.x % blocks * (int64_t)c.each, c.rows * (part + 1) / parts);
    for (int e = threadIdx.x; e < c.experts; e += THREADS) {
        const int found = copies_of_(list, count, e);
        if (found) atomicAdd(&counts[part * c.experts + e], (unsigned long long)found);
    }
}

// Sets before (experts, blocks) to the copies for each expert in each block of rows.
__global__ void __launch_bounds__(THREADS) block_counts_kernel(int *before, const RoutedRows c) {
    SHARED(int, list, LIST);
    const int count = copies_read_(list, c, blockIdx.x * (int64_t)c.each, c.rows);
    for (int e = threadIdx.x; e < c.experts; e += THREADS)
        before[(int64_t)e * gridDim.x + blockIdx.x] = copies_of_(list, count, e);
}

// Replaces each of `count` numbers by the sum of the preceding numbers. One block; each thread handles a part of them.
__global__ void __launch_bounds__(THREADS) sums_before_kernel(int *x, int64_t count) {
    SHARED(int, sums, 2 * THREADS);
    const int64_t each = (count + THREADS - 1) / THREADS, first = threadIdx.x * each;
    const int64_t last = first + each < count ? first + each : count;
    int own = 0;
    for (int64_t i = first; i < last; i++) own += x[i];
    int *from = sums, *to = sums + THREADS;
    from[threadIdx.x] = own;
    __syncthreads();
    for (int apart = 1; apart < THREADS; apart *= 2) {
        to[threadIdx.x] = from[threadIdx.x] + ((int)threadIdx.x >= apart ? from[threadIdx.x - apart] : 0);
        __syncthreads();
        int *other = from;
        from = to, to = other;
    }
    int sum = from[threadIdx.x] - own;
    for (int64_t i = first; i < last; i++) {
        const int here = x[i];
        x[i] = sum;
        sum += here;
    }
}

__global__ void __launch_bounds__(THREADS) places_kernel(int32_t *place, const int *before, const RoutedRows c) {
    SHARED(int, list, LIST);
    const int64_t row = blockIdx.x * (int64_t)c.each;
    const int count = copies_read_(list, c, row, c.rows);
    for (int e = threadIdx.x; e < c.experts; e += THREADS) {
        int next = before[(int64_t)e * gridDim.x + blockIdx.x];
        for (int i = 0; i < count; i++)
            if (list[i] == e) place[row * c.k + i] = next++;
    }
}

// --- rows moved in pieces of W times 16 bits, as a row may have an odd number of bf16. Pieces are numbered in 32 bits:
// enough for 8 GiB of such rows, and for 64 GiB of others.

template <int W>
__global__ void __launch_bounds__(THREADS)
    scatter_kernel(uint16_t *to, const uint16_t *from, const int32_t *place, unsigned count, unsigned per_row, int k) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, row = i / per_row, column = (i - row * per_row) * W;
    if (i >= count) return;
    const Piece<uint16_t, W> piece = piece_load<W>(from + (int64_t)row * per_row * W + column);
    for (int j = 0; j < k; j++)
        piece_store<uint16_t, W>(to + (int64_t)place[(int64_t)row * k + j] * per_row * W + column, piece);
}

template <int W>
__global__ void __launch_bounds__(THREADS)
    gather_kernel(uint16_t *to, const uint16_t *from, const int32_t *place, unsigned count, unsigned per_row) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, row = i / per_row, column = (i - row * per_row) * W;
    if (i >= count) return;
    piece_store<uint16_t, W>(to + (int64_t)row * per_row * W + column,
                             piece_load<W>(from + (int64_t)place[row] * per_row * W + column));
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    rows_combine_kernel(T *to, const T *from, const int32_t *place, unsigned count, unsigned per_row, int k) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, row = i / per_row, column = (i - row * per_row) * W;
    if (i >= count) return;
    auto copy = [&](int j) { return from + (int64_t)place[(int64_t)row * k + j] * per_row * W + column; };
    store_floats<T, W>(to + (int64_t)row * per_row * W + column, sum_pieces<T, W>(k, copy));
}

bool by_16_bytes_(const void *to, const void *from, int64_t bytes) { return bytes % 16 == 0 && aligned_16(to, from); }

} // namespace

void cuda_route_forward(Backend *be, int32_t *chosen, float *weights, const float *logits, const float *bias,
                        int64_t rows, const RouteShape *shape) {
    CUDA_LAUNCH(be, (unsigned)rows, WARP, 0, route_kernel, chosen, weights, bias, router_(logits, shape));
}

void cuda_route_backward(Backend *be, void *dlogits, const float *dweights, const int32_t *chosen, const float *logits,
                         const float *share, double z, int64_t rows, const RouteShape *shape) {
    FOR_ELEMENT(be, CUDA_LAUNCH(be, (unsigned)rows, WARP, shape->experts * 4, route_backward_kernel<T>, (T *)dlogits,
                                dweights, chosen, share, (float)z, router_(logits, shape)));
}

void cuda_route_balance(Backend *be, double *sum, const float *logits, const float *share, int64_t rows,
                        const RouteShape *shape) {
    CudaBackend *cuda = cuda_self(be);
    const int64_t bytes = rows * (int64_t)sizeof(float);
    float *dots = (float *)cuda->scratch;
    if (bytes > cuda->scratch_bytes) return cuda_refuse(cuda, "too many rows to balance by expert on a GPU");
    CUDA_LAUNCH(be, (unsigned)rows, WARP, 0, balance_kernel, dots, share, router_(logits, shape));
    float *host = (float *)malloc((size_t)bytes);
    memset(host, 0, (size_t)bytes);
    be->download(be, host, dots, bytes);
    *sum = 0;
    for (int64_t row = 0; row < rows; row++) *sum += (double)host[row];
    free(host);
}

void cuda_route_bias(Backend *be, float *bias, float *counts, int64_t count, double mean, double rate) {
    CUDA_LAUNCH(be, launch_blocks(count, THREADS), THREADS, 0, bias_kernel, bias, counts, count, mean, (float)rate);
}

void cuda_route_counts(Backend *be, int64_t *counts, int64_t parts, const int32_t *chosen, int64_t rows,
                       const RouteShape *shape) {
    CudaBackend *cuda = cuda_self(be);
    const RoutedRows copies = copies_(chosen, rows, shape);
    const unsigned blocks = launch_blocks((rows + parts - 1) / parts, copies.each);
    const int64_t bytes = parts * shape->experts * (int64_t)sizeof *counts;
    if (bytes > cuda->scratch_bytes) return cuda_refuse(cuda, "too many experts to count on a GPU");
    be->zero(be, cuda->scratch, bytes);
    CUDA_LAUNCH(be, (unsigned)(parts * blocks), THREADS, 0, counts_kernel, (unsigned long long *)cuda->scratch, copies,
                parts, (int)blocks);
    be->download(be, counts, cuda->scratch, bytes);
}

void cuda_route_places(Backend *be, int32_t *place, const int32_t *chosen, int64_t rows, const RouteShape *shape) {
    CudaBackend *cuda = cuda_self(be);
    const RoutedRows copies = copies_(chosen, rows, shape);
    const unsigned blocks = launch_blocks(rows, copies.each);
    int *before = (int *)cuda->scratch;
    if (shape->experts * blocks * (int64_t)sizeof *before > cuda->scratch_bytes)
        return cuda_refuse(cuda, "too many rows to order by expert on a GPU");
    CUDA_LAUNCH(be, blocks, THREADS, 0, block_counts_kernel, before, copies);
    CUDA_LAUNCH(be, 1u, THREADS, 0, sums_before_kernel, before, shape->experts * blocks);
    CUDA_LAUNCH(be, blocks, THREADS, 0, places_kernel, place, (const int *)before, copies);
}

void cuda_rows_scatter(Backend *be, void *to, const void *from, const int32_t *place, int64_t rows, int64_t k,
                       int64_t bytes) {
    using T = uint16_t;
    FOR_PIECES(by_16_bytes_(to, from, bytes), {
        const int64_t per_row = bytes / (2 * W), count = rows * per_row;
        assert(count <= UINT32_MAX);
        CUDA_LAUNCH(be, launch_blocks(count, THREADS), THREADS, 0, scatter_kernel<W>, (uint16_t *)to,
                    (const uint16_t *)from, place, (unsigned)count, (unsigned)per_row, (int)k);
    });
}

void cuda_rows_gather(Backend *be, void *to, const void *from, const int32_t *place, int64_t count, int64_t bytes) {
    using T = uint16_t;
    FOR_PIECES(by_16_bytes_(to, from, bytes), {
        const int64_t per_row = bytes / (2 * W), pieces = count * per_row;
        assert(pieces <= UINT32_MAX);
        CUDA_LAUNCH(be, launch_blocks(pieces, THREADS), THREADS, 0, gather_kernel<W>, (uint16_t *)to,
                    (const uint16_t *)from, place, (unsigned)pieces, (unsigned)per_row);
    });
}

void cuda_rows_combine(Backend *be, void *to, const void *from, const int32_t *place, int64_t rows, int64_t k,
                       int64_t cols) {
    FOR_WIDTH(be, by_16_bytes_(to, from, cols * (int64_t)sizeof(T)), {
        const int64_t per_row = cols / W, count = rows * per_row;
        CUDA_LAUNCH(be, launch_blocks(count, THREADS), THREADS, 0, (rows_combine_kernel<T, W>), (T *)to,
                    (const T *)from, place, (unsigned)count, (unsigned)per_row, (int)k);
    });
}
