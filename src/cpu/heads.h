// Strided views of one head in qkv and the output, and the computations on its rows that attention.c and flash.c share.
#pragma once

#include "cpu.h"
#include "lanes.h"

// One query head of one sequence.
typedef struct Head {
    Backend *be;
    const AttentionShape *shape;
    int64_t sequence, head;
} Head;

// The operands of a backward. dk, dv: (keys, head_dim) sums of one key/value head, this thread's own.
typedef struct AttentionBackward {
    void *dqkv;
    const void *dout, *out, *saved, *qkv;
    float *scratch;
    float *dk, *dv;
} AttentionBackward;

static inline float head_scale(const Head *h) { return (float)(1.0 / sqrt((double)h->shape->head_dim)); }

// Returns the index of this head's statistics among all (sequence, head) pairs.
static inline int64_t head_index(const Head *h) { return h->sequence * h->shape->heads + h->head; }

// Returns the first key that a query sees: where its document begins.
static inline int64_t head_from(const Head *h, int64_t query) {
    const int32_t *places = h->shape->places;
    return places == NULL ? 0 : h->shape->first + query - places[query * h->shape->batch + h->sequence];
}

static inline int64_t head_of_keys(const Head *h) { return h->head / (h->shape->heads / h->shape->kv_heads); }

// Returns a view from row `position` of this sequence on of head number `head` of rows of `heads` heads.
static inline CpuOperand head_view(const Head *h, const void *rows, int64_t heads, int64_t position, int64_t head) {
    const AttentionShape *s = h->shape;
    int64_t width = heads * s->head_dim, at = (position * s->batch + h->sequence) * width + head * s->head_dim;
    return (CpuOperand){(const char *)rows + at * h->be->element, s->batch * width, false, cpu_is_bf16(h->be), NULL};
}

// Return views of the queries and outputs of this head from `query` on, and of its keys and values from `key` on. A row
// of qkv has the query heads, then the key heads, then the value heads; keys and values are in shape->keys if set.
static inline CpuOperand head_query(const Head *h, const void *qkv, int64_t query) {
    return head_view(h, qkv, h->shape->heads + 2 * h->shape->kv_heads, query, h->head);
}

static inline CpuOperand head_output(const Head *h, const void *out, int64_t query) {
    return head_view(h, out, h->shape->heads, query, h->head);
}

static inline CpuOperand head_key(const Head *h, const void *qkv, int64_t key) {
    const AttentionShape *s = h->shape;
    if (s->keys != NULL) return head_view(h, s->keys, 2 * s->kv_heads, key, head_of_keys(h));
    return head_view(h, qkv, s->heads + 2 * s->kv_heads, key, s->heads + head_of_keys(h));
}

static inline CpuOperand head_value(const Head *h, const void *qkv, int64_t key) {
    CpuOperand keys = head_key(h, qkv, key);
    keys.data = (const char *)keys.data + h->shape->kv_heads * h->shape->head_dim * h->be->element;
    return keys;
}

static inline CpuOperand floats(const float *data, int64_t stride) {
    return (CpuOperand){data, stride, false, false, NULL};
}

// Stores rows (count, head_dim) as the rows of the view `to`.
static inline void head_store(const Head *h, CpuOperand to, const float *rows, int64_t count) {
    int64_t d = h->shape->head_dim;
    for (int64_t r = 0; r < count; r++) cpu_store(h->be, (void *)to.data, r * to.stride, rows + r * d, d);
}

// Sets delta (count) to the row sums of dout * out, which the softmax's backward subtracts from every dp of a row.
static inline void head_delta(const Head *h, const AttentionBackward *b, int64_t first, int64_t count, float *delta) {
    enum { PIECE = 128 };
    float workspace[2][PIECE];
    CpuOperand dout = head_output(h, b->dout, first), out = head_output(h, b->out, first);
    for (int64_t r = 0; r < count; r++) {
        delta[r] = 0.0f;
        for (int64_t d = 0; d < h->shape->head_dim; d += PIECE) {
            int64_t n = h->shape->head_dim - d < PIECE ? h->shape->head_dim - d : PIECE, at = r * out.stride + d;
            const float *x = cpu_load(h->be, workspace[0], dout.data, at, n);
            const float *y = cpu_load(h->be, workspace[1], out.data, at, n);
            Lanes sum = {0}, left, right;
            int64_t whole = lanes_whole(n, LANES);
            for (int64_t i = 0; i < whole; i += LANES) {
                lanes_load(&left, x + i), lanes_load(&right, y + i);
                sum += left * right;
            }
            for (int64_t i = whole; i < n; i++) sum[i - whole] += x[i] * y[i];
            delta[r] += lanes_fold(&sum);
        }
    }
}

// --- flash attention (flash.c), for attention.c

// Returns the number of spans of a head's queries, each a unit of work for a thread. This number changes no results.
int64_t flash_spans(const AttentionShape *shape, int threads);
int64_t flash_scratch_floats(const AttentionShape *shape);
int64_t flash_workspace_floats(const AttentionShape *shape); // floats of cpu_scratch
// Computes the output rows of one span. scratch: flash_scratch_floats(shape) floats that belong to this thread.
void flash_forward(const Head *h, void *out, float *lse, float *scratch, const void *qkv, int64_t span, int64_t spans);

// Computes dq of all heads that share a key/value head, from the first of them on, and adds their dk and dv to b->dk
// and b->dv (initially zero).
void flash_backward(Head first, const AttentionBackward *b);
