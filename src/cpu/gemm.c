// The matrix product everything on the CPU stands on: one thread, packed panels, a kernel that keeps a block of C in
// registers (the scheme of Goto & van de Geijn 2008 and BLIS). The kernel is written in vector extensions, so that one
// source serves AVX-512, AVX2, SSE and NEON at the width the compiler is told.
//
// op(A) is cut into panels of MR rows, op(B) into panels of NR columns; a panel stores, for each k, its MR (NR) elements
// side by side, so that the kernel streams both. Packing also undoes transposition and widens bf16, so the kernel
// knows neither. All sums over k run in one order that depends on k alone.
#include "cpu.h"

#if defined(__FMA__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16, MR = 8, NV = 3 };
#elif defined(__AVX__)
enum { LANES = 8, MR = 4, NV = 3 };
#elif defined(__aarch64__)
enum { LANES = 4, MR = 8, NV = 3 };
#else
enum { LANES = 4, MR = 4, NV = 2 };
#endif
enum {
    NR = NV * LANES,
    KC = CPU_GEMM_DEPTH,
    MC = CPU_GEMM_ROWS,
    NC = CPU_GEMM_COLS,
};
_Static_assert(MC % MR == 0 && NC % NR == 0, "blocks are whole panels");

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef float Loose __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

// Contraction is off for the whole program, so the fused operation is asked for by name where there is one.
static inline Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// tile (MR, NR) = the product of two panels over `depth`.
static void kernel(int64_t depth, const float *restrict a, const float *restrict b, float *restrict tile) {
    Vec sums[MR][NV];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) sums[i][j] = (Vec){0};
    for (int64_t k = 0; k < depth; k++, a += MR, b += NR) {
        Vec row[NV];
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) row[j] = *(const Loose *)(b + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) {
            Vec factor = (Vec){0} + a[i];
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++) sums[i][j] = multiply_add(factor, row[j], sums[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) *(Loose *)(tile + i * NR + j * LANES) = sums[i][j];
}

// --- packing. A panel's element (k, w) stands at panel[k * width + w].

static inline __attribute__((always_inline)) float element(const void *from, int64_t at, bool bf16) {
    return bf16 ? cpu_bf16_to_float(((const uint16_t *)from)[at]) : ((const float *)from)[at];
}

static inline const void *advance(const void *from, int64_t elements, bool bf16) {
    return (const char *)from + elements * (bf16 ? 2 : 4);
}

