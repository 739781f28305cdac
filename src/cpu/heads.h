// Strided views of one head and computations on its rows, for attention.c and flash.c.
#pragma once

#include "cpu.h"

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

// Return views of the queries and outputs of this head from `query` on, and of its keys and values from `key` on.
CpuOperand head_query(const Head *h, const void *qkv, int64_t query);
CpuOperand head_key(const Head *h, const void *qkv, int64_t key);
CpuOperand head_value(const Head *h, const void *qkv, int64_t key);
CpuOperand head_output(const Head *h, const void *out, int64_t query);
// Writes one key/value head's dk and dv to dqkv or, for a range, adds them to shape->dkeys.
void head_store_keys(const Head *h, const AttentionBackward *b);

static inline CpuOperand floats(const float *data, int64_t stride) {
    return (CpuOperand){data, stride, false, false, NULL};
}

// Stores rows (count, head_dim) as the rows of the view `to`.
void head_store(const Head *h, CpuOperand to, const float *rows, int64_t count);

// Sets delta (count) to the row sums of dout * out, which the softmax's backward subtracts from every dp of a row.
void head_delta(const Head *h, const AttentionBackward *b, int64_t first, int64_t count, float *delta);

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
