// An operand of a matrix product: in the run's precision, or quantized to eight bits with scales. A quantized operand
// is (rows, depth), row-major, and the product sums along its rows. So a product of quantized operands is a bT. On
// every device scales have cuBLASLt's layout ("Narrow Precision Data Types Usage" in the cuBLAS documentation).
#pragma once

#include "base/number_formats.h"

typedef enum FactorKind {
    FACTOR_PLAIN,      // the run's precision; no scales
    FACTOR_E4M3,       // one fp32 scale for the matrix
    FACTOR_E5M2,       // one fp32 scale for the matrix; for gradients
    FACTOR_ROWS_128,   // E4M3; an fp32 scale for each 128 numbers of a row
    FACTOR_BLOCKS_128, // E4M3; an fp32 scale for each 128 x 128 block
    FACTOR_ROWS_32,    // E4M3; a UE8M0 scale for each 32 numbers of a row
} FactorKind;

typedef struct Factor {
    const void *data;
    const void *scales; // plain: the single scale of a matrix quantized twice, which the first call sets; or NULL
    const void *source; // the plain matrix, or its transpose, before quantization; for column sums
    int kind;           // FactorKind
} Factor;

static inline Factor factor_plain(const void *data) {
    Factor operand = {data, 0, data, FACTOR_PLAIN};
    return operand;
}

FP8_INLINE int factor_fraction(int kind) { return kind == FACTOR_E5M2 ? FP8_E5M2 : FP8_E4M3; }

// Return the rows and the columns of a block that shares a scale; 0: the complete matrix shares one scale.
FP8_INLINE int factor_block_rows(int kind) {
    return kind == FACTOR_BLOCKS_128 ? 128 : kind == FACTOR_ROWS_128 || kind == FACTOR_ROWS_32 ? 1 : 0;
}

FP8_INLINE int factor_block_cols(int kind) {
    return kind == FACTOR_ROWS_32 ? 32 : kind == FACTOR_ROWS_128 || kind == FACTOR_BLOCKS_128 ? 128 : 0;
}

// Returns the scale index of the block at (row, col); col is a multiple of the block's columns. ROWS_128: column-major,
// one column of scales per 128 columns. BLOCKS_128: row-major, each row of blocks padded to a multiple of four scales.
// ROWS_32: tiles of 128 rows with 4 scales each; in a tile the scales of rows r, r + 32, r + 64, r + 96 are adjacent,
// and scales past the last row or column are 0, since cuBLASLt reads all of a tile.
FP8_INLINE int64_t factor_scale_place(int kind, int64_t rows, int64_t depth, int64_t row, int64_t col) {
    if (kind == FACTOR_ROWS_128) return col / 128 * rows + row;
    if (kind == FACTOR_BLOCKS_128) return row / 128 * ((depth + 511) / 512 * 4) + col / 128;
    if (kind != FACTOR_ROWS_32) return 0;
    int64_t tile = row / 128 * ((depth + 127) / 128) + col / 128;
    return tile * 512 + row % 32 * 16 + row / 32 % 4 * 4 + col / 32 % 4;
}

enum { FACTOR_ONE_SCALE = 16 }; // bytes of a matrix's single scale, its largest magnitude and padding

// Returns the bytes of an operand's scales.
static inline int64_t factor_scale_bytes(int kind, int64_t rows, int64_t depth) {
    if (kind == FACTOR_PLAIN) return 0;
    if (kind == FACTOR_ROWS_128) return (depth + 127) / 128 * rows * 4;
    if (kind == FACTOR_BLOCKS_128) return (rows + 127) / 128 * ((depth + 511) / 512) * 16;
    if (kind == FACTOR_ROWS_32) return (rows + 127) / 128 * ((depth + 127) / 128) * 512;
    return FACTOR_ONE_SCALE;
}

// Returns the scale of the number at (row, col) of a quantized operand.
static inline float factor_scale(const Factor *operand, int64_t rows, int64_t depth, int64_t row, int64_t col) {
    int64_t at = factor_scale_place(operand->kind, rows, depth, row, col);
    if (operand->kind == FACTOR_ROWS_32) return fp8_scale_float(((const uint8_t *)operand->scales)[at]);
    return ((const float *)operand->scales)[at];
}