static inline __attribute__((always_inline)) Eight eight(const void *from, int64_t at, bool bf16) {
    if (!bf16) return *(const Eight *)((const float *)from + at);
    Eight out;
    for (int i = 0; i < 8; i++) out[i] = element(from, at + i, true);
    return out;
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#endif
#endif
#ifndef SHUFFLE
typedef int EightInts __attribute__((vector_size(32)));
#define SHUFFLE(x, y, ...) __builtin_shuffle(x, y, (EightInts){__VA_ARGS__})
#endif

// to[k * width + w] = from[w * stride + k] for an 8 x 8 block: three rounds that swap ever larger pieces.
static inline __attribute__((always_inline)) void transpose8(float *restrict to, int64_t width,
                                                             const void *restrict from, int64_t stride, bool bf16) {
    Eight a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) a[i] = eight(from, i * stride, bf16);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        b[i] = SHUFFLE(a[i], a[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        b[i + 1] = SHUFFLE(a[i], a[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        int low = i & ~2;
        a[i] = i & 2 ? SHUFFLE(b[low], b[low + 2], 2, 3, 10, 11, 6, 7, 14, 15)
                     : SHUFFLE(b[low], b[low + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        int low = i & 3;
        b[i] = i & 4 ? SHUFFLE(a[low], a[low + 4], 4, 5, 6, 7, 12, 13, 14, 15)
                     : SHUFFLE(a[low], a[low + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) *(Eight *)(to + i * width) = b[i];
}

// One panel of `count` <= width rows that are contiguous in k.
static inline __attribute__((always_inline)) void pack_across(float *restrict to, int width, int64_t count,
                                                              int64_t depth, const void *restrict from, int64_t stride,
                                                              bool bf16) {
    int64_t w = 0;
    for (; w + 8 <= count; w += 8) {
        int64_t k = 0;
        for (; k + 8 <= depth; k += 8)
            transpose8(to + k * width + w, width, advance(from, w * stride + k, bf16), stride, bf16);
        for (; k < depth; k++)
            for (int i = 0; i < 8; i++) to[k * width + w + i] = element(from, (w + i) * stride + k, bf16);
    }
    for (; w < count; w++)
        for (int64_t k = 0; k < depth; k++) to[k * width + w] = element(from, w * stride + k, bf16);
}

// All panels of a block whose rows (one per k) are contiguous in w: row by row, as memory likes to be read.
static inline __attribute__((always_inline)) void pack_along(float *restrict to, int width, int64_t count,
                                                             int64_t depth, const void *restrict from, int64_t stride,
                                                             bool bf16) {
    int64_t whole = count / width * width;
    for (int64_t k = 0; k < depth; k++) {
        for (int64_t w = 0; w < whole; w += width)
            for (int i = 0; i < width; i++) to[w * depth + k * width + i] = element(from, k * stride + w + i, bf16);
        for (int64_t w = whole; w < count; w++)
            to[whole * depth + k * width + w - whole] = element(from, k * stride + w, bf16);
    }
}

// `across`: contiguous in k. What a last panel lacks is zero, since the kernel computes it all the same.
static inline __attribute__((always_inline)) void pack_as(float *restrict to, int width, int64_t count, int64_t depth,
                                                          const void *restrict from, int64_t stride, bool across,
                                                          bool bf16) {
    int64_t whole = count / width * width;
    if (whole < count) memset(to + whole * depth, 0, sizeof(float) * (size_t)(width * depth));
    if (!across) {
        pack_along(to, width, count, depth, from, stride, bf16);
        return;
    }
    for (int64_t w = 0; w < count; w += width)
        pack_across(to + w * depth, width, count - w < width ? count - w : width, depth,
                    advance(from, w * stride, bf16), stride, bf16);
}

static void pack_a(float *to, int64_t count, int64_t depth, const CpuOperand *a, int64_t row, int64_t k) {
    const void *from = advance(a->data, a->transposed ? k * a->stride + row : row * a->stride + k, a->bf16);
    if (a->bf16)
        pack_as(to, MR, count, depth, from, a->stride, !a->transposed, true);
    else
        pack_as(to, MR, count, depth, from, a->stride, !a->transposed, false);
}

static void pack_b(float *to, int64_t count, int64_t depth, const CpuOperand *b, int64_t k, int64_t col) {
    const void *from = advance(b->data, b->transposed ? col * b->stride + k : k * b->stride + col, b->bf16);
    if (b->bf16)
        pack_as(to, NR, count, depth, from, b->stride, b->transposed, true);
    else
        pack_as(to, NR, count, depth, from, b->stride, b->transposed, false);
}

// --- from the kernel's tile to C

static inline void update_row(float *restrict c, const float *restrict tile, int64_t cols, float alpha, float beta) {
    if (beta == 0.0f)
        for (int64_t j = 0; j < cols; j++) c[j] = alpha * tile[j];
    else
        for (int64_t j = 0; j < cols; j++) c[j] = alpha * tile[j] + beta * c[j];
}

static void multiply_block(int64_t m, int64_t n, int64_t depth, float alpha, const float *a, const float *b, float beta,
                           float *c, int64_t stride) {
    float tile[MR * NR] __attribute__((aligned(64)));
    for (int64_t j = 0; j < n; j += NR) {
        int64_t cols = n - j < NR ? n - j : NR;
        for (int64_t i = 0; i < m; i += MR) {
            int64_t rows = m - i < MR ? m - i : MR;
            kernel(depth, a + i * depth, b + j * depth, tile);
            for (int64_t r = 0; r < rows; r++) {
                float *to = c + (i + r) * stride + j;
                if (cols == NR)
                    update_row(to, tile + r * NR, NR, alpha, beta);
                else
                    update_row(to, tile + r * NR, cols, alpha, beta);
            }
        }
    }
}

void cpu_gemm(float *room, int64_t m, int64_t n, int64_t k, float alpha, CpuOperand a, CpuOperand b, float beta,
              float *c, int64_t stride) {
    float *panels_a = room, *panels_b = room + MC * KC;
    // An empty sum still has to write beta C.
    for (int64_t k0 = 0; k0 == 0 || k0 < k; k0 += KC) {
        int64_t depth = k - k0 < KC ? k - k0 : KC;
        float keep = k0 == 0 ? beta : 1.0f;
        for (int64_t i = 0; i < m; i += MC) {
            int64_t rows = m - i < MC ? m - i : MC;
            pack_a(panels_a, rows, depth, &a, i, k0);
            for (int64_t j = 0; j < n; j += NC) {
                int64_t cols = n - j < NC ? n - j : NC;
                pack_b(panels_b, cols, depth, &b, k0, j);
                multiply_block(rows, cols, depth, alpha, panels_a, panels_b, keep, c + i * stride + j, stride);
            }
        }
    }
}
