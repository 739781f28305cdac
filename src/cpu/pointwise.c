// Elementwise operations: sums, SwiGLU, rotary positions. Any division of the work among threads gives the same bits.
#include "cpu.h"

#include "base/units.h"
#include "lanes.h"

#include <assert.h>

// Elements processed at once: a bf16 piece converted to floats stays in the first-level cache.
enum { PIECE = 1024 };

static int64_t pieces_(int64_t count) { return (count + PIECE - 1) / PIECE; }

void cpu_combine(Backend *be, void *out, double a, const void *x, double b, const void *y, int64_t count) {
    const float of_x = (float)a, of_y = (float)b;
    CPU_PARALLEL_FOR(be)
    for (int64_t at = 0; at < count; at += PIECE) {
        float workspace[3][PIECE];
        int64_t n = min_i64(count - at, PIECE);
        const float *left = cpu_load(be, workspace[0], x, at, n);
        const float *right = cpu_load(be, workspace[1], y, at, n);
        float *to = cpu_place(be, workspace[2], out, at);
        for (int64_t i = 0; i < n; i++) to[i] = of_x * left[i] + of_y * right[i];
        cpu_store(be, out, at, to, n);
    }
}

void cpu_accumulate(Backend *be, float *to, const float *from, int64_t count) {
    CPU_PARALLEL_FOR(be)
    for (int64_t at = 0; at < count; at += PIECE) cpu_accumulate_row(to + at, from + at, min_i64(count - at, PIECE));
}

// --- SwiGLU (Shazeer 2020)

void cpu_swiglu_forward(Backend *be, Factor out, const void *gate_up, const float *scale, int64_t rows, int64_t ffn) {
    int64_t per_row = pieces_(ffn), pieces = rows * per_row;
    CPU_PARALLEL_FOR(be)
    for (int64_t piece = 0; piece < pieces; piece++) {
        float workspace[3][PIECE];
        int64_t row = piece / per_row, column = piece % per_row * PIECE, n = min_i64(ffn - column, PIECE);
        int64_t in = row * 2 * ffn + column, at = row * ffn + column;
        const float *gate = cpu_load(be, workspace[0], gate_up, in, n);
        const float *up = cpu_load(be, workspace[1], gate_up, in + ffn, n);
        float *to = cpu_place(be, workspace[2], (void *)out.source, at);
        const float factor = scale == NULL ? 1.0f : scale[row];
        for (int64_t i = 0; i < n; i++) to[i] = gate[i] / (1.0f + cpu_expf(-gate[i])) * up[i] * factor;
        cpu_store(be, (void *)out.source, at, to, n);
    }
    cpu_narrow(be, out, rows, ffn);
}

void cpu_swiglu_backward(Backend *be, Factor dgate_up, float *dscale, const void *dout, const void *gate_up,
                         const float *scale, int64_t rows, int64_t ffn) {
    void *to = (void *)dgate_up.source;
    assert((scale == NULL) == (dscale == NULL) && (scale == NULL || dgate_up.kind == FACTOR_PLAIN));
    CPU_PARALLEL_FOR(be)
    for (int64_t row = 0; row < rows; row++) {
        float workspace[5][PIECE], terms[PIECE], sum = 0;
        const float factor = scale == NULL ? 1.0f : scale[row];
        for (int64_t column = 0; column < ffn; column += PIECE) {
            int64_t n = min_i64(ffn - column, PIECE), in = row * 2 * ffn + column;
            const float *gate = cpu_load(be, workspace[0], gate_up, in, n);
            const float *up = cpu_load(be, workspace[1], gate_up, in + ffn, n);
            const float *upstream = cpu_load(be, workspace[2], dout, row * ffn + column, n);
            float *restrict dgate = cpu_place(be, workspace[3], to, in);
            float *restrict dup = cpu_place(be, workspace[4], to, in + ffn);
            for (int64_t i = 0; i < n; i++) {
                float sigmoid = 1.0f / (1.0f + cpu_expf(-gate[i]));
                float silu = gate[i] * sigmoid, d = upstream[i] * factor;
                dup[i] = d * silu;
                dgate[i] = d * up[i] * (sigmoid + silu * (1.0f - sigmoid));
            }
            cpu_store(be, to, in, dgate, n);
            cpu_store(be, to, in + ffn, dup, n);
            // The sum of dout * silu(gate) * up.
            for (int64_t i = 0; i < n && dscale != NULL; i++)
                terms[i] = upstream[i] * (gate[i] / (1.0f + cpu_expf(-gate[i])) * up[i]);
            if (dscale != NULL) sum += lanes_sum(terms, n);
        }
        if (dscale != NULL) dscale[row] = sum;
    }
    cpu_narrow(be, dgate_up, rows, 2 * ffn);
}

