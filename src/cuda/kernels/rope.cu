// Rotary positions (Su et al. 2021), in place on the query and key heads of qkv.
//
// A block handles one position, or one row if rows have their own positions. Its threads compute each cosine and sine
// of the position once, in double, then rotate every head of every sequence of the batch. A thread always rotates the
// same pairs, so their cosines and sines stay in registers. All accesses to memory are 16 bytes wide, with two loads in
// flight per head.
#include "vector.cuh"

#include <math.h>

namespace {

constexpr int THREADS = 256, PAIRS = 128;

// Radians per position for PAIRS pairs of a head, passed by value: reads of constant memory are free, and computing the
// powers on the device would cost more than the rotation.
struct Frequencies {
    double of[PAIRS];
};

struct Rope {
    int64_t batch, width; // rows per block; elements per row
    int heads, head_dim, first, pairs;
    int half; // from a pair's first element to its second
    float scale, direction;
    const int32_t *positions; // position of each row; NULL: block i is at position place + i
    int64_t place;
};

// Computes an angle's cos and sin: subtracts the nearest multiple of pi/2 (Cody & Waite), then evaluates the Taylor
// series on [-pi/4, pi/4]. The error is below 1e-10 for angles up to a million. The angle is a double, as fp32 would be
// off by 1e-2 at position 200,000. Costs about thirty operations; CUDA's sincos has a slow path in local memory.
__device__ __forceinline__ void rotation_(double angle, float *cosine, float *sine) {
    double quarter = rint(angle * 0.63661977236758134308);
    double r = (angle - quarter * 1.57079632673412561417) - quarter * 6.07710050650619224932e-11;
    double q = r * r;
    double s =
        r + r * q * (-1.0 / 6 + q * (1.0 / 120 + q * (-1.0 / 5040 + q * (1.0 / 362880 + q * (-1.0 / 39916800)))));
    double c =
        1.0 + q * (-0.5 + q * (1.0 / 24 +
                               q * (-1.0 / 720 + q * (1.0 / 40320 + q * (-1.0 / 3628800 + q * (1.0 / 479001600))))));
    int turns = (int)quarter;
    float even = (float)(turns & 1 ? s : c), odd = (float)(turns & 1 ? c : s);
    *cosine = (turns + 1) & 2 ? -even : even;
    *sine = turns & 2 ? -odd : odd;
}

// threadIdx.x: index of a piece of W pairs. threadIdx.y: first head to rotate, counted over all rows of the block.
template <typename T, int W>
__global__ void __launch_bounds__(THREADS) rope_kernel(T *qkv, const Rope rope, const Frequencies frequencies) {
    SHARED(float, cosines, PAIRS);
    SHARED(float, sines, PAIRS);
    double position =
        rope.positions == nullptr ? (double)(rope.place + blockIdx.x) : (double)rope.positions[blockIdx.x];
    for (int pair = threadIdx.y * blockDim.x + threadIdx.x; pair < rope.pairs; pair += blockDim.x * blockDim.y) {
        rotation_(position * frequencies.of[pair], &cosines[pair], &sines[pair]);
        cosines[pair] *= rope.scale;
        sines[pair] *= rope.scale * rope.direction;
    }
    __syncthreads();
    int pair = threadIdx.x * W, half = rope.half;
    if (pair >= rope.pairs) return;
    float c[W], s[W];
    EACH (i, W) c[i] = cosines[pair + i], s[i] = sines[pair + i];
    T *row = qkv + (int64_t)blockIdx.x * rope.batch * rope.width + rope.first + pair;
    for (int item = threadIdx.y; item < rope.batch * rope.heads; item += blockDim.y) {
        T *low = row + item / rope.heads * rope.width + (int64_t)(item % rope.heads) * rope.head_dim;
        const Floats<W> a = load_floats<W>(low), b = load_floats<W>(low + half);
        Floats<W> x, y;
        EACH (i, W) {
            x.v[i] = a.v[i] * c[i] - b.v[i] * s[i];
            y.v[i] = b.v[i] * c[i] + a.v[i] * s[i];
        }
        store_floats<T, W>(low, x);
        store_floats<T, W>(low + half, y);
    }
}

template <typename T, int W>
void rope_launch_(Backend *be, T *qkv, int64_t blocks, const Rope &rope, const Frequencies &frequencies) {
    int across = (rope.pairs + W - 1) / W, most = THREADS / across;
    int64_t items = rope.batch * rope.heads;
    if (items > most) items = most;
    dim3 block((unsigned)across, (unsigned)items);
    CUDA_LAUNCH(be, (unsigned)blocks, block, 0, (rope_kernel<T, W>), qkv, rope, frequencies);
}

} // namespace

void cuda_rope(Backend *be, void *qkv, const AttentionShape *shape, const RopeTable *table, const int32_t *positions,
               int direction) {
    int64_t half = table->pairs, blocks = positions == nullptr ? shape->seq : shape->seq * shape->batch;
    Rope rope = {};
    rope.positions = positions, rope.place = shape->first;
    rope.batch = positions == nullptr ? shape->batch : 1, rope.width = attention_qkv_width(shape);
    rope.heads = (int)(shape->heads + shape->kv_heads), rope.head_dim = (int)shape->head_dim, rope.half = (int)half;
    rope.direction = (float)direction, rope.scale = (float)table->scale;
    for (int64_t first = 0; first < half; first += PAIRS) {
        Frequencies frequencies = {};
        rope.first = (int)first, rope.pairs = (int)(half - first < PAIRS ? half - first : PAIRS);
        for (int i = 0; i < rope.pairs; i++) frequencies.of[i] = table->frequency[first + i];
        FOR_WIDTH(be, half % PACK<T> == 0 && shape->head_dim % PACK<T> == 0 && aligned_16(qkv),
                  (rope_launch_<T, W>(be, (T *)qkv, blocks, rope, frequencies)));
    }
}
