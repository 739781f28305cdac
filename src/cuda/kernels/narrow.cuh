// 8-bit numbers and their scales (backend/factor.h), computed from values in a kernel's registers. Norms and
// activations quantize in the pass that computes the values, so that no later pass has to read them in bf16.
#pragma once

#include "row.cuh"

// Zeroes scales that tiles of UE8M0 scales have past the last row or column, for the kernel that writes the others.
static inline void narrow_clear(Backend *be, const Factor &to, int64_t rows, int64_t cols) {
    if (to.kind == FACTOR_ROWS_32 && (rows | cols) % 128 != 0)
        be->zero(be, (void *)to.scales, factor_scale_bytes(to.kind, rows, cols));
}

// Runs the statements with T, the element type, and KIND, the result's kind: plain, or 8-bit with scales along rows.
#define FOR_RESULT(be, kind, ...)                                                                                      \
    do {                                                                                                               \
        if ((kind) == FACTOR_ROWS_128)                                                                                 \
            WITH(using T = __nv_bfloat16; constexpr int KIND = FACTOR_ROWS_128, __VA_ARGS__)                           \
        else if ((kind) == FACTOR_ROWS_32)                                                                             \
            WITH(using T = __nv_bfloat16; constexpr int KIND = FACTOR_ROWS_32, __VA_ARGS__)                            \
        else WITH(constexpr int KIND = FACTOR_PLAIN, FOR_ELEMENT(be, __VA_ARGS__))                                     \
    } while (0)

// Returns two numbers converted to 8 bits, `high` in the upper byte.
template <int FRACTION> __device__ __forceinline__ uint32_t narrow_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    if (FRACTION == FP8_E4M3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return fp8_from_float(low, FRACTION) | (uint32_t)fp8_from_float(high, FRACTION) << 8;
#endif
}

template <int KIND> __device__ __forceinline__ void narrow_scale_store(void *scales, int64_t place, uint8_t scale) {
    if (KIND == FACTOR_ROWS_32) ((uint8_t *)scales)[place] = scale;
    else ((float *)scales)[place] = fp8_scale_float(scale);
}

// Rounds W values of a row to T, then stores them from `column` on as 8-bit numbers, with their scale. All lanes of a
// warp must call it; lanes past the end of the row pass live = false.
template <int KIND, typename T, int W>
__device__ __forceinline__ void narrow_store(const Factor &to, int64_t rows, int cols, int64_t row, int column,
                                             bool live, const Floats<W> &y) {
    const Floats<W> x = piece_floats(piece_round<T, W>(y));
    uint32_t largest = 0;
    EACH (i, W) largest = larger(largest, live ? fp8_bits(x.v[i]) & 0x7fffffffu : 0);
    const uint8_t scale = fp8_scale(warp_largest(largest, 1, factor_block_cols(KIND) / W), FP8_E4M3);
    if (!live) return;
    if (column % factor_block_cols(KIND) == 0)
        narrow_scale_store<KIND>((void *)to.scales, factor_scale_place(KIND, rows, cols, row, column), scale);
    const float inverse = fp8_scale_inverse(scale);
    Piece < uint8_t, W<4 ? 4 : W> numbers;
    EACH (w, W / 4)
        numbers.word[w] = narrow_pair<FP8_E4M3>(x.v[4 * w] * inverse, x.v[4 * w + 1] * inverse) |
                          narrow_pair<FP8_E4M3>(x.v[4 * w + 2] * inverse, x.v[4 * w + 3] * inverse) << 16;
    piece_store((uint8_t *)to.data + row * cols + column, numbers);
}