// --- rotary positions (Su et al. 2021)

// Pairs rotated as one group; a head of 128 elements is a single group.
enum { PAIRS = 64 };

typedef struct Rotation {
    double frequency[PAIRS]; // radians per position
    float cosine[PAIRS], sine[PAIRS];
    int64_t first, pairs; // pairs [first, first + pairs) of a head
    int64_t half;         // from the first element of a pair to the second
} Rotation;

// Computes cos and sin of every pair at one position, in double and without a library call, so that the loop vectorizes
// and needs no table. Subtracts a multiple of pi/2 (Cody & Waite), then uses the Taylor series on [-pi/4, pi/4]. The
// error is below 1e-10 for angles up to a million, far below a float's rounding.
static void rotation_set_(Rotation *rotation, double position, double scale, int direction) {
    const double nearest = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to an integer, found in the low bits
    for (int pair = 0; pair < PAIRS; pair++) {
        double angle = position * rotation->frequency[pair];
        double shifted = angle * 0.63661977236758134308 + nearest;
        double quarter = shifted - nearest;
        double r = (angle - quarter * 1.57079632673412561417) - quarter * 6.07710050650619224932e-11;
        double q = r * r;
        double sine =
            r + r * q * (-1.0 / 6 + q * (1.0 / 120 + q * (-1.0 / 5040 + q * (1.0 / 362880 + q * (-1.0 / 39916800)))));
        double cosine =
            1.0 + q * (-0.5 + q * (1.0 / 24 + q * (-1.0 / 720 +
                                                   q * (1.0 / 40320 + q * (-1.0 / 3628800 + q * (1.0 / 479001600))))));
        int64_t turns;
        memcpy(&turns, &shifted, sizeof turns);
        double c = turns & 1 ? sine : cosine, s = turns & 1 ? cosine : sine;
        rotation->cosine[pair] = (float)(((turns + 1) & 2 ? -c : c) * scale);
        rotation->sine[pair] = (float)((turns & 2 ? -s : s) * scale * direction);
    }
}

// Rotates all query and key heads of one row, which are next to each other.
static void rotate_row_(Backend *be, void *qkv, const AttentionShape *shape, int64_t row, const Rotation *rotation) {
    int64_t width = attention_qkv_width(shape);
    for (int64_t head = 0; head < shape->heads + shape->kv_heads; head++) {
        float workspace[2][PAIRS];
        int64_t low_at = row * width + head * shape->head_dim + rotation->first, high_at = low_at + rotation->half;
        cpu_load(be, workspace[0], qkv, low_at, rotation->pairs);
        cpu_load(be, workspace[1], qkv, high_at, rotation->pairs);
        float *restrict low = cpu_place(be, workspace[0], qkv, low_at);
        float *restrict high = cpu_place(be, workspace[1], qkv, high_at);
        for (int64_t i = 0; i < rotation->pairs; i++) {
            float a = low[i], b = high[i], c = rotation->cosine[i], s = rotation->sine[i];
            low[i] = a * c - b * s;
            high[i] = b * c + a * s;
        }
        cpu_store(be, qkv, low_at, low, rotation->pairs);
        cpu_store(be, qkv, high_at, high, rotation->pairs);
    }
}

void cpu_rope(Backend *be, void *qkv, const AttentionShape *shape, const RopeTable *table, const int32_t *positions,
              int direction) {
    for (int64_t first = 0; first < table->pairs; first += PAIRS) {
        Rotation group = {.first = first, .pairs = min_i64(table->pairs - first, PAIRS), .half = table->pairs};
        memcpy(group.frequency, table->frequency + first, (size_t)group.pairs * sizeof(double));
        CPU_PARALLEL_FOR(be)
        for (int64_t position = 0; position < shape->seq; position++) {
            Rotation rotation = group;
            for (int64_t b = 0; b < shape->batch; b++) {
                int64_t row = position * shape->batch + b,
                        at = positions == NULL ? shape->first + position : positions[row];
                if (b == 0 || positions != NULL) rotation_set_(&rotation, (double)at, table->scale, direction);
                rotate_row_(be, qkv, shape, row, &rotation);
            }
        }
    }
}

// Rows are cut into pieces, so that a few wide rows also keep all threads busy.
void cpu_draw_normal(Backend *be, float *to, int64_t rows, int64_t cols, const NormalRows *draw) {
    int64_t pieces = pieces_(cols);
    CPU_PARALLEL_FOR(be)
    for (int64_t i = 0; i < rows * pieces; i++) {
        int64_t row = i / pieces, at = i % pieces * PIECE;
        random_normal_fill(to + row * cols + at, min_i64(cols - at, PIECE), draw->scale, draw->seed, draw->stream,
                           draw->first + (uint64_t)(row * (int64_t)draw->stride + at));
    }
}
