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

template <int W> struct Floats { float v[W]; };

template <typename T, int W> struct Convert;
template <int W> struct Convert<float, W> {
    __device__ __forceinline__ static Floats<W> floats(const Piece<float, W> &piece) {
        Floats<W> out;
#pragma unroll
        for (int i = 0; i < W; i++) out.v[i] = __uint_as_float(piece.word[i]);
        return out;
    }
    __device__ __forceinline__ static Piece<float, W> round(const Floats<W> &x) {
        Piece<float, W> out;
#pragma unroll
        for (int i = 0; i < W; i++) out.word[i] = __float_as_uint(x.v[i]);
        return out;
    }
};
template <int W> struct Convert<__nv_bfloat16, W> {
    __device__ __forceinline__ static Floats<W> floats(const Piece<__nv_bfloat16, W> &piece) {
        Floats<W> out;
#pragma unroll
        for (int i = 0; i < W / 2; i++) {
            out.v[2 * i] = __uint_as_float(piece.word[i] << 16);
            out.v[2 * i + 1] = __uint_as_float(piece.word[i] & 0xffff0000u);
        }
        return out;
    }
    __device__ __forceinline__ static Piece<__nv_bfloat16, W> round(const Floats<W> &x) {
        Piece<__nv_bfloat16, W> out;
#pragma unroll
        for (int i = 0; i < W / 2; i++) {
            __nv_bfloat162 pair = __floats2bfloat162_rn(x.v[2 * i], x.v[2 * i + 1]);
            memcpy(&out.word[i], &pair, sizeof pair);
        }
        return out;
    }
};
template <> struct Convert<float, 1> {
    __device__ __forceinline__ static Floats<1> floats(const Piece<float, 1> &piece) {
        return Floats<1>{{piece.element}};
    }
    __device__ __forceinline__ static Piece<float, 1> round(const Floats<1> &x) { return Piece<float, 1>{x.v[0]}; }
};
template <> struct Convert<__nv_bfloat16, 1> {
    __device__ __forceinline__ static Floats<1> floats(const Piece<__nv_bfloat16, 1> &piece) {
        return Floats<1>{{__bfloat162float(piece.element)}};
    }
    __device__ __forceinline__ static Piece<__nv_bfloat16, 1> round(const Floats<1> &x) {
        return Piece<__nv_bfloat16, 1>{__float2bfloat16_rn(x.v[0])};
    }
};

template <typename T, int W> __device__ __forceinline__ Floats<W> piece_floats(const Piece<T, W> &piece) {
    return Convert<T, W>::floats(piece);
}

// Rounds to nearest even.
template <typename T, int W> __device__ __forceinline__ Piece<T, W> piece_round(const Floats<W> &x) {
    return Convert<T, W>::round(x);
}

template <int W, typename T> __device__ __forceinline__ Floats<W> load_floats(const T *from) {
    return piece_floats<T, W>(piece_load<W>(from));
}

template <typename T, int W> __device__ __forceinline__ void store_floats(T *to, const Floats<W> &x) {
    piece_store<T, W>(to, piece_round<T, W>(x));
}

// Returns whether every pointer allows 16-byte accesses; NULL counts as aligned.
static inline bool aligned_16(const void *a, const void *b = nullptr, const void *c = nullptr, const void *d = nullptr,
                              const void *e = nullptr) {
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | (uintptr_t)e) & 15) == 0;
}

// Runs the given statements with T as the element type of the run.
#define FOR_ELEMENT(backend, ...)                                                                                      \
    do {                                                                                                               \
        if (cuda_is_bf16(backend)) {                                                                                   \
            using T = __nv_bfloat16;                                                                                   \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            using T = float;                                                                                           \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

// Runs the given statements with W, the number of elements per access: 16 bytes of T if `fits`, else one element.
#define FOR_PIECES(fits, ...)                                                                                          \
    do {                                                                                                               \
        if (fits) {                                                                                                    \
            constexpr int W = PACK<T>;                                                                                 \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            constexpr int W = 1;                                                                                       \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

// Runs the given statements with both T and W.
#define FOR_WIDTH(backend, fits, ...) FOR_ELEMENT(backend, FOR_PIECES(fits, __VA_ARGS__))
