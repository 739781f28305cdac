// The parts of the matrix product, for code that packs an operand once and multiplies with it often.
#ifndef CPU_GEMM_H
#define CPU_GEMM_H

#include "cpu.h"

// The kernel's tile of C: GEMM_ROWS x GEMM_VECTORS vectors of GEMM_LANES floats, as many as there are registers for.
#if defined(__AVX512F__)
enum { GEMM_LANES = 16, GEMM_ROWS = 8, GEMM_VECTORS = 3 };
#elif defined(__AVX__)
enum { GEMM_LANES = 8, GEMM_ROWS = 4, GEMM_VECTORS = 3 };
#elif defined(__aarch64__)
enum { GEMM_LANES = 4, GEMM_ROWS = 8, GEMM_VECTORS = 3 };
#else
enum { GEMM_LANES = 4, GEMM_ROWS = 4, GEMM_VECTORS = 2 };
#endif
enum { GEMM_COLS = GEMM_VECTORS * GEMM_LANES };

// The width of op(B)'s panels for n columns, in vectors: the one that computes the least for nothing, the widest of
// those.
int gemm_vectors(int64_t n);

// The panels of op(from) (count, depth): each `width` rows wide, element (k, row) at panel[k * width + row], one after
// the other, (count rounded up to width) * depth floats. What the last one lacks is zero. The left factor is packed
// GEMM_ROWS wide as it is, the right one gemm_vectors * GEMM_LANES wide and transposed.
void gemm_pack(float *to, int width, int64_t count, int64_t depth, CpuOperand from);

// C (m, n), rows `stride` apart, = or += the product of packed panels over their first `depth` k. depth_a: what the left
// factor was packed with.
void gemm_multiply(int vectors, int64_t m, int64_t n, int64_t depth, const float *a, int64_t depth_a, const float *b,
                   bool accumulate, float *c, int64_t stride);

#endif
