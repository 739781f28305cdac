// Linear layers. The output is cut into tiles, one thread each; bias and GELU are applied while a tile is in cache. If
// the program is built with oneDNN, oneDNN computes fp32 tiles, and bf16 tiles if the processor multiplies bf16
// (gemm_bf16.c); gemm.c computes all others. Tiles and threads are always ours, because oneDNN would split long sums
// over its threads, and the result would depend on their number.
#include "cpu.h"

#if defined(HAVE_DNNL)
#include <dnnl.h>
#endif

typedef struct Tiles {
    int64_t rows, cols; // size of one tile
    int64_t down, across;
} Tiles;

// Returns the largest tile that gives at least 8 tiles, so that several threads have work even in a small product. The
// tile depends only on the shape. A very small product gets the smallest tile, and fewer than 8 tiles.
static Tiles tiles_of_(int64_t m, int64_t n) {
    enum { ENOUGH = 8, LEAST_ROWS = 64, LEAST_COLS = 96 };
    Tiles t = {CPU_GEMM_ROWS, CPU_GEMM_COLS, 0, 0};
    for (;;) {
        t.down = (m + t.rows - 1) / t.rows, t.across = (n + t.cols - 1) / t.cols;
        if (t.down * t.across >= ENOUGH) return t;
        bool narrow = t.cols > LEAST_COLS && t.cols * 2 >= t.rows * 3;
        if (narrow) t.cols /= 2;
        else if (t.rows > LEAST_ROWS) t.rows /= 2;
        else return t;
    }
}

typedef struct Tile {
    int64_t row, col, rows, cols;
} Tile;

// Tiles of one column strip have consecutive indices, because they read the same part of the right operand.
static Tile tile_at_(const Tiles *t, int64_t index, int64_t m, int64_t n) {
    Tile tile = {index % t->down * t->rows, index / t->down * t->cols, t->rows, t->cols};
    if (m - tile.row < tile.rows) tile.rows = m - tile.row;
    if (n - tile.col < tile.cols) tile.cols = n - tile.col;
    return tile;
}

// Describes the left or right operand of a product; its quantized form is (rows, depth).
static CpuFactor factor_open_(Factor operand, int64_t rows, int64_t depth, bool right) {
    CpuFactor f = {.factor = operand, .rows = rows, .depth = depth, .right = right};
    for (int i = 0; operand.kind != FACTOR_PLAIN && i < 256; i++)
        f.values[i] = fp8_to_float((uint8_t)i, factor_fraction(operand.kind));
    return f;
}

// Returns the part of an operand that starts at (row, col) of the plain matrix; row or col is 0. A quantized operand
// starts at the row row + col of its quantized form.
static CpuOperand operand_part_(const Backend *be, const CpuFactor *f, int64_t stride, int64_t row, int64_t col,
                                bool transposed) {
    const char *data = f->factor.data;
    if (f->factor.kind != FACTOR_PLAIN)
        return (CpuOperand){data + (row + col) * f->depth, f->depth, f->right, false, f};
    return (CpuOperand){data + (row * stride + col) * be->element, stride, transposed, cpu_is_bf16(be), NULL};
}

void cpu_tile_product(Backend *be, float *workspace, int64_t m, int64_t n, int64_t k, CpuOperand a, CpuOperand b,
                      bool accumulate, float *c, int64_t stride) {
#if defined(HAVE_DNNL)
#if defined(_OPENMP)
    omp_set_num_threads(1); // for this task: in a parallel region of one thread oneDNN would otherwise start threads
#endif
    bool plain = a.quantized == NULL && k > 0;
    if (plain && a.bf16 && cpu_self(be)->bf16_library && cpu_gemm_bf16(be, m, n, k, a, b, accumulate, c, stride))
        return;
    if (plain && !a.bf16 &&
        dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data, a.stride, b.data,
                   b.stride, accumulate ? 1.0f : 0.0f, c, stride) == dnnl_success)
        return;
#else
    (void)be;
#endif
    cpu_gemm(workspace, m, n, k, a, b, accumulate, c, stride);
}

bool cpu_linear_by_library(int precision) {
#if defined(HAVE_DNNL)
    return precision == PRECISION_FP32 || cpu_bf16_by_library();
#else
    (void)precision;
    return false;
#endif
}

// gelu(x) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form, written with one exponential.
static inline float sigmoid2u_(float x) {
    float u = 0.7978845608f * (x + 0.044715f * x * x * x);
    return 1.0f / (1.0f + cpu_expf(-2.0f * u));
}

static void gelu_row_(float *restrict y, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * sigmoid2u_(x[i]);
}

void cpu_gelu_forward(Backend *be, void *out, const void *x, int64_t count) {
    enum { PIECE = CPU_GEMM_COLS };
    CPU_PARALLEL_FOR(be)
    for (int64_t at = 0; at < count; at += PIECE) {
        float workspace[2][PIECE];
        int64_t n = count - at < PIECE ? count - at : PIECE;
        const float *from = cpu_load(be, workspace[0], x, at, n);
        float *to = cpu_place(be, workspace[1], out, at);
        gelu_row_(to, from, n);
        cpu_store(be, out, at, to, n);
    }
}

// The output of a product, (rows, cols), and the operations applied to it.
typedef struct Output {
    void *y, *aux;      // aux: receives the input of GELU; NULL: no GELU
    const void *bias;   // may be NULL
    const void *slopes; // inputs x: the product is multiplied by gelu'(x); NULL: the product has no such factor
    int64_t cols;
} Output;

