// How kernels access memory: W elements of T at a time, converted to fp32 for arithmetic. W elements fill 16 bytes
// (PACK<T>), the widest access; W is 1 if a pointer or the length of a row does not allow that.
//
// Bandwidth needs bytes in flight: 4 TB/s with a latency of about 700 ns needs 3 MB, or 20 to 25 KB per multiprocessor.
// With 1,024 resident threads, a 16-byte load in flight per thread is 16 KB. So each thread issues two or more loads
// before the first use: a separate loop loads complete Pieces ahead of the arithmetic.
#pragma once

#include "../launch.cuh"

#include <cuda_bf16.h>
#include <string.h>

template <typename T> constexpr int PACK = 16 / (int)sizeof(T);

// Runs the statement for a thread's PIECES pieces, THREADS pieces apart from element `base` on, that begin below
// `count`; `at` is the first element of piece k.
#define EACH_PIECE(k, at, base, count)                                                                                 \
    EACH (k, PIECES)                                                                                                   \
        if (const int64_t at = (base) + (int64_t)k * THREADS * W; at < (count))

// W elements as laid out in memory, loaded by one access. They are stored as words, because the compiler would give
// each bf16 of an array its own register.
template <typename T, int W> struct alignas(sizeof(T) * W) Piece { unsigned word[W * sizeof(T) / 4]; };
template <typename T> struct Piece<T, 1> { T element; };

template <int W, typename T> __device__ __forceinline__ Piece<T, W> piece_load(const T *from) {
    CHECK_ALIGNED(from, sizeof(Piece<T, W>));
    return *reinterpret_cast<const Piece<T, W> *>(from);
}

template <typename T, int W> __device__ __forceinline__ void piece_store(T *to, const Piece<T, W> &piece) {
    CHECK_ALIGNED(to, sizeof(Piece<T, W>));
    *reinterpret_cast<Piece<T, W> *>(to) = piece;
}

// Hides from the compiler that the piece is unchanged. Otherwise the compiler would keep the unpacked floats, twice the
// registers, while the block waits at a barrier. Unpacking again costs one operation per element.
template <typename T, int W> __device__ __forceinline__ void piece_repack(Piece<T, W> &piece) {
#pragma unroll
    for (int i = 0; i < (int)(W * sizeof(T) / 4); i++) OPAQUE(piece.word[i]);
}
template <typename T> __device__ __forceinline__ void piece_repack(Piece<T, 1> &) {}

template <int W> struct Floats {
    float v[W];
    __device__ __forceinline__ void operator+=(const Floats &x) {
        EACH (i, W) v[i] += x.v[i];
    }
};

template <typename T, int W> __device__ __forceinline__ Floats<W> piece_floats(const Piece<T, W> &piece) {
    Floats<W> out;
    if constexpr (W == 1 && sizeof(T) == 4) out.v[0] = piece.element;
    else if constexpr (W == 1) out.v[0] = __bfloat162float(piece.element);
    else if constexpr (sizeof(T) == 4)
        EACH (i, W) out.v[i] = __uint_as_float(piece.word[i]);
    else
        EACH (i, W / 2) {
            out.v[2 * i] = __uint_as_float(piece.word[i] << 16);
            out.v[2 * i + 1] = __uint_as_float(piece.word[i] & 0xffff0000u);
        }
    return out;
}

// Rounds to nearest even.
template <typename T, int W> __device__ __forceinline__ Piece<T, W> piece_round(const Floats<W> &x) {
    Piece<T, W> out;
    if constexpr (W == 1 && sizeof(T) == 4) out.element = x.v[0];
    else if constexpr (W == 1) out.element = __float2bfloat16_rn(x.v[0]);
    else if constexpr (sizeof(T) == 4)
        EACH (i, W) out.word[i] = __float_as_uint(x.v[i]);
    else
        EACH (i, W / 2) {
            __nv_bfloat162 pair = __floats2bfloat162_rn(x.v[2 * i], x.v[2 * i + 1]);
            memcpy(&out.word[i], &pair, sizeof pair);
        }
    return out;
}

template <int W, typename T> __device__ __forceinline__ Floats<W> load_floats(const T *from) {
    return piece_floats<T, W>(piece_load<W>(from));
}

template <typename T, int W> __device__ __forceinline__ void store_floats(T *to, const Floats<W> &x) {
    piece_store<T, W>(to, piece_round<T, W>(x));
}

// Returns the sum of pieces 0 .. count - 1, added in this order; at(j) is the address of piece j.
template <typename T, int W, typename At> __device__ __forceinline__ Floats<W> sum_pieces(int count, At at) {
    enum { AHEAD = 4 }; // loads in flight per thread
    Floats<W> sum = {};
    for (int first = 0; first < count; first += AHEAD) {
        Piece<T, W> piece[AHEAD];
        EACH (j, AHEAD)
            if (first + j < count) piece[j] = piece_load<W>(at(first + j));
        EACH (j, AHEAD) {
            if (first + j >= count) continue;
            const Floats<W> x = piece_floats(piece[j]);
            EACH (i, W) sum.v[i] = first + j == 0 ? x.v[i] : sum.v[i] + x.v[i];
        }
    }
    return sum;
}

// Returns whether every pointer allows 16-byte accesses; NULL counts as aligned.
static inline bool aligned_16(const void *a, const void *b = nullptr, const void *c = nullptr, const void *d = nullptr,
                              const void *e = nullptr) {
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | (uintptr_t)e) & 15) == 0;
}

// The given statements in a block that begins with the declarations.
#define WITH(declarations, ...)                                                                                        \
    {                                                                                                                  \
        declarations;                                                                                                  \
        __VA_ARGS__;                                                                                                   \
    }

// Runs the given statements with T as the element type of the run.
#define FOR_ELEMENT(be, ...)                                                                                           \
    do {                                                                                                               \
        if (cuda_is_bf16(be)) WITH(using T = __nv_bfloat16, __VA_ARGS__)                                               \
        else WITH(using T = float, __VA_ARGS__)                                                                        \
    } while (0)

// Runs the given statements with W, the number of elements per access: 16 bytes of T if `fits`, else one element.
#define FOR_PIECES(fits, ...)                                                                                          \
    do {                                                                                                               \
        if (fits) WITH(constexpr int W = PACK<T>, __VA_ARGS__)                                                         \
        else WITH(constexpr int W = 1, __VA_ARGS__)                                                                    \
    } while (0)

// Runs the given statements with both T and W.
#define FOR_WIDTH(be, fits, ...) FOR_ELEMENT(be, FOR_PIECES(fits, __VA_ARGS__))
