// Numbers of 16 bits (bf16) and 8 bits, and their scales. CPU and GPU compute the same bits: they use integers, exact
// products with powers of two, and one float addition, rounded to nearest even. Formats: E4M3 without infinities, E5M2
// (Micikevicius et al., FP8 Formats for Deep Learning, 2022), UE8M0 (OCP Microscaling Formats 1.0).
//
// A scale is a power of two, so that scaling is exact. Several values share a scale. It is the smallest power that
// keeps the largest of their magnitudes in range. A scale is stored as UE8M0, the exponent of a float; 255 is NaN.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define FP8_INLINE static __host__ __device__ __forceinline__
#else
#define FP8_INLINE static inline
#endif

// A format is identified by the number of bits of its fraction. The exponent's bias is 7 in E4M3 and 15 in E5M2.
enum { FP8_E4M3 = 3, FP8_E5M2 = 2 };

FP8_INLINE uint32_t fp8_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

FP8_INLINE float fp8_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// --- bf16: the upper half of a float, rounded to nearest even. NaN stays NaN.
FP8_INLINE float bf16_to_float(uint16_t value) { return fp8_float((uint32_t)value << 16); }

FP8_INLINE uint16_t bf16_from_float(float value) {
    uint32_t bits = fp8_bits(value), quiet = bits >> 16 | 0x40u;
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// --- fp8. Rounds to nearest even. Magnitudes above the largest number become that number, NaN stays NaN. The code has
// no branches, so that compilers vectorize loops over it.
FP8_INLINE uint8_t fp8_from_float(float x, int fraction) {
    uint32_t bits = fp8_bits(x), sign = bits >> 24 & 0x80u, most = fraction == FP8_E4M3 ? 0x7eu : 0x7bu;
    uint32_t bias = fraction == FP8_E4M3 ? 7 : 15, shift = 23u - (uint32_t)fraction;
    bits &= 0x7fffffffu;
    // Subnormal numbers: adding `large` rounds the magnitude to a multiple of the smallest subnormal number.
    uint32_t large = (151u - bias - (uint32_t)fraction) << 23;
    uint32_t small = fp8_bits(fp8_float(bits) + fp8_float(large)) - large;
    uint32_t normal = ((bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift) - ((127u - bias) << fraction);
    uint32_t number = bits < (128u - bias) << 23 ? small : normal;
    number = number < most ? number : most;
    return (uint8_t)(sign | (bits > 0x7f800000u ? 0x7fu : number));
}

// Returns the value, as a float, of a result of fp8_from_float.
FP8_INLINE float fp8_to_float(uint8_t number, int fraction) {
    uint32_t bias = fraction == FP8_E4M3 ? 7 : 15, bits = (uint32_t)(number & 0x7fu) << (23 - fraction);
    if ((number & 0x7fu) == 0x7fu) return fp8_float(0x7fc00000u);
    float x = fp8_float(bits) * fp8_float((254u - bias) << 23);
    return number & 0x80u ? -x : x;
}

// Returns the scale of a set of values. largest: their largest magnitude, as a float's bits. The largest numbers are
// 1.75 * 2^8 (E4M3) and 1.75 * 2^15 (E5M2). A scale is at least 2^-126, so that it and its inverse are normal floats.
FP8_INLINE uint8_t fp8_scale(uint32_t largest, int fraction) {
    int top = fraction == FP8_E4M3 ? 8 : 15, scale = (int)(largest >> 23) - top + ((largest & 0x7fffffu) > 0x600000u);
    if (largest >= 0x7f800000u) return 255;
    return (uint8_t)(scale > 1 ? scale : 1);
}

FP8_INLINE float fp8_scale_float(uint8_t scale) {
    return fp8_float(scale == 255 ? 0x7fc00000u : (uint32_t)scale << 23);
}

FP8_INLINE float fp8_scale_inverse(uint8_t scale) {
    return fp8_float(scale == 255 ? 0x3f800000u : (254u - scale) << 23);
}
