// RMSNorm (Zhang & Sennrich 2019) and LayerNorm (Ba et al. 2016), which are one computation: RMSNorm is LayerNorm with
// its mean taken as zero and no bias.
//
//     xhat = (x - mean) * rstd,  out = xhat * w + b
//     g = dout * w,  dx = rstd * (g - mean(g) - xhat * mean(g * xhat)),  dw = sum dout * xhat,  db = sum dout
//
// A row fits in the cache, so several passes over it read memory once. Statistics are computed from the stored values
// (rounded if bf16), which the backward reads too.
#include "cpu.h"
#include "lanes.h"

#include "base/units.h"

// A backward block sums dw over its rows in order; the blocks' sums are added in block order. BACKWARD_BLOCKS limits
// their number and so the memory for sums. The forward has no such sums: rows of a block share only the loaded w and b.
enum { FORWARD_ROWS = 16, BACKWARD_ROWS = 32, BACKWARD_BLOCKS = 64 };

// One normalization: of each row of a matrix, or of the query heads or the key heads in each row of qkv.
typedef struct Norm {
    const void *w, *b; // b may be NULL
    int64_t rows, cols;
    double eps;
    bool centered;                           // LayerNorm
    int64_t first, heads, width, kept_width; // heads [first, first + heads); row strides of operands and `kept`
} Norm;

static int64_t stride_(const Norm *norm) { return (norm->cols + LANES - 1) / LANES * LANES; }

static int64_t blocks_(const Norm *norm, int64_t rows) { return (norm->rows + rows - 1) / rows; }

static int64_t block_end_(const Norm *norm, int64_t block, int64_t rows) {
    return min_i64((block + 1) * rows, norm->rows);
}

static int64_t backward_rows_(const Norm *norm) { return max_i64(blocks_(norm, BACKWARD_BLOCKS), BACKWARD_ROWS); }

static float row_mean_(const Norm *norm, const float *x) {
    return norm->centered ? (float)((double)lanes_sum(x, norm->cols) / (double)norm->cols) : 0.0f;
}

static float rstd_(const Norm *norm, float squares) {
    return (float)(1.0 / sqrt((double)squares / (double)norm->cols + norm->eps));
}

// Returns the sum of squared deviations, in a second pass: E[x^2] - E[x]^2 cancels if the mean is large.
static float row_squares_(const float *x, float mean, int64_t cols) {
    Lanes sum = {0}, v;
    int64_t whole = lanes_whole(cols, LANES);
    for (int64_t i = 0; i < whole; i += LANES) {
        lanes_load(&v, x + i);
        v -= mean;
        sum += v * v;
    }
    for (int64_t i = whole; i < cols; i++) sum[i - whole] += (x[i] - mean) * (x[i] - mean);
    return lanes_fold(&sum);
}

enum { FORWARD_WORKSPACE = 5 }; // rows

// Returns the floats of a backward: the blocks' sums, and 4 rows for each thread.
static int64_t backward_workspace_(const Norm *norm, int threads) {
    return (2 * blocks_(norm, backward_rows_(norm)) + 4 * threads) * stride_(norm);
}

int64_t cpu_norm_workspace(int64_t rows, int64_t cols, int threads, int thread) {
    Norm norm = {.rows = rows, .cols = cols};
    return max_i64(FORWARD_WORKSPACE * stride_(&norm), thread == 0 ? backward_workspace_(&norm, threads) : 0);
}

