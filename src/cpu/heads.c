// Strided views of one head in qkv and in the output, and what both forms of attention compute of its rows.
#include "heads.h"
#include "lanes.h"

static CpuOperand view_(const Head *h, const void *matrix, int64_t width, int64_t position, int64_t column) {
    int64_t at = (position * h->shape->batch + h->sequence) * width + column;
    return (CpuOperand){(const char *)matrix + at * h->backend->element, h->shape->batch * width, false,
                        cpu_is_bf16(h->backend)};
}

// Column `part` counts heads of head_dim: query heads first, then keys, then values.
static CpuOperand qkv_view_(const Head *h, const void *qkv, int64_t position, int64_t part) {
    return view_(h, qkv, qkv_width(h->shape), position, part * h->shape->head_dim);
}

static int64_t kv_head_of_(const Head *h) {
    return h->head / (h->shape->heads / h->shape->kv_heads);
}

CpuOperand head_query(const Head *h, const void *qkv, int64_t position) {
    return qkv_view_(h, qkv, position, h->head);
}

CpuOperand head_key(const Head *h, const void *qkv, int64_t position) {
    return qkv_view_(h, qkv, position, h->shape->heads + kv_head_of_(h));
}

CpuOperand head_value(const Head *h, const void *qkv, int64_t position) {
    return qkv_view_(h, qkv, position, h->shape->heads + h->shape->kv_heads + kv_head_of_(h));
}

CpuOperand head_output(const Head *h, const void *out, int64_t position) {
    return view_(h, out, out_width(h->shape), position, h->head * h->shape->head_dim);
}

void head_store(const Head *h, CpuOperand to, const float *rows, int64_t count) {
    int64_t d = h->shape->head_dim;
    for (int64_t r = 0; r < count; r++) {
        if (to.bf16)
            cpu_store(h->backend, (void *)to.data, r * to.stride, rows + r * d, d);
        else
            memcpy((float *)to.data + r * to.stride, rows + r * d, sizeof(float) * (size_t)d);
    }
}

static float row_dot_(const float *restrict x, const float *restrict y, int64_t n) {
    Lanes sum = {0}, a, b;
    int64_t whole = lanes_whole(n, LANES);
    for (int64_t i = 0; i < whole; i += LANES) {
        lanes_load(&a, x + i), lanes_load(&b, y + i);
        sum += a * b;
    }
    for (int64_t i = whole; i < n; i++) sum[i - whole] += x[i] * y[i];
    return lanes_fold(&sum);
}

void head_delta(const Head *h, const AttentionBackward *b, int64_t first, int64_t count, float *delta) {
    enum { PIECE = 128 };
    float workspace[2][PIECE];
    CpuOperand dout = head_output(h, b->dout, first), out = head_output(h, b->out, first);
    for (int64_t r = 0; r < count; r++) {
        delta[r] = 0.0f;
        for (int64_t d = 0; d < h->shape->head_dim; d += PIECE) {
            int64_t n = h->shape->head_dim - d < PIECE ? h->shape->head_dim - d : PIECE, at = r * out.stride + d;
            delta[r] += row_dot_(cpu_load(h->backend, workspace[0], dout.data, at, n),
                                 cpu_load(h->backend, workspace[1], out.data, at, n), n);
        }
    }
}
