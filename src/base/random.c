// Philox 4x32-10 and the numbers drawn from it. One block of four words gives four normals; a single normal is taken
// from its whole block, so that filling an array and asking for one element give the same bits.
#include "random.h"

#include <math.h>

// Weyl constants and multipliers of Philox 4x32 (Salmon et al., SC 2011, table 2).
static const uint32_t WEYL_0 = 0x9E3779B9, WEYL_1 = 0xBB67AE85;
static const uint64_t MULTIPLIER_0 = 0xD2511F53, MULTIPLIER_1 = 0xCD9E8D57;

enum { ROUNDS = 10, LANES = 4 };

void random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t product_0 = MULTIPLIER_0 * c0, product_1 = MULTIPLIER_1 * c2;
        c0 = (uint32_t)(product_1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product_1;
        c2 = (uint32_t)(product_0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product_0;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static void random_words_(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    random_philox(counter, key, out);
}

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    random_words_(seed, stream, index, words);
    return (uint64_t)words[1] << 32 | words[0];
}

// Box-Muller on two words. The added half keeps the uniform away from zero, where the logarithm is infinite; the
// largest value is sqrt(2 * 33 * ln 2) = 6.76.
static void normal_pair_(uint32_t word_0, uint32_t word_1, float out[2]) {
    const double unit = 1.0 / 4294967296.0, turn = 6.283185307179586;
    double radius = sqrt(-2.0 * log((word_0 + 0.5) * unit));
    double sine, cosine;
    sincos(turn * (word_1 * unit), &sine, &cosine);
    out[0] = (float)(radius * cosine);
    out[1] = (float)(radius * sine);
}

// Draws the four normals of one block: elements 4 * block .. 4 * block + 3 of the stream.
static void normal_block_(uint64_t seed, uint64_t stream, uint64_t block, float out[LANES]) {
    uint32_t words[4];
    random_words_(seed, stream, block, words);
    normal_pair_(words[0], words[1], out);
    normal_pair_(words[2], words[3], out + 2);
}

float random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    float lanes[LANES];
    normal_block_(seed, stream, index / LANES, lanes);
    return lanes[index % LANES];
}

void random_normal_fill(float *out, int64_t count, float scale, uint64_t seed, uint64_t stream, uint64_t first) {
    if (count <= 0) return;
    int64_t skip = (int64_t)(first % LANES); // lanes of the first block before `first`
    int64_t blocks = (skip + count + LANES - 1) / LANES;
#pragma omp parallel for schedule(static) if (blocks > 4096)
    for (int64_t block = 0; block < blocks; block++) {
        float lanes[LANES];
        normal_block_(seed, stream, first / LANES + (uint64_t)block, lanes);
        int64_t start = block * LANES - skip; // where lane 0 would be written
        for (int64_t lane = 0; lane < LANES; lane++) {
            if (start + lane >= 0 && start + lane < count) out[start + lane] = scale * lanes[lane];
        }
    }
}