enum { TILE_WORKSPACE = CPU_GEMM_WORKSPACE + CPU_GEMM_ROWS * CPU_GEMM_COLS };

int64_t cpu_linear_workspace(void) { return TILE_WORKSPACE; }

// Computes y = left right, summed over k, then applies bias, GELU or gelu' to each tile. right is stored as (cols, k)
// if `transposed`, else as (k, cols).
static void product_in_tiles_(Backend *be, const Output *o, int64_t rows, int64_t k, const CpuFactor *left,
                              const CpuFactor *right, bool transposed) {
    Tiles tiles = tiles_of_(rows, o->cols);
    CPU_PARALLEL_FOR_DYNAMIC(be)
    for (int64_t i = 0; i < tiles.down * tiles.across; i++) {
        float *workspace = cpu_scratch(be, TILE_WORKSPACE);
        Tile t = tile_at_(&tiles, i, rows, o->cols);
        // A tile is summed in the output itself, or in the thread's workspace if the output is bf16.
        int64_t stride = cpu_is_bf16(be) ? t.cols : o->cols, at = t.row * o->cols + t.col;
        float *sums = cpu_place(be, workspace + CPU_GEMM_WORKSPACE, o->aux != NULL ? o->aux : o->y, at);
        CpuOperand a = operand_part_(be, left, k, t.row, 0, false);
        CpuOperand b = transposed ? operand_part_(be, right, k, t.col, 0, true)
                                  : operand_part_(be, right, o->cols, 0, t.col, false);
        cpu_tile_product(be, workspace, t.rows, t.cols, k, a, b, false, sums, stride);
        float bias_workspace[CPU_GEMM_COLS], row_workspace[CPU_GEMM_COLS];
        void *linear = o->aux != NULL ? o->aux : o->y;
        const float *bias = o->bias == NULL ? NULL : cpu_load(be, bias_workspace, o->bias, t.col, t.cols);
        for (int64_t r = 0; r < t.rows; r++, at += o->cols) {
            float *row = sums + r * stride;
            if (bias != NULL) cpu_accumulate_row(row, bias, t.cols);
            if (o->slopes != NULL) {
                // Multiplied by gelu'(x) = s + x s (1 - s) 2u', where s = sigmoid(2u).
                float *restrict d = row;
                const float *restrict x = cpu_load(be, row_workspace, o->slopes, at, t.cols);
                for (int64_t c = 0; c < t.cols; c++) {
                    float s = sigmoid2u_(x[c]);
                    float slope = 1.5957691216f * (1.0f + 0.134145f * x[c] * x[c]);
                    d[c] = d[c] * (s + x[c] * s * (1.0f - s) * slope);
                }
            }
            cpu_store(be, linear, at, row, t.cols);
            if (o->aux == NULL) continue;
            // gelu sees the stored values, as the backward will.
            const float *x = cpu_load(be, row, linear, at, t.cols);
            float *y = cpu_place(be, row_workspace, o->y, at);
            gelu_row_(y, x, t.cols);
            cpu_store(be, o->y, at, y, t.cols);
        }
    }
}

void cpu_linear_forward(Backend *be, void *y, void *aux, Factor x, Factor w, const void *bias, int64_t rows, int64_t in,
                        int64_t out, Epilogue epilogue) {
    const CpuFactor left = factor_open_(x, rows, in, false), right = factor_open_(w, out, in, true);
    Output output = {y, epilogue == EPILOGUE_GELU ? aux : NULL, bias, NULL, out};
    product_in_tiles_(be, &output, rows, in, &left, &right, true);
}

void cpu_linear_backward_input(Backend *be, void *dx, const void *aux, Factor dy, Factor w, int64_t rows, int64_t in,
                               int64_t out, Epilogue epilogue) {
    const CpuFactor left = factor_open_(dy, rows, out, false), right = factor_open_(w, in, out, true);
    Output output = {dx, NULL, NULL, epilogue == EPILOGUE_GELU ? aux : NULL, in};
    product_in_tiles_(be, &output, rows, out, &left, &right, false);
}

void cpu_linear_backward_weight(Backend *be, float *dw, float *dbias, Factor dy, Factor x, int64_t rows, int64_t in,
                                int64_t out, bool adds) {
    enum { SUMMED_ROWS = 64 };
    const CpuFactor left = factor_open_(dy, out, rows, false), right = factor_open_(x, in, rows, true);
    Tiles tiles = tiles_of_(out, in);
    CPU_PARALLEL_FOR_DYNAMIC(be)
    for (int64_t i = 0; i < tiles.down * tiles.across; i++) {
        float *workspace = cpu_scratch(be, TILE_WORKSPACE);
        Tile t = tile_at_(&tiles, i, out, in);
        cpu_tile_product(be, workspace, t.rows, t.cols, rows, operand_part_(be, &left, out, 0, t.row, true),
                         operand_part_(be, &right, in, 0, t.col, false), adds, dw + t.row * in + t.col, in);
        // The column sums of dy: 64 rows at a time, so that the error grows with rows / 64.
        for (int64_t first = 0; dbias != NULL && t.col == 0 && first < rows; first += SUMMED_ROWS) {
            float sums[CPU_GEMM_COLS] = {0}, row[CPU_GEMM_COLS];
            for (int64_t r = first; r < rows && r < first + SUMMED_ROWS; r++)
                cpu_accumulate_row(sums, cpu_load(be, row, dy.source, r * out + t.row, t.rows), t.rows);
            cpu_accumulate_row(dbias + t.row, sums, t.rows);
        }
    }
}
