// Token and position embeddings. The gradient of the token table is a scatter: each thread owns columns and walks all
// rows in order, so that rows of one token are summed in row order for any number of threads.
#include "cpu.h"
#include "base/units.h"

enum { PIECE = 1024, CACHE_LINE_FLOATS = 16 };

void cpu_embedding_forward(Backend *be, void *x, const int32_t *tokens, const int32_t *positions, const void *wte,
                           const void *wpe, int64_t rows, int64_t hidden, int64_t batch, int64_t first, int64_t count) {
    CPU_PARALLEL_FOR(be)
    for (int64_t row = 0; row < rows; row++) {
        float workspace[2][PIECE];
        int64_t token = tokens[row] - first, position = positions == NULL ? row / batch : positions[row];
        for (int64_t column = 0; column < hidden; column += PIECE) {
            int64_t at = row * hidden + column, n = min_i64(hidden - column, PIECE);
            float *to = cpu_place(be, workspace[0], x, at);
            if (token < 0 || token >= count) memset(to, 0, (size_t)n * sizeof *to); // a token of another rank
            else memcpy(to, cpu_load(be, workspace[1], wte, token * hidden + column, n), (size_t)n * sizeof *to);
            if (wpe) cpu_accumulate_row(to, cpu_load(be, workspace[1], wpe, position * hidden + column, n), n);
            cpu_store(be, x, at, to, n);
        }
    }
}

// Adds row i of dx to row index[i] - first of the table; index NULL: i / batch. The columns are divided evenly among
// the threads, in complete cache lines.
static void scatter_(Backend *be, float *table, const void *dx, const int32_t *index, int64_t batch, int64_t rows,
                     int64_t hidden, int64_t first, int64_t count) {
    CpuBackend *cpu = cpu_self(be);
    int64_t share = (hidden + cpu->threads - 1) / cpu->threads;
    share = min_i64((share + CACHE_LINE_FLOATS - 1) / CACHE_LINE_FLOATS * CACHE_LINE_FLOATS, PIECE);
    CPU_PARALLEL_FOR(be)
    for (int64_t column = 0; column < hidden; column += share) {
        float workspace[PIECE];
        int64_t n = min_i64(hidden - column, share);
        for (int64_t row = 0; row < rows; row++) {
            int64_t to = (index == NULL ? row / batch : index[row]) - first;
            if (to < 0 || to >= count) continue;
            const float *from = cpu_load(be, workspace, dx, row * hidden + column, n);
            cpu_accumulate_row(table + to * hidden + column, from, n);
        }
    }
}

void cpu_embedding_backward(Backend *be, float *dwte, float *dwpe, int64_t places, const void *dx,
                            const int32_t *tokens, const int32_t *positions, int64_t rows, int64_t hidden,
                            int64_t batch, int64_t first, int64_t count) {
    scatter_(be, dwte, dx, tokens, batch, rows, hidden, first, count);
    if (dwpe) scatter_(be, dwpe, dx, positions, batch, rows, hidden, 0, places);
}