// kept (may be NULL) receives the norm's input, x + delta or x, which the backward reads. out may be x.
static void norm_forward_(Backend *be, const Norm *norm, void *out, void *kept, const void *x, const void *delta) {
    int64_t cols = norm->cols, stride = stride_(norm), blocks = blocks_(norm, FORWARD_ROWS);
    CPU_PARALLEL_FOR_DYNAMIC(be)
    for (int64_t block = 0; block < blocks; block++) {
        float *workspace = cpu_scratch(be, FORWARD_WORKSPACE * stride);
        const float *w = cpu_load(be, workspace, norm->w, 0, cols);
        const float *b = norm->b ? cpu_load(be, workspace + stride, norm->b, 0, cols) : NULL;
        for (int64_t row = block * FORWARD_ROWS; row < block_end_(norm, block, FORWARD_ROWS); row++)
            for (int64_t head = norm->first; head < norm->first + norm->heads; head++) {
                int64_t at = row * norm->width + head * cols, keep = row * norm->kept_width + head * cols;
                const float *in = cpu_load(be, workspace + 2 * stride, x, at, cols);
                if (kept) {
                    float *sum = cpu_place(be, workspace + 4 * stride, kept, keep);
                    if (sum != in) memcpy(sum, in, (size_t)cols * sizeof *sum);
                    if (delta) cpu_accumulate_row(sum, cpu_load(be, workspace + 3 * stride, delta, at, cols), cols);
                    cpu_store(be, kept, keep, sum, cols);
                    in = cpu_load(be, workspace + 2 * stride, kept, keep, cols);
                }
                float *restrict to = cpu_place(be, workspace + 3 * stride, out, at);
                float mean = row_mean_(norm, in), rstd = rstd_(norm, row_squares_(in, mean, cols));
                for (int64_t i = 0; i < cols && !b; i++) to[i] = (in[i] - mean) * rstd * w[i];
                for (int64_t i = 0; i < cols && b; i++) to[i] = (in[i] - mean) * rstd * w[i] + b[i];
                cpu_store(be, out, at, to, cols);
            }
    }
}

typedef struct RowSums {
    float squares, g, gx; // sums of (x - mean)^2, g, g * (x - mean)
} RowSums;

static RowSums row_sums_(const float *dout, const float *x, const float *w, float mean, int64_t cols) {
    Lanes squares = {0}, g = {0}, gx = {0}, value, weight, centered;
    int64_t whole = lanes_whole(cols, LANES);
    for (int64_t i = 0; i < whole; i += LANES) {
        lanes_load(&value, dout + i);
        lanes_load(&weight, w + i);
        lanes_load(&centered, x + i);
        value *= weight;
        centered -= mean;
        squares += centered * centered;
        g += value;
        gx += value * centered;
    }
    for (int64_t i = whole; i < cols; i++) {
        squares[i - whole] += (x[i] - mean) * (x[i] - mean);
        g[i - whole] += dout[i] * w[i];
        gx[i - whole] += dout[i] * w[i] * (x[i] - mean);
    }
    return (RowSums){lanes_fold(&squares), lanes_fold(&g), lanes_fold(&gx)};
}

static void backward_row_(const Norm *norm, float *restrict dx, float *restrict dw, const float *restrict dout,
                          const float *restrict x, const float *restrict w) {
    int64_t cols = norm->cols;
    float mean = row_mean_(norm, x);
    RowSums sums = row_sums_(dout, x, w, mean, cols);
    float rstd = rstd_(norm, sums.squares);
    float g_mean = norm->centered ? (float)((double)sums.g / (double)cols) : 0.0f;
    float gx_mean = (float)((double)sums.gx * (double)rstd / (double)cols);
    for (int64_t i = 0; i < cols; i++) {
        float xhat = (x[i] - mean) * rstd;
        dx[i] += rstd * (dout[i] * w[i] - g_mean - xhat * gx_mean);
        dw[i] += dout[i] * xhat;
    }
}

