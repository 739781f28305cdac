// Initial weights, drawn on the device with the same bits as base/random.c: base/normal.h uses no operation that a GPU
// rounds differently. A thread draws one block of four normals and writes the values that belong to its row.
#include "../launch.cuh"
#include "base/normal.h"

namespace {

constexpr int THREADS = 256;

// blocks: number of blocks of four normals that are drawn for a row, by one thread each. The number suffices even if
// the row begins in the middle of a block.
__global__ void __launch_bounds__(THREADS)
    normal_kernel(float *to, const int64_t rows, const int64_t cols, const int64_t blocks, const NormalRows draw) {
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = at / blocks;
    if (row >= rows) return;
    uint64_t first = draw.first + (uint64_t)row * draw.stride;
    int64_t start = (at % blocks) * NORMAL_LANES - (int64_t)(first % NORMAL_LANES);
    float lanes[NORMAL_LANES];
    normal_block(draw.seed, draw.stream, first / NORMAL_LANES + (uint64_t)(at % blocks), lanes);
    EACH (lane, NORMAL_LANES)
        if (start + lane >= 0 && start + lane < cols) to[row * cols + start + lane] = draw.scale * lanes[lane];
}

} // namespace

void cuda_draw_normal(Backend *be, float *to, int64_t rows, int64_t cols, const NormalRows *draw) {
    int64_t blocks = (cols + 2 * NORMAL_LANES - 2) / NORMAL_LANES;
    CUDA_LAUNCH(be, launch_blocks(rows * blocks, THREADS), THREADS, 0, normal_kernel, to, rows, cols, blocks, *draw);
}
