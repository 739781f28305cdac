// Philox 4x32-10 and the numbers drawn from it. One block of four words gives four normals.
#include "random.h"

#include "normal.h"

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    normal_words(seed, stream, index, words);
    return (uint64_t)words[1] << 32 | words[0];
}

void random_normal_fill(float *out, int64_t count, float scale, uint64_t seed, uint64_t stream, uint64_t first) {
    if (count <= 0) return;
    int64_t skip = (int64_t)(first % NORMAL_LANES); // lanes of the first block before `first`
    int64_t blocks = (skip + count + NORMAL_LANES - 1) / NORMAL_LANES;
#pragma omp parallel for schedule(static) if (blocks > 4096)
    for (int64_t block = 0; block < blocks; block++) {
        float lanes[NORMAL_LANES];
        normal_block(seed, stream, first / NORMAL_LANES + (uint64_t)block, lanes);
        int64_t start = block * NORMAL_LANES - skip; // index in out of the block's lane 0
        for (int64_t lane = 0; lane < NORMAL_LANES; lane++)
            if (start + lane >= 0 && start + lane < count) out[start + lane] = scale * lanes[lane];
    }
}
