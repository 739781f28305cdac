// Latent attention: queries, keys and values of attention from the products of the latent rows, and back.
#include "cpu.h"

// Element i of a head's rotated part, in the order of `rope`, is element pair_(i, width) of the product, whose pairs
// (2i, 2i + 1) become (i, i + width / 2).
static int64_t pair_(int64_t i, int64_t width) { return i < width / 2 ? 2 * i : 2 * (i - width / 2) + 1; }

void cpu_latent_join(Backend *be, void *qkv, const void *q, const void *kv, const void *shared, int64_t rows,
                     const LatentShape *s) {
    int64_t wide = s->nope + s->rope, both = s->nope + s->value, heads = s->heads;
    CPU_PARALLEL_FOR(be)
    for (int64_t row = 0; row < rows; row++) {
        float *out = cpu_scratch(be, heads * (4 * wide + both) + s->rope), *space = out + heads * 3 * wide;
        const float *queries = cpu_load(be, space, q, row * heads * wide, heads * wide);
        const float *others = cpu_load(be, space + heads * wide, kv, row * heads * both, heads * both);
        const float *turned = cpu_load(be, space + heads * (wide + both), shared, row * s->rope, s->rope);
        for (int64_t h = 0; h < heads; h++) {
            float *query = out + h * wide, *key = query + heads * wide, *value = key + heads * wide;
            const float *from = queries + h * wide, *other = others + h * both;
            for (int64_t i = 0; i < s->rope; i++) {
                query[i] = (float)s->scale * from[s->nope + pair_(i, s->rope)];
                key[i] = turned[pair_(i, s->rope)];
            }
            for (int64_t i = 0; i < s->nope; i++) {
                query[s->rope + i] = (float)s->scale * from[i];
                key[s->rope + i] = other[i];
            }
            for (int64_t i = 0; i < wide; i++) value[i] = i < s->value ? other[s->nope + i] : 0;
        }
        cpu_store(be, qkv, row * heads * 3 * wide, out, heads * 3 * wide);
    }
}

void cpu_latent_split(Backend *be, void *dq, void *dkv, void *dshared, const void *dqkv, int64_t rows,
                      const LatentShape *s) {
    int64_t wide = s->nope + s->rope, both = s->nope + s->value, heads = s->heads;
    CPU_PARALLEL_FOR(be)
    for (int64_t row = 0; row < rows; row++) {
        float *queries = cpu_scratch(be, heads * (4 * wide + both) + s->rope), *others = queries + heads * wide;
        float *turned = others + heads * both;
        const float *from = cpu_load(be, turned + s->rope, dqkv, row * heads * 3 * wide, heads * 3 * wide);
        memset(turned, 0, (size_t)s->rope * sizeof *turned);
        for (int64_t h = 0; h < heads; h++) {
            const float *query = from + h * wide, *key = query + heads * wide, *value = key + heads * wide;
            float *to = queries + h * wide, *other = others + h * both;
            for (int64_t i = 0; i < s->rope; i++) {
                to[s->nope + pair_(i, s->rope)] = (float)s->scale * query[i];
                turned[pair_(i, s->rope)] += key[i];
            }
            for (int64_t i = 0; i < s->nope; i++) {
                to[i] = (float)s->scale * query[s->rope + i];
                other[i] = key[s->rope + i];
            }
            for (int64_t i = 0; i < s->value; i++) other[s->nope + i] = value[i];
        }
        cpu_store(be, dq, row * heads * wide, queries, heads * wide);
        cpu_store(be, dkv, row * heads * both, others, heads * both);
        cpu_store(be, dshared, row * s->rope, turned, s->rope);
    }
}
