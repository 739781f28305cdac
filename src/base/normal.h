// Philox 4x32-10 (Salmon et al., SC 2011) and normals computed from its words, with the same bits on CPU and GPU. The
// arithmetic uses integers, and only the operations on doubles that IEEE 754 rounds correctly (+, *, /, fma, sqrt).
// Mathematics libraries differ in the last bits of logarithm, sine and cosine, so these are series of our own. Every
// product that is added is already part of an fma, so a compiler's contraction changes nothing.
#pragma once

#include <math.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define NORMAL_INLINE static __host__ __device__ __forceinline__
#else
#define NORMAL_INLINE static inline
#endif

enum { NORMAL_LANES = 4 };

NORMAL_INLINE void normal_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    // Weyl constants and multipliers of table 2.
    const uint32_t weyl_0 = 0x9E3779B9, weyl_1 = 0xBB67AE85;
    const uint64_t multiplier_0 = 0xD2511F53, multiplier_1 = 0xCD9E8D57;
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t product_0 = multiplier_0 * c0, product_1 = multiplier_1 * c2;
        c0 = (uint32_t)(product_1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product_1;
        c2 = (uint32_t)(product_0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product_0;
        k0 += weyl_0;
        k1 += weyl_1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

NORMAL_INLINE void normal_words(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    normal_philox(counter, key, out);
}

// Returns ln x for x = (word + 1/2) / 2^32; the half keeps x above zero. With x = m 2^e and m in [sqrt(1/2), sqrt(2)),
// ln m = 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.172. The series ends at s^23 and errs by less than 2^-64 s.
NORMAL_INLINE double normal_log(uint32_t word) {
    const double root_half = 0.70710678118654752440, ln2_high = 0.69314718055994528623,
                 ln2_low = 2.3190468138462996e-17;
    int exponent;
    double m = frexp((double)(2 * (uint64_t)word + 1), &exponent);
    if (m < root_half) {
        m *= 2;
        exponent--;
    }
    double power = exponent - 33, s = (m - 1) / (m + 1), q = s * s, sum = 1.0 / 23;
    for (int odd = 21; odd >= 3; odd -= 2) sum = fma(sum, q, 1.0 / odd);
    double log_m = fma(2 * s * q, sum, 2 * s);
    return fma(power, ln2_high, fma(power, ln2_low, log_m));
}

// Computes sine and cosine of word / 2^32 turns. The nearest quarter turn is split off exactly; the remainder, at most
// pi/4, is evaluated by Taylor series with an error below 2^-62.
NORMAL_INLINE void normal_turn(uint32_t word, double *sine, double *cosine) {
    uint32_t quarter = (word + 0x20000000u) >> 30;
    int32_t rest = (int32_t)(word - (quarter << 30));
    double angle = rest * 1.4629180792671596e-9, q = angle * angle; // 2 pi / 2^32
    const double of_sine[] = {-1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880,
                              -1.0 / 5040,          1.0 / 120,        -1.0 / 6,        1.0};
    const double of_cosine[] = {-1.0 / 6402373705728000,
                                1.0 / 20922789888000,
                                -1.0 / 87178291200,
                                1.0 / 479001600,
                                -1.0 / 3628800,
                                1.0 / 40320,
                                -1.0 / 720,
                                1.0 / 24,
                                -1.0 / 2,
                                1.0};
    double s = 1.0 / 355687428096000, c = of_cosine[0];
    for (int i = 0; i < 8; i++) s = fma(s, q, of_sine[i]);
    for (int i = 1; i < 10; i++) c = fma(c, q, of_cosine[i]);
    s *= angle;
    *sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
    *cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
}

// Converts two words to two normals (Box-Muller). The largest value is sqrt(2 * 33 * ln 2) = 6.76.
NORMAL_INLINE void normal_pair(uint32_t word_0, uint32_t word_1, float out[2]) {
    double radius = sqrt(-2 * normal_log(word_0)), sine, cosine;
    normal_turn(word_1, &sine, &cosine);
    out[0] = (float)(radius * cosine);
    out[1] = (float)(radius * sine);
}

// Writes the four normals of one block: elements 4 * block .. 4 * block + 3 of the stream.
NORMAL_INLINE void normal_block(uint64_t seed, uint64_t stream, uint64_t block, float out[NORMAL_LANES]) {
    uint32_t words[4];
    normal_words(seed, stream, block, words);
    normal_pair(words[0], words[1], out);
    normal_pair(words[2], words[3], out + 2);
}
