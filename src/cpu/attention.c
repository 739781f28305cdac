// Causal attention over strided views of qkv, in three modes that differ in what they keep for the backward:
//   none       the probabilities, (batch, heads, seq, seq)
//   recompute  nothing: a block of QUERIES rows of probabilities at a time is made again
//   flash      log-sum-exp of each row (Dao et al. 2022): blocks of QUERIES x KEYS are made again from it
// A block of queries meets the keys up to its own last position and no others, in all modes.
//
// The forward is parallel over blocks of queries. The backward is parallel over (sequence, key/value head): the dk and
// dv that a group of heads shares are summed by one thread, in the order of heads and queries.
#include "cpu.h"
#include "lanes.h"

// KEYS is a multiple of QUERIES: then every row of a block sees at least one key of each chunk it visits.
enum { QUERIES = 64, KEYS = 256 };

// One query head of one sequence.
typedef struct Head {
    const Backend *backend;
    const AttentionShape *shape;
    int64_t sequence, head;
} Head;

// A block of queries and the keys it sees.
typedef struct Block {
    int64_t first, count, keys;
} Block;

static Block block_at(int64_t seq, int64_t index) {
    int64_t first = index * QUERIES, count = seq - first < QUERIES ? seq - first : QUERIES;
    return (Block){first, count, first + count};
}

static int64_t blocks_of(int64_t seq) {
    return (seq + QUERIES - 1) / QUERIES;
}

// How many of the chunk's keys [k0, k0 + width) row r of the block sees.
static int64_t visible(const Block *block, int64_t r, int64_t k0, int64_t width) {
    int64_t seen = block->first + r + 1 - k0;
    return seen < width ? seen : width;
}

static float score_scale(const AttentionShape *shape) {
    return (float)(1.0 / sqrt((double)shape->head_dim));
}

static int64_t kv_head(const Head *h) {
    return h->head / (h->shape->heads / h->shape->kv_heads);
}

// Element index of (position, column) of this sequence in a matrix of `width` columns.
static int64_t element_at(const Head *h, int64_t width, int64_t position, int64_t column) {
    return (position * h->shape->batch + h->sequence) * width + column;
}

static CpuOperand view(const Head *h, const void *matrix, int64_t width, int64_t position, int64_t column) {
    const char *at = (const char *)matrix + element_at(h, width, position, column) * h->backend->element;
    return (CpuOperand){at, h->shape->batch * width, false, cpu_is_bf16(h->backend)};
}

static int64_t qkv_width(const AttentionShape *s) {
    return (s->heads + 2 * s->kv_heads) * s->head_dim;
}
static int64_t out_width(const AttentionShape *s) {
    return s->heads * s->head_dim;
}

static CpuOperand query(const Head *h, const void *qkv, int64_t position) {
    return view(h, qkv, qkv_width(h->shape), position, h->head * h->shape->head_dim);
}

static CpuOperand key(const Head *h, const void *qkv, int64_t position) {
    return view(h, qkv, qkv_width(h->shape), position, (h->shape->heads + kv_head(h)) * h->shape->head_dim);
}

static CpuOperand value(const Head *h, const void *qkv, int64_t position) {
    int64_t column = (h->shape->heads + h->shape->kv_heads + kv_head(h)) * h->shape->head_dim;
    return view(h, qkv, qkv_width(h->shape), position, column);
}

static CpuOperand output(const Head *h, const void *out, int64_t position) {
    return view(h, out, out_width(h->shape), position, h->head * h->shape->head_dim);
}

static CpuOperand transposed(CpuOperand a) {
    a.transposed = !a.transposed;
    return a;
}

static CpuOperand floats(const float *data, int64_t stride) {
    return (CpuOperand){data, stride, false, false};
}

// --- rows

typedef int32_t LanesMask __attribute__((vector_size(64)));

static float row_max(const float *restrict x, int64_t n, float least) {
    Lanes most = (Lanes){0} + least, v;
    int64_t whole = lanes_whole(n, LANES);
    for (int64_t i = 0; i < whole; i += LANES) {
        lanes_load(&v, x + i);
        LanesMask above = v > most;
        most = (Lanes)(((LanesMask)v & above) | ((LanesMask)most & ~above));
    }
    for (int64_t i = whole; i < n; i++) most[i - whole] = x[i] > most[i - whole] ? x[i] : most[i - whole];
    float largest = most[0];
    for (int l = 1; l < LANES; l++) largest = most[l] > largest ? most[l] : largest;
    return largest;
}

