// Token and position embeddings. The gradient of the token table is a scatter: each thread owns columns and walks all
// rows in order, so that rows of one token are summed in row order for any number of threads.
#include "cpu.h"
#include "base/units.h"

enum { PIECE = 1024, CACHE_LINE_FLOATS = 16 };

// Computes n columns of one row. token_at, position_at: offsets in wte and wpe; token_at -1: a token of another rank.
static void forward_piece_(Backend *backend, void *x, const void *wte, const void *wpe, int64_t at, int64_t token_at,
                           int64_t position_at, int64_t n) {
    float workspace[2][PIECE];
    float *to = cpu_place(backend, workspace[0], x, at);
    if (token_at >= 0) memcpy(to, cpu_load(backend, workspace[1], wte, token_at, n), (size_t)n * sizeof *to);
    else memset(to, 0, (size_t)n * sizeof *to);
    if (wpe) cpu_accumulate_row(to, cpu_load(backend, workspace[1], wpe, position_at, n), n);
    cpu_store(backend, x, at, to, n);
}

void cpu_embedding_forward(Backend *backend, void *x, const int32_t *tokens, const int32_t *positions, const void *wte,
                           const void *wpe, int64_t rows, int64_t hidden, int64_t batch, int64_t first, int64_t count) {
    CPU_PARALLEL_FOR(cpu_self(backend))
    for (int64_t row = 0; row < rows; row++) {
        int64_t token = tokens[row] - first;
        int64_t position = positions == NULL ? row / batch : positions[row];
        bool ours = token >= 0 && token < count;
        for (int64_t column = 0; column < hidden; column += PIECE)
            forward_piece_(backend, x, wte, wpe, row * hidden + column, ours ? token * hidden + column : -1,
                           position * hidden + column, min_i64(hidden - column, PIECE));
    }
}

typedef struct Scatter {
    float *dwte;
    const void *dx;
    const int32_t *tokens;
    int64_t rows, hidden, first, count;
} Scatter;

static void scatter_columns_(Backend *backend, const Scatter *s, int64_t column, int64_t n) {
    float workspace[PIECE];
    for (int64_t row = 0; row < s->rows; row++) {
        int64_t token = s->tokens[row] - s->first;
        if (token < 0 || token >= s->count) continue;
        cpu_accumulate_row(s->dwte + token * s->hidden + column,
                           cpu_load(backend, workspace, s->dx, row * s->hidden + column, n), n);
    }
}

// Returns the columns per thread: equal shares of complete cache lines, at most PIECE, the limit of scatter_columns_.
static int64_t embedding_share_(int64_t hidden, int threads) {
    int64_t share = (hidden + threads - 1) / threads;
    share = (share + CACHE_LINE_FLOATS - 1) / CACHE_LINE_FLOATS * CACHE_LINE_FLOATS;
    return min_i64(share, PIECE);
}

// Adds the gradients of one position to dwpe, in batch order; the rows of a position are contiguous.
static void position_backward_(Backend *backend, float *dwpe, const void *dx, int64_t position, int64_t hidden,
                               int64_t batch) {
    float workspace[PIECE];
    for (int64_t row = position * batch; row < (position + 1) * batch; row++)
        for (int64_t column = 0; column < hidden; column += PIECE) {
            int64_t n = min_i64(hidden - column, PIECE);
            cpu_accumulate_row(dwpe + position * hidden + column,
                               cpu_load(backend, workspace, dx, row * hidden + column, n), n);
        }
}

static void scatter_(Backend *backend, const Scatter *scatter) {
    CpuBackend *cpu = cpu_self(backend);
    int64_t share = embedding_share_(scatter->hidden, cpu->threads);
    CPU_PARALLEL_FOR(cpu)
    for (int64_t column = 0; column < scatter->hidden; column += share)
        scatter_columns_(backend, scatter, column, min_i64(scatter->hidden - column, share));
}

void cpu_embedding_backward(Backend *backend, float *dwte, float *dwpe, int64_t places, const void *dx,
                            const int32_t *tokens, const int32_t *positions, int64_t rows, int64_t hidden,
                            int64_t batch, int64_t first, int64_t count) {
    int64_t seq = rows / batch;
    Scatter scatter = {dwte, dx, tokens, rows, hidden, first, count};
    scatter_(backend, &scatter);
    if (!dwpe) return;
    if (positions != NULL) {
        Scatter by_position = {dwpe, dx, positions, rows, hidden, 0, places};
        scatter_(backend, &by_position);
        return;
    }
    CPU_PARALLEL_FOR(cpu_self(backend))
    for (int64_t position = 0; position < seq; position++)
        position_backward_(backend, dwpe, dx, position, hidden, batch);
}
