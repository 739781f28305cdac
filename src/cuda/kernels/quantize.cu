// Quantizes a bf16 matrix, or its transpose, to 8 bits. With scales along rows, it also quantizes the transpose of an
// 8-bit matrix, converted to bf16. A thread block handles a tile of 128 x 128 numbers of the result, and a block of
// numbers that shares a scale never spans two tiles. Tiles pass through shared memory: all reads and writes of rows are
// 16-byte pieces. A lane holds 16 numbers of a row, so eight lanes hold a row of a tile.
//
// A single scale for the matrix needs an earlier pass, which finds the largest magnitude. Thread blocks compare
// magnitudes as integers, so the order of the blocks does not change the maximum.
#include "narrow.cuh"

namespace {

constexpr int THREADS = 256, TILE = 128, LINE = TILE + 2; // TILE, LINE: in elements; +2 avoids bank conflicts
constexpr int TILE_BYTES = TILE * LINE * 2, LANES = 8, PIECE_NUMBERS = TILE / LANES, ROWS = THREADS / LANES;

struct Quantized {
    uint8_t *numbers;
    void *scales;
    int64_t rows, cols; // size of the result
};

__global__ void clear_kernel(int *largest) { *largest = 0; }

__global__ void __launch_bounds__(THREADS) largest_kernel(int *largest, const __nv_bfloat16 *x, const int64_t pieces) {
    int most = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < pieces; i += (int64_t)gridDim.x * THREADS) {
        const Piece<__nv_bfloat16, 8> piece = piece_load<8>(x + 8 * i);
        EACH (w, 4) {
            int low = (int)(piece.word[w] << 16 & 0x7fffffffu), high = (int)(piece.word[w] & 0x7fff0000u);
            most = larger(most, larger(low, high));
        }
    }
    most = warp_largest(most);
    if (threadIdx.x % WARP == 0) atomicMax(largest, most);
}

// Copies the tile of x (rows, cols) at (row, col). For a transposed result the caller swaps rows and columns.
__device__ __forceinline__ void tile_read_(uint16_t *tile, const __nv_bfloat16 *x, const int64_t row, const int64_t col,
                                           const int64_t rows, const int64_t cols) {
    constexpr int PIECES = TILE / 8;
    for (int i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
        int line = i / PIECES, at = i % PIECES * 8;
        if (row + line >= rows || col + at >= cols) continue;
        const Piece<__nv_bfloat16, 8> piece = piece_load<8>(x + (row + line) * cols + col + at);
        EACH (w, 4) memcpy(tile + line * LINE + at + 2 * w, &piece.word[w], sizeof piece.word[w]);
    }
}

// Copies the tile of an 8-bit matrix, and converts its numbers to bf16. All numbers of a piece share one scale.
template <int KIND>
__device__ __forceinline__ void tile_widen_(uint16_t *tile, const Factor &x, const int64_t row, const int64_t col,
                                            const int64_t rows, const int64_t cols) {
    for (int i = threadIdx.x; i < TILE * LANES; i += THREADS) {
        int line = i / LANES, at = i % LANES * PIECE_NUMBERS;
        if (row + line >= rows || col + at >= cols) continue;
        int64_t place = factor_scale_place(KIND, rows, cols, row + line, col + at);
        float scale = KIND == FACTOR_ROWS_32 ? fp8_scale_float(((const uint8_t *)x.scales)[place])
                                             : ((const float *)x.scales)[place];
        const Piece<uint8_t, PIECE_NUMBERS> piece =
            piece_load<PIECE_NUMBERS>((const uint8_t *)x.data + (row + line) * cols + col + at);
        EACH (n, PIECE_NUMBERS) {
            uint8_t number = (uint8_t)(piece.word[n / 4] >> n % 4 * 8);
            tile[line * LINE + at + n] = bf16_from_float(fp8_to_float(number, FP8_E4M3) * scale);
        }
    }
}

