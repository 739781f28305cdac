// Strided views of one head in qkv and the output, and the computations on its rows that attention.c and flash.c share.
#include "heads.h"
#include "lanes.h"

static CpuOperand view_(const Head *h, const void *matrix, int64_t width, int64_t position, int64_t column) {
    int64_t at = (position * h->shape->batch + h->sequence) * width + column;
    return (CpuOperand){(const char *)matrix + at * h->be->element, h->shape->batch * width, false, cpu_is_bf16(h->be),
                        NULL};
}

// Returns a view of one head of qkv from `position` on. part: the head's number in a row of qkv, which holds the query
// heads, then the key heads, then the value heads.
static CpuOperand qkv_view_(const Head *h, const void *qkv, int64_t position, int64_t part) {
    return view_(h, qkv, attention_qkv_width(h->shape), position, part * h->shape->head_dim);
}

static int64_t kv_head_of_(const Head *h) { return h->head / (h->shape->heads / h->shape->kv_heads); }

CpuOperand head_query(const Head *h, const void *qkv, int64_t position) { return qkv_view_(h, qkv, position, h->head); }

// Returns a view of keys (part 0) or values (part 1) from position `key` on: of shape->keys if set, else of qkv.
static CpuOperand keys_view_(const Head *h, const void *qkv, int64_t key, int part) {
    const AttentionShape *s = h->shape;
    int64_t at = part * s->kv_heads + kv_head_of_(h);
    if (s->keys == NULL) return qkv_view_(h, qkv, key, s->heads + at);
    return view_(h, s->keys, 2 * s->kv_heads * s->head_dim, key, at * s->head_dim);
}

CpuOperand head_key(const Head *h, const void *qkv, int64_t key) { return keys_view_(h, qkv, key, 0); }

CpuOperand head_value(const Head *h, const void *qkv, int64_t key) { return keys_view_(h, qkv, key, 1); }

void head_store_keys(const Head *h, const AttentionBackward *b) {
    const AttentionShape *s = h->shape;
    int64_t width = 2 * s->kv_heads * s->head_dim, d = s->head_dim;
    for (int part = 0; part < 2; part++) {
        const float *sums = part == 0 ? b->dk : b->dv;
        int64_t head = part * s->kv_heads + kv_head_of_(h);
        if (s->keys == NULL) head_store(h, qkv_view_(h, b->dqkv, 0, s->heads + head), sums, s->seq);
        for (int64_t key = 0; s->keys != NULL && key < attention_keys(s); key++) {
            float *to = s->dkeys + (key * s->batch + h->sequence) * width + head * d;
            for (int64_t i = 0; i < d; i++) to[i] += sums[key * d + i];
        }
    }
}

CpuOperand head_output(const Head *h, const void *out, int64_t position) {
    return view_(h, out, h->shape->heads * h->shape->head_dim, position, h->head * h->shape->head_dim);
}

void head_store(const Head *h, CpuOperand to, const float *rows, int64_t count) {
    int64_t d = h->shape->head_dim;
    for (int64_t r = 0; r < count; r++) cpu_store(h->be, (void *)to.data, r * to.stride, rows + r * d, d);
}

void head_delta(const Head *h, const AttentionBackward *b, int64_t first, int64_t count, float *delta) {
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
