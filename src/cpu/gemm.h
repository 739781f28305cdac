// The steps of the matrix product, for code that packs an operand once and multiplies with it often.
#pragma once

#include "cpu.h"

// The kernel's tile of C: GEMM_ROWS x GEMM_VECTORS vectors of GEMM_LANES floats, as many as there are registers for.
#if defined(__AVX512F__)
enum { GEMM_LANES = 16, GEMM_ROWS = 8, GEMM_VECTORS = 3 };
#elif defined(__AVX__)
enum { GEMM_LANES = 8, GEMM_ROWS = 4, GEMM_VECTORS = 3 };
#elif defined(__aarch64__)
enum { GEMM_LANES = 4, GEMM_ROWS = 8, GEMM_VECTORS = 2 };
#else
enum { GEMM_LANES = 4, GEMM_ROWS = 4, GEMM_VECTORS = 2 };
#endif
enum { GEMM_COLS = GEMM_VECTORS * GEMM_LANES };

// Returns the width, in vectors, of op(B)'s panels for n columns: the width with the fewest superfluous columns; ties:
// the largest.
int gemm_vectors(int64_t n);

// Packs op(from) (count, depth) into consecutive panels of `width` rows; element (k, row) of a panel is at
// panel[k * width + row]. Writes (count rounded up to width) * depth floats and pads the last panel with zeros. A left
// factor is packed with width GEMM_ROWS, a right factor with width gemm_vectors * GEMM_LANES and transposed.
void gemm_pack(float *to, int width, int64_t count, int64_t depth, CpuOperand from);

// Returns the part of op(matrix) from (row, col) on.
CpuOperand gemm_part(CpuOperand matrix, int64_t row, int64_t col);

// A left factor. rows false: packed panels, `next` floats from one panel to the next (k * GEMM_ROWS). rows true: a
// plain matrix with row stride GEMM_COLS. The kernel may read up to GEMM_ROWS - 1 rows after the last row of a plain
// matrix; that memory must exist, with any contents.
typedef struct GemmLeft {
    const float *data;
    int64_t next;
    bool rows;
} GemmLeft;

static inline GemmLeft gemm_panels(const float *panels, int64_t depth) {
    return (GemmLeft){panels, depth * GEMM_ROWS, false};
}
static inline GemmLeft gemm_rows(const float *matrix) { return (GemmLeft){matrix, GEMM_ROWS * GEMM_COLS, true}; }

// A right factor: packed panels of `vectors` vectors, `step` floats from one k to the next and `next` from panel to
// panel. `step` and `next` are larger than a panel requires if only some columns or k values of the panels are used.
typedef struct GemmRight {
    const float *data;
    int vectors;
    int64_t step, next;
} GemmRight;

static inline GemmRight gemm_columns(const float *panels, int vectors, int64_t depth) {
    int64_t width = vectors * (int64_t)GEMM_LANES;
    return (GemmRight){panels, vectors, width, width * depth};
}

// Stores left * right, summed over `depth` values of k, in C (m, n) of row stride `stride`; adds to C if `accumulate`.
void gemm_multiply(int64_t m, int64_t n, int64_t depth, GemmLeft left, GemmRight right, bool accumulate, float *c,
                   int64_t stride);