template <int KIND, bool TRANSPOSED, bool NARROW>
__global__ void __launch_bounds__(THREADS) quantize_kernel(const Quantized q, const Factor from) {
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)from.data;
    SHARED_DYNAMIC(uint16_t, tile);
    SHARED(uint32_t, blocks, THREADS / WARP);
    constexpr int FRACTION = KIND == FACTOR_E5M2 ? FP8_E5M2 : FP8_E4M3;
    int64_t across = (q.cols + TILE - 1) / TILE, row = blockIdx.x / across * TILE, col = blockIdx.x % across * TILE;
    if (NARROW) tile_widen_<KIND>(tile, from, col, row, q.cols, q.rows);
    else if (TRANSPOSED) tile_read_(tile, x, col, row, q.cols, q.rows);
    else tile_read_(tile, x, row, col, q.rows, q.cols);
    __syncthreads();

    int at = (int)threadIdx.x % LANES * PIECE_NUMBERS, first = (int)threadIdx.x / LANES;
    bool wide = col + at < q.cols;
    uint32_t largest[TILE / ROWS], all = 0;
    EACH (r, TILE / ROWS) {
        int line = first + r * ROWS;
        largest[r] = 0;
        if (wide && row + line < q.rows) {
            EACH (i, PIECE_NUMBERS) {
                uint16_t x = TRANSPOSED ? tile[(at + i) * LINE + line] : tile[line * LINE + at + i];
                largest[r] = larger(largest[r], (uint32_t)(x & 0x7fffu) << 16);
            }
        }
        largest[r] = warp_largest(largest[r], 1, factor_block_cols(KIND) / PIECE_NUMBERS);
        all = larger(all, largest[r]);
    }
    if (KIND == FACTOR_BLOCKS_128) {
        all = warp_largest(all, LANES);
        if (threadIdx.x % WARP == 0) blocks[threadIdx.x / WARP] = all;
        __syncthreads();
        EACH (w, THREADS / WARP) all = larger(all, blocks[w]);
    }
    if (KIND == FACTOR_E4M3 || KIND == FACTOR_E5M2) all = ((const uint32_t *)q.scales)[1];

    EACH (r, TILE / ROWS) {
        int line = first + r * ROWS;
        if (!wide || row + line >= q.rows) continue;
        const bool by_row = KIND == FACTOR_ROWS_128 || KIND == FACTOR_ROWS_32;
        uint8_t scale = fp8_scale(by_row ? largest[r] : all, FRACTION);
        int64_t place = factor_scale_place(KIND, q.rows, q.cols, row + line, col + at);
        bool first_row = by_row || (line == 0 && (KIND == FACTOR_BLOCKS_128 || blockIdx.x == 0));
        if (at % (KIND == FACTOR_ROWS_32 ? 32 : TILE) == 0 && first_row)
            narrow_scale_store<KIND>(q.scales, place, scale);
        float inverse = fp8_scale_inverse(scale);
        Piece<uint8_t, PIECE_NUMBERS> piece;
        EACH (w, 4) {
            float v[4];
            EACH (i, 4) {
                int number = at + 4 * w + i;
                uint16_t from = TRANSPOSED ? tile[number * LINE + line] : tile[line * LINE + number];
                v[i] = fp8_float((uint32_t)from << 16) * inverse;
            }
            piece.word[w] = narrow_pair<FRACTION>(v[0], v[1]) | narrow_pair<FRACTION>(v[2], v[3]) << 16;
        }
        piece_store(q.numbers + (row + line) * q.cols + col + at, piece);
    }
}

__global__ void join_kernel(uint8_t *scales, const uint8_t *gathered, const int kind, const int64_t part,
                            const int64_t rows, const int64_t cols, const int64_t bytes, const int size) {
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = at % rows,
            col = at / rows * factor_block_cols(kind);
    if (col >= cols) return;
    const uint8_t *from = gathered + row / part * bytes + size * factor_scale_place(kind, part, cols, row % part, col);
    uint8_t *to = scales + size * factor_scale_place(kind, rows, cols, row, col);
    if (size == 1) *to = *from;
    else *(uint32_t *)to = *(const uint32_t *)from;
}

template <int KIND> void launch_(Backend *be, const Quantized &q, const Factor &x, bool transposed) {
    constexpr bool BY_ROW = KIND == FACTOR_ROWS_128 || KIND == FACTOR_ROWS_32;
    unsigned blocks = launch_blocks(q.rows, TILE) * launch_blocks(q.cols, TILE);
    if (BY_ROW && x.kind != FACTOR_PLAIN)
        CUDA_LAUNCH(be, blocks, THREADS, TILE_BYTES, (quantize_kernel<KIND, true, BY_ROW>), q, x);
    else if (transposed) CUDA_LAUNCH(be, blocks, THREADS, TILE_BYTES, (quantize_kernel<KIND, true, false>), q, x);
    else CUDA_LAUNCH(be, blocks, THREADS, TILE_BYTES, (quantize_kernel<KIND, false, false>), q, x);
}

} // namespace

void cuda_quantize(Backend *be, Factor to, Factor x, int64_t rows, int64_t cols, bool transposed) {
    CudaBackend *cuda = cuda_self(be);
    const int kind = to.kind;
    void *scales = (void *)to.scales;
    const Quantized q = {(uint8_t *)to.data, scales, transposed ? cols : rows, transposed ? rows : cols};
    narrow_clear(be, to, q.rows, q.cols);
    if ((kind == FACTOR_E4M3 || kind == FACTOR_E5M2) && x.scales == nullptr) {
        int64_t pieces = rows * cols / 8, blocks = (pieces + THREADS - 1) / THREADS, most = cuda->multiprocessors * 8;
        CUDA_LAUNCH(be, 1, 1, 0, clear_kernel, (int *)scales + 1);
        CUDA_LAUNCH(be, (unsigned)(blocks < most ? blocks : most), THREADS, 0, largest_kernel, (int *)scales + 1,
                    (const __nv_bfloat16 *)x.data, pieces);
    }
    if (kind == FACTOR_E4M3) launch_<FACTOR_E4M3>(be, q, x, transposed);
    if (kind == FACTOR_E5M2) launch_<FACTOR_E5M2>(be, q, x, transposed);
    if (kind == FACTOR_ROWS_128) launch_<FACTOR_ROWS_128>(be, q, x, transposed);
    if (kind == FACTOR_BLOCKS_128) launch_<FACTOR_BLOCKS_128>(be, q, x, transposed);
    if (kind == FACTOR_ROWS_32) launch_<FACTOR_ROWS_32>(be, q, x, transposed);
}

void cuda_join_scales(Backend *be, void *scales, const void *gathered, int ranks, int64_t rows, int64_t cols,
                      int kind) {
    const int64_t part = rows / ranks, block = factor_block_cols(kind);
    narrow_clear(be, Factor{nullptr, scales, nullptr, kind}, rows, cols);
    CUDA_LAUNCH(be, launch_blocks((cols + block - 1) / block * rows, THREADS), THREADS, 0, join_kernel,
                (uint8_t *)scales, (const uint8_t *)gathered, kind, part, rows, cols,
                factor_scale_bytes(kind, part, cols), kind == FACTOR_ROWS_32 ? 1 : 4);
}