// If dx == dout (heads, in place), the gradient of the norm's outputs is replaced; otherwise the result is added to dx.
// The sums of all blocks, each of dw and then of db, are stored until the last block is done. Adding them block by
// block would need less memory, but threads would wait for their turn, and with more threads than cores each wait can
// cost a time slice.
static void norm_backward_(Backend *be, const Norm *norm, void *dx, float *dw, float *db, const void *dout,
                           const void *x) {
    CpuBackend *cpu = cpu_self(be);
    int64_t cols = norm->cols, stride = stride_(norm), rows = backward_rows_(norm), blocks = blocks_(norm, rows);
    float *sums = cpu_scratch(be, backward_workspace_(norm, cpu->threads)), *workspaces = sums + 2 * blocks * stride;
    CPU_PARALLEL_FOR_DYNAMIC(be)
    for (int64_t block = 0; block < blocks; block++) {
        float *workspace = workspaces + 4 * stride * cpu_thread(), *sum = sums + 2 * stride * block;
        memset(sum, 0, (size_t)(2 * stride) * sizeof *sum);
        const float *w = cpu_load(be, workspace, norm->w, 0, cols);
        for (int64_t row = block * rows; row < block_end_(norm, block, rows); row++)
            for (int64_t head = norm->first; head < norm->first + norm->heads; head++) {
                int64_t at = row * norm->width + head * cols, keep = row * norm->kept_width + head * cols;
                const float *in = cpu_load(be, workspace + stride, x, keep, cols);
                const float *upstream = cpu_load(be, workspace + 2 * stride, dout, at, cols);
                float *to = workspace + 3 * stride;
                if (dx == dout) memset(to, 0, (size_t)cols * sizeof *to);
                else cpu_load(be, to, dx, at, cols), to = cpu_place(be, to, dx, at);
                backward_row_(norm, to, sum, upstream, in, w);
                if (norm->centered) cpu_accumulate_row(sum + stride, upstream, cols);
                cpu_store(be, dx, at, to, cols);
            }
    }
    for (int64_t block = 0; block < blocks; block++) {
        cpu_accumulate_row(dw, sums + 2 * stride * block, cols);
        if (db) cpu_accumulate_row(db, sums + 2 * stride * block + stride, cols);
    }
}

void cpu_norm_forward(Backend *be, Factor out, void *sum, const void *x, const void *delta, const void *w,
                      const void *b, int64_t rows, int64_t cols, double eps) {
    Norm norm = {w, b, rows, cols, eps, b != NULL, 0, 1, cols, cols};
    norm_forward_(be, &norm, (void *)out.source, delta ? sum : NULL, x, delta);
    cpu_narrow(be, out, rows, cols);
}

void cpu_norm_backward(Backend *be, void *dx, float *dw, float *db, const void *dout, const void *x, const void *w,
                       int64_t rows, int64_t cols, double eps) {
    Norm norm = {w, NULL, rows, cols, eps, db != NULL, 0, 1, cols, cols};
    norm_backward_(be, &norm, dx, dw, db, dout, x);
}

static Norm norm_of_heads_(const AttentionShape *s, const void *w, int64_t first, int64_t heads, double eps) {
    return (Norm){.w = w,
                  .rows = s->seq * s->batch,
                  .cols = s->head_dim,
                  .eps = eps,
                  .first = first,
                  .heads = heads,
                  .width = attention_qkv_width(s),
                  .kept_width = (s->heads + s->kv_heads) * s->head_dim};
}

void cpu_heads_norm_forward(Backend *be, void *qkv, void *kept, const void *wq, const void *wk, const AttentionShape *s,
                            double eps) {
    Norm q = norm_of_heads_(s, wq, 0, s->heads, eps), k = norm_of_heads_(s, wk, s->heads, s->kv_heads, eps);
    norm_forward_(be, &q, qkv, kept, qkv, NULL);
    norm_forward_(be, &k, qkv, kept, qkv, NULL);
}

void cpu_heads_norm_backward(Backend *be, void *dqkv, float *dwq, float *dwk, const void *kept, const void *wq,
                             const void *wk, const AttentionShape *s, double eps) {
    Norm q = norm_of_heads_(s, wq, 0, s->heads, eps), k = norm_of_heads_(s, wk, s->heads, s->kv_heads, eps);
    norm_backward_(be, &q, dqkv, dwq, NULL, dqkv, kept);
    norm_backward_(be, &k, dqkv, dwk, NULL, dqkv, kept);
}
