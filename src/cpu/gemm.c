// The matrix product of the CPU backend: one thread, packed panels, a kernel that keeps a block of C in registers (the
// scheme of Goto & van de Geijn 2008 and BLIS). The kernel uses vector extensions, so that one source serves AVX-512,
// AVX2, SSE and NEON at the width of the compiler's target.
//
// op(A) is cut into panels of MR rows, op(B) into panels of NR columns. For each k, a panel stores its MR (NR) elements
// next to each other, so that the kernel reads both in sequence. Packing also undoes transposition and widens bf16, so
// the kernel needs no variants for them. The order of a sum over k depends only on k.
#include "gemm.h"

#if defined(__FMA__)
#include <immintrin.h>
#endif

enum { LANES = GEMM_LANES, MR = GEMM_ROWS, NV = GEMM_VECTORS, NR = GEMM_COLS };
enum { KC = CPU_GEMM_DEPTH, MC = CPU_GEMM_ROWS, NC = CPU_GEMM_COLS };
_Static_assert(MC % MR == 0 && NC % (6 * LANES) == 0, "blocks are whole panels");

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef float Loose __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

// Returns a * b + c. Contraction is off, so an intrinsic requests the fused operation where the target has it.
static inline Vec multiply_add_(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// Multiplies MR rows by a panel over `depth` values of k. Stores the product in a full tile of C (MR, vectors * LANES),
// or adds it if `accumulate`. The left rows are a packed panel, or rows of a plain matrix if `rows`.
static inline __attribute__((always_inline)) void kernel_(int vectors, bool rows, int64_t depth,
                                                          const float *restrict a, const float *restrict b,
                                                          int64_t step, bool accumulate, float *restrict c,
                                                          int64_t stride) {
    const int64_t next_row = rows ? NR : 1, next_k = rows ? 1 : MR;
    Vec sums[MR][NV];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
        // C is needed only at the end; by then the prefetch has brought it from memory.
        if (accumulate) __builtin_prefetch(c + i * stride), __builtin_prefetch(c + i * stride + vectors * LANES - 1);
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = (Vec){0};
    }
    for (int64_t k = 0; k < depth; k++, a += next_k, b += step) {
        Vec row[NV];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) row[j] = *(const Loose *)(b + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) {
            Vec factor = a[i * next_row] - (Vec){0};
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sums[i][j] = multiply_add_(factor, row[j], sums[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            Loose *to = (Loose *)(c + i * stride + j * LANES);
            if (accumulate) sums[i][j] += *to;
            *to = sums[i][j];
        }
}

typedef void Kernel(int64_t depth, const float *a, const float *b, int64_t step, bool accumulate, float *c,
                    int64_t stride);

#define KERNEL_(name, vectors, rows)                                                                                   \
    static void name(int64_t depth, const float *a, const float *b, int64_t step, bool accumulate, float *c,           \
                     int64_t stride) {                                                                                 \
        kernel_(vectors, rows, depth, a, b, step, accumulate, c, stride);                                              \
    }
KERNEL_(panels_wide, NV, false)
KERNEL_(panels_double, 2, false)
KERNEL_(panels_single, 1, false)
KERNEL_(rows_wide, NV, true)
KERNEL_(rows_double, 2, true)
KERNEL_(rows_single, 1, true)

int gemm_vectors(int64_t n) {
    int best = NV;
    for (int v = NV - 1; v > 0; v--) {
        int64_t width = v * LANES, least = best * LANES;
        if ((n + width - 1) / width * width < (n + least - 1) / least * least) best = v;
    }
    return best;
}

void gemm_multiply(int64_t m, int64_t n, int64_t depth, GemmLeft left, GemmRight right, bool accumulate, float *c,
                   int64_t stride) {
    int64_t width = right.vectors * (int64_t)LANES;
    Kernel *multiply = right.vectors == NV  ? left.rows ? rows_wide : panels_wide
                       : right.vectors == 2 ? left.rows ? rows_double : panels_double
                       : left.rows          ? rows_single
                                            : panels_single;
    float tile[MR * NR] __attribute__((aligned(64)));
    for (int64_t j = 0; j < n; j += width, right.data += right.next) {
        const float *a = left.data;
        for (int64_t i = 0; i < m; i += MR, a += left.next) {
            int64_t rows = m - i < MR ? m - i : MR, cols = n - j < width ? n - j : width;
            float *to = c + i * stride + j;
            if (rows == MR && cols == width) {
                multiply(depth, a, right.data, right.step, accumulate, to, stride);
                continue;
            }
            // The full tile extends past the edge of C.
            multiply(depth, a, right.data, right.step, false, tile, NR);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t col = 0; col < cols; col++)
                    to[r * stride + col] = accumulate ? to[r * stride + col] + tile[r * NR + col] : tile[r * NR + col];
        }
    }
}

// --- packing. A panel's element (k, w) is at panel[k * width + w].

static inline __attribute__((always_inline)) float gemm_element_(const void *from, int64_t at, bool bf16) {
    return bf16 ? bf16_to_float(((const uint16_t *)from)[at]) : ((const float *)from)[at];
}

static inline const void *gemm_advance_(const void *from, int64_t elements, bool bf16) {
    return (const char *)from + elements * (bf16 ? 2 : 4);
}

// Loads eight floats into *to. Not by value: the calling convention for vectors depends on the instruction set.
static inline __attribute__((always_inline)) void load8_(Eight *to, const void *from, int64_t at, bool bf16) {
    if (!bf16) *to = *(const Eight *)((const float *)from + at);
    else
        for (int i = 0; i < 8; i++) (*to)[i] = gemm_element_(from, at + i, true);
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

// Sets to[k * width + w] = from[w * stride + k] for an 8 x 8 block: three rounds that swap pieces of increasing size.
static inline __attribute__((always_inline)) void transpose8_(float *restrict to, int64_t width,
                                                              const void *restrict from, int64_t stride, bool bf16) {
    Eight a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) load8_(&a[i], from, i * stride, bf16);
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

// Packs one panel of `count` <= width rows that are contiguous in k.
static inline __attribute__((always_inline)) void pack_across_(float *restrict to, int width, int64_t count,
                                                               int64_t depth, const void *restrict from, int64_t stride,
                                                               bool bf16) {
    int64_t w = 0;
    for (; w + 8 <= count; w += 8) {
        int64_t k = 0;
        for (; k + 8 <= depth; k += 8) {
            const float *ahead = gemm_advance_(from, (w + 8) * stride + k, bf16);
            for (int i = 0; i < 8; i++) __builtin_prefetch(gemm_advance_(ahead, i * stride, bf16));
            transpose8_(to + k * width + w, width, gemm_advance_(from, w * stride + k, bf16), stride, bf16);
        }
        for (; k < depth; k++)
            for (int i = 0; i < 8; i++) to[k * width + w + i] = gemm_element_(from, (w + i) * stride + k, bf16);
    }
    for (; w < count; w++)
        for (int64_t k = 0; k < depth; k++) to[k * width + w] = gemm_element_(from, w * stride + k, bf16);
}

static inline __attribute__((always_inline)) void copy_run_(float *restrict to, int width, const void *restrict from,
                                                            int64_t at, bool bf16) {
#pragma GCC unroll 6
    for (int i = 0; i + 8 <= width; i += 8) load8_((Eight *)(to + i), from, at + i, bf16);
    for (int i = width & ~7; i < width; i++) to[i] = gemm_element_(from, at + i, bf16);
}

// Packs all panels of a block in which the elements of one k are contiguous. Packs a few k at a time, so that the
// writes stay in the first-level cache: one k at a time, the panels' stride would map all writes to one cache set.
static inline __attribute__((always_inline)) void pack_along_(float *restrict to, int width, int64_t count,
                                                              int64_t depth, const void *restrict from, int64_t stride,
                                                              bool bf16) {
    enum { ROWS = 8 };
    int64_t whole = count / width * width;
    for (int64_t k0 = 0; k0 < depth; k0 += ROWS) {
        int64_t end = k0 + ROWS < depth ? k0 + ROWS : depth;
        for (int64_t w = 0; w < whole; w += width)
            for (int64_t k = k0; k < end; k++) {
                for (int i = 0; i < width; i += 16)
                    __builtin_prefetch(gemm_advance_(from, (k + ROWS) * stride + w + i, bf16));
                copy_run_(to + w * depth + k * width, width, from, k * stride + w, bf16);
            }
        for (int64_t k = k0; k < end; k++)
            for (int64_t w = whole; w < count; w++)
                to[whole * depth + k * width + w - whole] = gemm_element_(from, k * stride + w, bf16);
    }
}

static inline __attribute__((always_inline)) void pack_as_(float *restrict to, int width, int64_t count, int64_t depth,
                                                           const void *restrict from, int64_t stride, bool along,
                                                           bool bf16) {
    int64_t whole = count / width * width;
    if (whole < count) memset(to + whole * depth, 0, sizeof(float) * (size_t)(width * depth));
    if (along) {
        pack_along_(to, width, count, depth, from, stride, bf16);
        return;
    }
    for (int64_t w = 0; w < count; w += width)
        pack_across_(to + w * depth, width, count - w < width ? count - w : width, depth,
                     gemm_advance_(from, w * stride, bf16), stride, bf16);
}

// Passes each usual width to pack_as_ as a constant, so that the compiler specializes pack_as_ for it.
static inline __attribute__((always_inline)) void pack_width_(float *to, int width, int64_t count, int64_t depth,
                                                              const void *from, int64_t stride, bool along, bool bf16) {
    if (width == MR) pack_as_(to, MR, count, depth, from, stride, along, bf16);
    else if (width == NR) pack_as_(to, NR, count, depth, from, stride, along, bf16);
    else if (width == 2 * LANES) pack_as_(to, 2 * LANES, count, depth, from, stride, along, bf16);
    else pack_as_(to, width, count, depth, from, stride, along, bf16);
}

void gemm_pack(float *to, int width, int64_t count, int64_t depth, CpuOperand from) {
    if (from.quantized == NULL && from.bf16)
        return pack_width_(to, width, count, depth, from.data, from.stride, from.transposed, true);
    if (from.quantized == NULL)
        return pack_width_(to, width, count, depth, from.data, from.stride, from.transposed, false);
    // Rows of a quantized operand, starting at a column that is a multiple of BLOCK.
    enum { BLOCK = 32 }; // divides the columns of every kind of block
    const CpuFactor *f = from.quantized;
    const uint8_t *numbers = from.data;
    int64_t at = numbers - (const uint8_t *)f->factor.data, row = at / f->depth, col = at % f->depth;
    memset(to, 0, sizeof(float) * (size_t)((count + width - 1) / width * width * depth));
    for (int64_t w = 0; w < count; w++) {
        float *lane = to + w / width * width * depth + w % width;
        for (int64_t k0 = 0; k0 < depth; k0 += BLOCK) {
            float scale = factor_scale(&f->factor, f->rows, f->depth, row + w, col + k0);
            int64_t end = k0 + BLOCK < depth ? k0 + BLOCK : depth;
            for (int64_t k = k0; k < end; k++) lane[k * width] = f->values[numbers[w * from.stride + k]] * scale;
        }
    }
}

CpuOperand gemm_part(CpuOperand matrix, int64_t row, int64_t col) {
    int64_t at = matrix.transposed ? col * matrix.stride + row : row * matrix.stride + col;
    matrix.data =
        matrix.quantized != NULL ? (const uint8_t *)matrix.data + at : gemm_advance_(matrix.data, at, matrix.bf16);
    return matrix;
}

void cpu_gemm(float *workspace, int64_t m, int64_t n, int64_t k, CpuOperand a, CpuOperand b, bool accumulate, float *c,
              int64_t stride) {
    float *panels_a = workspace, *panels_b = workspace + MC * KC;
    int vectors = gemm_vectors(n);
    // An empty sum still has to clear C.
    for (int64_t k0 = 0; k0 == 0 || k0 < k; k0 += KC) {
        int64_t depth = k - k0 < KC ? k - k0 : KC;
        for (int64_t i = 0; i < m; i += MC) {
            int64_t rows = m - i < MC ? m - i : MC;
            gemm_pack(panels_a, MR, rows, depth, gemm_part(a, i, k0));
            for (int64_t j = 0; j < n; j += NC) {
                int64_t cols = n - j < NC ? n - j : NC;
                gemm_pack(panels_b, vectors * LANES, cols, depth, transposed(gemm_part(b, k0, j)));
                gemm_multiply(rows, cols, depth, gemm_panels(panels_a, depth), gemm_columns(panels_b, vectors, depth),
                              accumulate || k0 > 0, c + i * stride + j, stride);
            }
        }
    }
}