// x = exp(x - shift); returns the sum.
static float row_exp(float *restrict x, int64_t n, float shift) {
    for (int64_t i = 0; i < n; i++) x[i] = cpu_expf(x[i] - shift);
    return lanes_sum(x, n);
}

static float row_dot(const float *restrict x, const float *restrict y, int64_t n) {
    Lanes sum = {0}, a, b;
    int64_t whole = lanes_whole(n, LANES);
    for (int64_t i = 0; i < whole; i += LANES) {
        lanes_load(&a, x + i), lanes_load(&b, y + i);
        sum += a * b;
    }
    for (int64_t i = whole; i < n; i++) sum[i - whole] += x[i] * y[i];
    return lanes_fold(&sum);
}

static void row_scale(float *restrict x, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

static void row_clear(float *x, int64_t from, int64_t to) {
    if (to > from) memset(x + from, 0, sizeof(float) * (size_t)(to - from));
}

// --- a thread's own room, in one piece
typedef struct Room {
    float *gemm;
    float *scores; // (QUERIES, KEYS)
    float *slopes; // (QUERIES, KEYS): gradients of the scores
    float *sums;   // (QUERIES, head_dim): out or dq
    float *row;    // (head_dim), twice
} Room;

static Room room_take(const Head *h) {
    int64_t d = h->shape->head_dim;
    int64_t sizes[] = {CPU_GEMM_ROOM, QUERIES * KEYS, QUERIES * KEYS, QUERIES * d};
    float *at = cpu_scratch(cpu_self((Backend *)h->backend), sizes[0] + sizes[1] + sizes[2] + sizes[3] + 2 * d);
    Room room = {.gemm = at};
    room.scores = room.gemm + sizes[0];
    room.slopes = room.scores + sizes[1];
    room.sums = room.slopes + sizes[2];
    room.row = room.sums + sizes[3];
    return room;
}

// scores (block, width) = q kT / sqrt(head_dim) for the chunk of keys at k0.
static void block_scores(const Head *h, const Room *room, const void *qkv, const Block *block, int64_t k0,
                         int64_t width, float *scores, int64_t stride) {
    cpu_gemm(room->gemm, block->count, width, h->shape->head_dim, score_scale(h->shape), query(h, qkv, block->first),
             transposed(key(h, qkv, k0)), 0.0f, scores, stride);
}

// Whole rows of probabilities, zero beyond the diagonal up to column `cols`.
static void block_probabilities(const Head *h, const Room *room, const void *qkv, const Block *block, float *p,
                                int64_t stride, int64_t cols) {
    block_scores(h, room, qkv, block, 0, block->keys, p, stride);
    for (int64_t r = 0; r < block->count; r++) {
        float *row = p + r * stride;
        int64_t seen = block->first + r + 1;
        float sum = row_exp(row, seen, row_max(row, seen, -INFINITY));
        row_scale(row, seen, 1.0f / sum);
        row_clear(row, seen, cols);
    }
}

static void store_rows(const Head *h, void *matrix, int64_t width, int64_t column, int64_t first, int64_t count,
                       const float *rows) {
    int64_t d = h->shape->head_dim;
    for (int64_t r = 0; r < count; r++) {
        int64_t at = element_at(h, width, first + r, column);
        if (cpu_is_bf16(h->backend))
            cpu_store(h->backend, matrix, at, rows + r * d, d);
        else
            memcpy((float *)matrix + at, rows + r * d, sizeof(float) * (size_t)d);
    }
}

// --- forward

// out and log-sum-exp of one block, chunk by chunk: what was summed so far is scaled whenever the maximum grows.
static void flash_forward(const Head *h, const Room *room, void *out, float *lse, const void *qkv, const Block *block) {
    int64_t d = h->shape->head_dim;
    float most[QUERIES], total[QUERIES];
    for (int64_t k0 = 0; k0 < block->keys; k0 += KEYS) {
        int64_t width = block->keys - k0 < KEYS ? block->keys - k0 : KEYS;
        block_scores(h, room, qkv, block, k0, width, room->scores, KEYS);
        for (int64_t r = 0; r < block->count; r++) {
            float *row = room->scores + r * KEYS;
            int64_t seen = visible(block, r, k0, width);
            float before = k0 == 0 ? -INFINITY : most[r];
            most[r] = row_max(row, seen, before);
            float sum = row_exp(row, seen, most[r]), shrink = k0 == 0 ? 0.0f : cpu_expf(before - most[r]);
            row_clear(row, seen, width);
            total[r] = k0 == 0 ? sum : total[r] * shrink + sum;
            if (k0 > 0 && shrink != 1.0f) row_scale(room->sums + r * d, d, shrink);
        }
        cpu_gemm(room->gemm, block->count, d, width, 1.0f, floats(room->scores, KEYS), value(h, qkv, k0),
                 k0 == 0 ? 0.0f : 1.0f, room->sums, d);
    }
    for (int64_t r = 0; r < block->count; r++) {
        row_scale(room->sums + r * d, d, 1.0f / total[r]);
        lse[block->first + r] = most[r] + logf(total[r]);
    }
    store_rows(h, out, out_width(h->shape), h->head * d, block->first, block->count, room->sums);
}

static int64_t head_index(const Head *h) {
    return h->sequence * h->shape->heads + h->head;
}

// Whole rows of probabilities: into `saved` where they are kept as floats, else into `rows` (QUERIES, seq).
static void stored_forward(const Head *h, const Room *room, void *out, void *saved, float *rows, const void *qkv,
                           const Block *block) {
    int64_t seq = h->shape->seq, d = h->shape->head_dim, at = (head_index(h) * seq + block->first) * seq;
    bool keep = h->shape->mode == ATTENTION_NONE;
    float *p = keep && !cpu_is_bf16(h->backend) ? (float *)saved + at : rows;
    block_probabilities(h, room, qkv, block, p, seq, keep ? seq : block->keys);
    cpu_gemm(room->gemm, block->count, d, block->keys, 1.0f, floats(p, seq), value(h, qkv, 0), 0.0f, room->sums, d);
    store_rows(h, out, out_width(h->shape), h->head * d, block->first, block->count, room->sums);
    if (keep && p == rows) cpu_store(h->backend, saved, at, rows, block->count * seq);
}

// --- scratch: for each thread, rows of probabilities (modes none and recompute) and the sums of dk and dv
static int64_t rows_floats(const AttentionShape *s) {
    return s->mode == ATTENTION_FLASH ? 0 : QUERIES * s->seq;
}

static int64_t thread_floats(const AttentionShape *s) {
    return memory_round(rows_floats(s) + 2 * s->seq * s->head_dim);
}

int64_t cpu_attention_scratch(Backend *backend, const AttentionShape *shape) {
    return cpu_self(backend)->threads * thread_floats(shape) * (int64_t)sizeof(float);
}

void cpu_attention_forward(Backend *backend, void *out, void *saved, void *scratch, const void *qkv,
                           const AttentionShape *shape) {
    CpuBackend *cpu = cpu_self(backend);
    int64_t blocks = blocks_of(shape->seq), heads = shape->batch * shape->heads;
    CPU_PARALLEL_FOR_DYNAMIC(cpu)
    for (int64_t i = 0; i < heads * blocks; i++) {
        Head h = {backend, shape, i / blocks / shape->heads, i / blocks % shape->heads};
        Block block = block_at(shape->seq, blocks - 1 - i % blocks);
        Room room = room_take(&h);
        if (shape->mode == ATTENTION_FLASH)
            flash_forward(&h, &room, out, (float *)saved + head_index(&h) * shape->seq, qkv, &block);
        else
            stored_forward(&h, &room, out, saved, (float *)scratch + cpu_thread() * thread_floats(shape), qkv, &block);
    }
}

// --- backward

typedef struct Backward {
    void *dqkv;
    const void *dout, *out, *saved, *qkv;
    float *rows;    // (QUERIES, seq) of this thread
    float *dk, *dv; // (seq, head_dim) of this thread
} Backward;

// p (block, width) for the chunk at k0, wherever it comes from; *stride tells its rows' distance.
static const float *chunk_probabilities(const Head *h, const Room *room, const Backward *b, const Block *block,
                                        int64_t k0, int64_t width, int64_t *stride) {
    int64_t seq = h->shape->seq, at = (head_index(h) * seq + block->first) * seq;
    *stride = seq;
    if (h->shape->mode == ATTENTION_RECOMPUTE) return b->rows + k0;
    if (h->shape->mode == ATTENTION_NONE && !cpu_is_bf16(h->backend)) return (const float *)b->saved + at + k0;
    *stride = KEYS;
    if (h->shape->mode == ATTENTION_NONE) {
        for (int64_t r = 0; r < block->count; r++)
            cpu_load(h->backend, room->scores + r * KEYS, b->saved, at + r * seq + k0, width);
        return room->scores;
    }
    const float *lse = (const float *)b->saved + head_index(h) * seq + block->first;
    block_scores(h, room, b->qkv, block, k0, width, room->scores, KEYS);
    for (int64_t r = 0; r < block->count; r++) {
        float *row = room->scores + r * KEYS;
        int64_t seen = visible(block, r, k0, width);
        for (int64_t i = 0; i < seen; i++) row[i] = cpu_expf(row[i] - lse[r]);
        row_clear(row, seen, width);
    }
    return room->scores;
}

// delta = row sums of dout * out, which is what the softmax's backward takes from every dp of a row.
static void block_delta(const Head *h, const Room *room, const Backward *b, const Block *block, float *delta) {
    int64_t d = h->shape->head_dim, column = h->head * d;
    for (int64_t r = 0; r < block->count; r++) {
        int64_t at = element_at(h, out_width(h->shape), block->first + r, column);
        const float *dout = cpu_load(h->backend, room->row, b->dout, at, d);
        delta[r] = row_dot(dout, cpu_load(h->backend, room->row + d, b->out, at, d), d);
    }
}

// ds = p (dp - delta); the scale is left to the products that read it.
static void score_slopes(float *restrict ds, const float *restrict p, int64_t width, float delta) {
    for (int64_t i = 0; i < width; i++) ds[i] = p[i] * (ds[i] - delta);
}

static void block_backward(const Head *h, const Room *room, const Backward *b, const Block *block) {
    int64_t d = h->shape->head_dim;
    float delta[QUERIES], scale = score_scale(h->shape);
    CpuOperand q = query(h, b->qkv, block->first), dout = output(h, b->dout, block->first);
    CpuOperand ds = floats(room->slopes, KEYS);
    block_delta(h, room, b, block, delta);
    if (h->shape->mode == ATTENTION_RECOMPUTE)
        block_probabilities(h, room, b->qkv, block, b->rows, h->shape->seq, block->keys);
    for (int64_t k0 = 0; k0 < block->keys; k0 += KEYS) {
        int64_t width = block->keys - k0 < KEYS ? block->keys - k0 : KEYS, stride;
        const float *p = chunk_probabilities(h, room, b, block, k0, width, &stride);
        cpu_gemm(room->gemm, width, d, block->count, 1.0f, transposed(floats(p, stride)), dout, 1.0f, b->dv + k0 * d,
                 d);
        cpu_gemm(room->gemm, block->count, width, d, 1.0f, dout, transposed(value(h, b->qkv, k0)), 0.0f, room->slopes,
                 KEYS);
        for (int64_t r = 0; r < block->count; r++)
            score_slopes(room->slopes + r * KEYS, p + r * stride, width, delta[r]);
        cpu_gemm(room->gemm, block->count, d, width, scale, ds, key(h, b->qkv, k0), k0 == 0 ? 0.0f : 1.0f, room->sums,
                 d);
        cpu_gemm(room->gemm, width, d, block->count, scale, transposed(ds), q, 1.0f, b->dk + k0 * d, d);
    }
    store_rows(h, b->dqkv, qkv_width(h->shape), h->head * d, block->first, block->count, room->sums);
}

// All that one key/value head of one sequence gives: its own dk and dv, and the dq of the heads that share it.
static void group_backward(const Backend *backend, const AttentionShape *shape, const Backward *b, int64_t sequence,
                           int64_t kv) {
    int64_t d = shape->head_dim, group = shape->heads / shape->kv_heads;
    memset(b->dk, 0, sizeof(float) * (size_t)(2 * shape->seq * d));
    for (int64_t g = 0; g < group; g++) {
        Head h = {backend, shape, sequence, kv * group + g};
        Room room = room_take(&h);
        for (int64_t i = 0; i < blocks_of(shape->seq); i++) {
            Block block = block_at(shape->seq, i);
            block_backward(&h, &room, b, &block);
        }
    }
    Head any = {backend, shape, sequence, kv * group};
    int64_t width = qkv_width(shape);
    store_rows(&any, b->dqkv, width, (shape->heads + kv) * d, 0, shape->seq, b->dk);
    store_rows(&any, b->dqkv, width, (shape->heads + shape->kv_heads + kv) * d, 0, shape->seq, b->dv);
}

void cpu_attention_backward(Backend *backend, void *dqkv, void *scratch, const void *dout, const void *out,
                            const void *saved, const void *qkv, const AttentionShape *shape) {
    CpuBackend *cpu = cpu_self(backend);
    CPU_PARALLEL_FOR_DYNAMIC(cpu)
    for (int64_t i = 0; i < shape->batch * shape->kv_heads; i++) {
        Backward b = {dqkv, dout, out, saved, qkv, NULL, NULL, NULL};
        b.rows = (float *)scratch + cpu_thread() * thread_floats(shape);
        b.dk = b.rows + rows_floats(shape);
        b.dv = b.dk + shape->seq * shape->head_dim;
        group_backward(backend, shape, &b, i / shape->kv_heads, i % shape->kv_heads);
    }
}
