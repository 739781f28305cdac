// Latent attention's operations against their definition, in both precisions, for whole rows and gradients.
#include "op_check.h"

static const LatentShape SHAPES[] = {{0, 0, 1, 4, 2, 3, 1.0}, {0, 0, 3, 10, 6, 12, 1.25}, {0, 0, 5, 32, 16, 48, 0.5}};
enum { ROWS = 37 };

static int64_t pair(int64_t i, int64_t width) { return i < width / 2 ? 2 * i : 2 * (i - width / 2) + 1; }

// Returns element i of part 0, 1 or 2 (query, key, value) of a head.
static double element(const LatentShape *s, int part, int64_t i, const double *q, const double *kv,
                      const double *shared) {
    if (part == 2) return i < s->value ? kv[s->nope + i] : 0;
    if (part == 0) return s->scale * q[i < s->rope ? s->nope + pair(i, s->rope) : i - s->rope];
    return i < s->rope ? shared[pair(i, s->rope)] : kv[i - s->rope];
}

static void check_join(int precision, const LatentShape *s, int threads) {
    AutoOp op = op_start(precision, threads);
    int64_t wide = s->nope + s->rope, both = s->nope + s->value, heads = s->heads;
    Operand q = op_operand(&op, ROWS * heads * wide, 1, 0, 1), kv = op_operand(&op, ROWS * heads * both, 2, 0, 1);
    Operand shared = op_operand(&op, ROWS * s->rope, 3, 0, 1), qkv = op_output(&op, ROWS * heads * 3 * wide);
    double *want = op_hold(&op, qkv.count * 8);
    op.backend->latent_join(op.backend, qkv.data, q.data, kv.data, shared.data, ROWS, s);
    for (int64_t at = 0; at < qkv.count; at++) {
        int64_t row = at / (heads * 3 * wide), part = at / (heads * wide) % 3, h = at / wide % heads;
        want[at] = element(s, (int)part, at % wide, q.value + (row * heads + h) * wide,
                           kv.value + (row * heads + h) * both, shared.value + row * s->rope);
    }
    op_near("qkv", op_read(&op, &qkv), want, qkv.count, op_bound(&op), 0);
}

// The gradient of a sum of products with dqkv is what latent_split returns.
static void check_split(int precision, const LatentShape *s, int threads) {
    AutoOp op = op_start(precision, threads);
    int64_t wide = s->nope + s->rope, both = s->nope + s->value, heads = s->heads;
    Operand d = op_operand(&op, ROWS * heads * 3 * wide, 1, 0, 1), dq = op_output(&op, ROWS * heads * wide);
    Operand dkv = op_output(&op, ROWS * heads * both), dshared = op_output(&op, ROWS * s->rope);
    double *q = op_hold(&op, dq.count * 8), *kv = op_hold(&op, dkv.count * 8),
           *shared = op_hold(&op, dshared.count * 8);
    op.backend->latent_split(op.backend, dq.data, dkv.data, dshared.data, d.data, ROWS, s);
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < wide; i++) {
                const double *from = d.value + row * heads * 3 * wide + h * wide + i;
                double *to = kv + (row * heads + h) * both;
                q[(row * heads + h) * wide + (i < s->rope ? s->nope + pair(i, s->rope) : i - s->rope)] =
                    s->scale * from[0];
                if (i < s->rope) shared[row * s->rope + pair(i, s->rope)] += from[heads * wide];
                else to[i - s->rope] = from[heads * wide];
                if (i < s->value) to[s->nope + i] = from[2 * heads * wide];
            }
    op_near("dq", op_read(&op, &dq), q, dq.count, op_bound(&op), 0);
    op_near("dkv", op_read(&op, &dkv), kv, dkv.count, op_bound(&op), 0);
    op_near("dshared", op_read(&op, &dshared), shared, dshared.count, op_bound(&op), 2);
}

TEST(heads_are_joined_as_defined) {
    EACH_CASE (precision, each, SHAPES) check_join(precision, each, 2);
}

TEST(gradients_of_heads_are_split_as_defined) {
    EACH_CASE (precision, each, SHAPES) check_split(precision, each, 2);
}
