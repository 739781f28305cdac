// Quantizes a matrix to eight bits. The result is cut into tiles that hold complete blocks of every kind, so threads
// share no scale. The largest magnitude is a maximum of integers, so it does not depend on the order of tiles.
#include "cpu.h"

enum { TILE = 128 };

// A tile of the result as floats, and its position.
typedef struct QuantizeTile {
    int64_t row, col, rows, cols;
    float x[TILE][TILE];
} QuantizeTile;

// Reads the tile of x (rows, cols), or of its transpose. Values of a quantized x are rounded to bf16.
static void tile_load_(const Backend *be, QuantizeTile *tile, const Factor *x, int64_t rows, int64_t cols,
                       bool transposed) {
    float workspace[TILE];
    int64_t lines = transposed ? tile->cols : tile->rows, length = transposed ? tile->rows : tile->cols;
    int64_t row = transposed ? tile->col : tile->row, col = transposed ? tile->row : tile->col;
    for (int64_t line = 0; line < lines; line++) {
        int64_t at = (row + line) * cols + col;
        const uint8_t *numbers = (const uint8_t *)x->data + at;
        const float *from = workspace;
        float scale = 0;
        if (x->kind == FACTOR_PLAIN) from = cpu_load(be, workspace, x->data, at, length);
        for (int64_t i = 0; i < length && x->kind != FACTOR_PLAIN; i++) {
            if (i % 32 == 0) scale = factor_scale(x, rows, cols, row + line, col + i);
            workspace[i] = bf16_to_float(bf16_from_float(fp8_to_float(numbers[i], FP8_E4M3) * scale));
        }
        for (int64_t i = 0; i < length; i++) *(transposed ? &tile->x[i][line] : &tile->x[line][i]) = from[i];
    }
}

static void row_numbers_(uint8_t *restrict to, const float *restrict x, float inverse, int fraction, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = fp8_from_float(x[i] * inverse, fraction);
}

static uint32_t tile_largest_(const QuantizeTile *tile, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    uint32_t largest = 0;
    int64_t count = tile->cols - col < cols ? tile->cols - col : cols;
    for (int64_t r = row; r < row + rows && r < tile->rows; r++)
        for (int64_t i = 0; i < count; i++) {
            uint32_t bits = fp8_bits(tile->x[r][col + i]) & 0x7fffffffu;
            largest = bits > largest ? bits : largest;
        }
    return largest;
}

// An operand that is being quantized.
typedef struct Quantize {
    uint8_t *numbers;
    void *scales;
    int64_t rows, cols;
    int kind;
} Quantize;

// Quantizes one tile. largest: bits of the matrix's largest magnitude, used if the matrix has a single scale.
static void tile_store_(const Quantize *q, const QuantizeTile *tile, uint32_t largest) {
    bool shared = factor_block_cols(q->kind) == 0;
    int64_t rows = shared ? TILE : factor_block_rows(q->kind), cols = shared ? TILE : factor_block_cols(q->kind);
    int fraction = factor_fraction(q->kind);
    int64_t first = factor_scale_place(q->kind, q->rows, q->cols, tile->row, tile->col);
    if (q->kind == FACTOR_ROWS_32) memset((uint8_t *)q->scales + first, 0, TILE * TILE / 32);
    for (int64_t row = 0; row < tile->rows; row += rows)
        for (int64_t col = 0; col < tile->cols; col += cols) {
            uint8_t scale = fp8_scale(shared ? largest : tile_largest_(tile, row, rows, col, cols), fraction);
            float inverse = fp8_scale_inverse(scale);
            int64_t at = factor_scale_place(q->kind, q->rows, q->cols, tile->row + row, tile->col + col);
            if (q->kind == FACTOR_ROWS_32) ((uint8_t *)q->scales)[at] = scale;
            else if (!shared) ((float *)q->scales)[at] = fp8_scale_float(scale);
            int64_t count = tile->cols - col < cols ? tile->cols - col : cols;
            for (int64_t r = row; r < row + rows && r < tile->rows; r++) {
                uint8_t *to = q->numbers + (tile->row + r) * q->cols + tile->col + col;
                if (fraction == FP8_E4M3) row_numbers_(to, &tile->x[r][col], inverse, FP8_E4M3, count);
                else row_numbers_(to, &tile->x[r][col], inverse, FP8_E5M2, count);
            }
        }
}

void cpu_quantize(Backend *be, Factor to, Factor x, int64_t rows, int64_t cols, bool transposed) {
    int kind = to.kind;
    void *scales = (void *)to.scales;
    const Quantize q = {(void *)to.data, scales, transposed ? cols : rows, transposed ? rows : cols, kind};
    int64_t across = (q.cols + TILE - 1) / TILE, tiles = (q.rows + TILE - 1) / TILE * across;
    bool known = factor_block_cols(kind) == 0 && x.scales != NULL;
    uint32_t largest = known ? ((const uint32_t *)x.scales)[1] : 0;
    for (int pass = factor_block_cols(kind) == 0 && !known ? 0 : 1; pass < 2; pass++) {
        CPU_PARALLEL_FOR(be)
        for (int64_t i = 0; i < tiles; i++) {
            QuantizeTile tile;
            tile.row = i / across * TILE, tile.col = i % across * TILE;
            tile.rows = q.rows - tile.row < TILE ? q.rows - tile.row : TILE;
            tile.cols = q.cols - tile.col < TILE ? q.cols - tile.col : TILE;
            tile_load_(be, &tile, &x, rows, cols, transposed);
            if (pass == 1) {
                tile_store_(&q, &tile, largest);
                continue;
            }
            uint32_t here = tile_largest_(&tile, 0, TILE, 0, TILE);
#ifdef _OPENMP
#pragma omp critical(cpu_quantize_largest)
#endif
            largest = here > largest ? here : largest;
        }
    }
    if (factor_block_cols(kind) > 0) return;
    ((uint32_t *)scales)[1] = largest;
    ((float *)scales)[0] = fp8_scale_float(fp8_scale(largest, factor_fraction(kind)));
}

void cpu_narrow(Backend *be, Factor out, int64_t rows, int64_t cols) {
    if (out.kind != FACTOR_PLAIN) cpu_quantize(be, out, factor_plain(out.source), rows, cols, false);
}

void cpu_join_scales(Backend *be, void *scales, const void *gathered, int ranks, int64_t rows, int64_t cols, int kind) {
    (void)be;
    int64_t part = rows / ranks, bytes = factor_scale_bytes(kind, part, cols), size = kind == FACTOR_ROWS_32 ? 1 : 4;
    if (kind == FACTOR_ROWS_32) memset(scales, 0, (size_t)factor_scale_bytes(kind, rows, cols));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < cols; col += factor_block_cols(kind)) {
            const char *from = (const char *)gathered + row / part * bytes;
            memcpy((char *)scales + size * factor_scale_place(kind, rows, cols, row, col),
                   from + size * factor_scale_place(kind, part, cols, row % part, col), (size_t)size);
        }
}
