// Latent attention: queries, keys and values of attention from the products of the latent rows, and back. One thread
// for an element of a head; the loads of a warp are consecutive except in the few rotated dimensions.
#include "vector.cuh"

namespace {

enum { THREADS = 256 };

struct Latent {
    int heads, nope, rope, value;
    float scale;
};

Latent latent_(const LatentShape *s) {
    return Latent{(int)s->heads, (int)s->nope, (int)s->rope, (int)s->value, (float)s->scale};
}

// The place in a product's rotated part of element i in the order of `rope`.
__device__ __forceinline__ int pair_(int i, int width) { return i < width / 2 ? 2 * i : 2 * (i - width / 2) + 1; }

template <typename T> __device__ __forceinline__ float load_(const T *from) { return load_floats<1>(from).v[0]; }
template <typename T> __device__ __forceinline__ void store_(T *to, float x) { store_floats<T, 1>(to, Floats<1>{{x}}); }

// A block handles one row.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    latent_join_kernel(T *qkv, const T *q, const T *kv, const T *shared, const Latent l) {
    const int wide = l.nope + l.rope, both = l.nope + l.value;
    const int64_t row = blockIdx.x;
    const T *others = kv + row * l.heads * both, *queries = q + row * l.heads * wide, *turned = shared + row * l.rope;
    T *out = qkv + row * l.heads * 3 * wide;
    for (int at = threadIdx.x; at < l.heads * wide; at += THREADS) {
        const int h = at / wide, i = at - h * wide;
        const int from = i < l.rope ? l.nope + pair_(i, l.rope) : i - l.rope;
        const T *other = others + (int64_t)h * both;
        store_(out + at, l.scale * load_(queries + h * wide + from));
        out[l.heads * wide + at] = i < l.rope ? turned[pair_(i, l.rope)] : other[i - l.rope];
        store_(out + 2 * l.heads * wide + at, i < l.value ? load_(other + l.nope + i) : 0.0f);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    latent_split_kernel(T *dq, T *dkv, T *dshared, const T *dqkv, const Latent l) {
    const int wide = l.nope + l.rope, both = l.nope + l.value;
    const int64_t row = blockIdx.x;
    const T *in = dqkv + row * l.heads * 3 * wide, *keys = in + l.heads * wide, *values = keys + l.heads * wide;
    for (int at = threadIdx.x; at < l.heads * wide; at += THREADS) {
        const int h = at / wide, i = at - h * wide;
        const int to = i < l.rope ? l.nope + pair_(i, l.rope) : i - l.rope;
        store_(dq + row * l.heads * wide + h * wide + to, l.scale * load_(in + at));
    }
    for (int at = threadIdx.x; at < l.heads * both; at += THREADS) {
        const int h = at / both, i = at - h * both;
        dkv[row * l.heads * both + at] = i < l.nope ? keys[h * wide + l.rope + i] : values[h * wide + i - l.nope];
    }
    for (int i = threadIdx.x; i < l.rope; i += THREADS) {
        float sum = 0.0f;
        for (int h = 0; h < l.heads; h++) sum += load_(keys + h * wide + i);
        store_(dshared + row * l.rope + pair_(i, l.rope), sum);
    }
}

} // namespace

void cuda_latent_join(Backend *be, void *qkv, const void *q, const void *kv, const void *shared, int64_t rows,
                      const LatentShape *shape) {
    FOR_ELEMENT(be, CUDA_LAUNCH(be, (unsigned)rows, THREADS, 0, latent_join_kernel<T>, (T *)qkv, (const T *)q,
                                (const T *)kv, (const T *)shared, latent_(shape)));
}

void cuda_latent_split(Backend *be, void *dq, void *dkv, void *dshared, const void *dqkv, int64_t rows,
                       const LatentShape *shape) {
    FOR_ELEMENT(be, CUDA_LAUNCH(be, (unsigned)rows, THREADS, 0, latent_split_kernel<T>, (T *)dq, (T *)dkv, (T *)dshared,
                                (const T *)dqkv, latent_(shape)));
}
