// GB/s of the operations that are bound by memory, at the shapes of GPT-2 124M with 4 sequences of 64 and at one large
// shape. Bytes are those the operation cannot avoid: each operand read or written once. Small shapes stay in the caches
// and so exceed what memory gives.
#include "backend/backend.h"
#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 256, HIDDEN = 768, FFN = 3072, VOCAB = 50257, WIDTH = 50304, LARGE = 4096 };
static const int64_t PARAMETERS = 124439808;

typedef struct Bench {
    Backend *backend;
    float *a, *b, *c, *d, *w, *dw; // a to d: the largest operand each
    int32_t *tokens;
    int64_t rows, cols;
    AdamwTensor *tensors;
    int64_t tensor_count;
} Bench;

static float *filled(int64_t count, float spread) {
    float *x = malloc((size_t)count * sizeof *x);
    if (!x) exit((fprintf(stderr, "bench_memory_ops: no memory for %ld floats\n", (long)count), 1));
    for (int64_t i = 0; i < count; i++) x[i] = spread * (float)((i * 2654435761u & 0xffff) / 65536.0 - 0.5);
    return x;
}

// The best of some runs: what else the machine does only makes a run slower.
static void report(Bench *bench, const char *name, void (*op)(Bench *), double bytes) {
    double best = INFINITY, begin = clock_seconds();
    op(bench);
    for (int i = 0; i < 5 || (i < 2000 && clock_seconds() - begin < 0.5); i++) {
        double start = clock_seconds();
        op(bench);
        best = fmin(best, clock_seconds() - start);
    }
    printf("%-22s %5ld x %-9ld %9.3f ms  %6.1f GB/s\n", name, (long)bench->rows, (long)bench->cols, best * 1e3,
           bytes / best / 1e9);
}

static void rmsnorm_forward(Bench *x) {
    x->backend->rmsnorm_forward(x->backend, x->c, x->d, x->a, x->b, x->w, x->rows, x->cols, 1e-5);
}
static void rmsnorm_backward(Bench *x) {
    x->backend->rmsnorm_backward(x->backend, x->c, x->dw, x->a, x->b, x->w, x->rows, x->cols, 1e-5);
}
static void layernorm_forward(Bench *x) {
    x->backend->layernorm_forward(x->backend, x->c, x->d, x->a, x->b, x->w, x->w, x->rows, x->cols, 1e-5);
}
static void layernorm_backward(Bench *x) {
    x->backend->layernorm_backward(x->backend, x->c, x->dw, x->dw + x->cols, x->a, x->b, x->w, x->rows, x->cols, 1e-5);
}
static void add_in_place(Bench *x) { x->backend->add(x->backend, x->a, x->a, x->b, x->rows * x->cols); }
static void swiglu_forward(Bench *x) { x->backend->swiglu_forward(x->backend, x->c, x->a, x->rows, x->cols); }
static void swiglu_backward(Bench *x) { x->backend->swiglu_backward(x->backend, x->d, x->c, x->a, x->rows, x->cols); }
static void rope(Bench *x) {
    AttentionShape shape = {
        .batch = 4, .seq = x->rows / 4, .heads = x->cols / 64, .kv_heads = x->cols / 64, .head_dim = 64};
    RopeTable table = {.scale = 1.0};
    for (int i = 0; i < 32; i++) table.frequency[i] = pow(10000.0, -i / 32.0);
    x->backend->rope(x->backend, x->a, &shape, &table, NULL, 1);
}
static void embedding_forward(Bench *x) {
    x->backend->embedding_forward(x->backend, x->a, x->tokens, NULL, x->c, NULL, x->rows, x->cols, 4, 0, VOCAB);
}
static void embedding_backward(Bench *x) {
    x->backend->embedding_backward(x->backend, x->c, NULL, x->a, x->tokens, NULL, x->rows, x->cols, 4, 0, VOCAB);
}
static void cross_entropy_stats(Bench *x) {
    x->backend->cross_entropy_stats(x->backend, x->b, x->c, x->tokens, x->rows, x->cols, 0, VOCAB);
}
static void cross_entropy_gradient(Bench *x) {
    x->backend->cross_entropy_gradient(x->backend, x->c, x->d, x->b, 1, x->tokens, x->rows, x->cols, 0, VOCAB, 1e-3f,
                                       0.0f);
}
static void squared_norms(Bench *x) {
    double norms[512];
    x->backend->squared_norms(x->backend, norms, x->tensors, x->tensor_count);
}
static void adamw(Bench *x) {
    AdamwStep step = {1e-4, 0.9, 0.95, 1e-8, 0.1, 1.0, 10};
    x->backend->adamw(x->backend, x->tensors, x->tensor_count, &step);
}

static void bench_rows(Bench *bench, int64_t rows, int64_t hidden, int64_t ffn) {
    double activation = 4.0 * (double)(rows * hidden), wide = 4.0 * (double)(rows * ffn);
    bench->rows = rows;
    bench->cols = hidden;
    report(bench, "rmsnorm forward", rmsnorm_forward, 4 * activation);
    report(bench, "rmsnorm backward", rmsnorm_backward, 4 * activation);
    report(bench, "layernorm forward", layernorm_forward, 4 * activation);
    report(bench, "layernorm backward", layernorm_backward, 4 * activation);
    report(bench, "add in place", add_in_place, 3 * activation);
    report(bench, "rope", rope, 4 * activation);
    bench->cols = ffn;
    report(bench, "swiglu forward", swiglu_forward, 3 * wide);
    report(bench, "swiglu backward", swiglu_backward, 5 * wide);
}

static void bench_vocabulary(Bench *bench) {
    bench->rows = ROWS;
    bench->cols = HIDDEN;
    report(bench, "embedding forward", embedding_forward, 8.0 * ROWS * HIDDEN);
    report(bench, "embedding backward", embedding_backward, 12.0 * ROWS * HIDDEN);
    bench->cols = WIDTH;
    report(bench, "cross-entropy stats", cross_entropy_stats, 4.0 * ROWS * WIDTH);
    report(bench, "cross-entropy gradient", cross_entropy_gradient, 8.0 * ROWS * WIDTH);
}

static void bench_activations(Backend *backend) {
    int64_t most = (int64_t)LARGE * LARGE * 2;
    Bench bench = {.backend = backend, .w = filled(LARGE, 1.0f), .dw = filled(2 * LARGE, 1.0f)};
    bench.a = filled(most * 2, 4.0f);
    bench.b = filled(most, 4.0f);
    bench.c = filled(most * 2, 4.0f);
    bench.d = filled(most * 2, 4.0f);
    bench.tokens = malloc(LARGE * sizeof *bench.tokens);
    if (!bench.tokens) exit(1);
    for (int64_t i = 0; i < LARGE; i++) bench.tokens[i] = (int32_t)(i * 7919 % VOCAB);
    bench_rows(&bench, ROWS, HIDDEN, FFN);
    bench_vocabulary(&bench);
    bench_rows(&bench, LARGE, LARGE, LARGE);
    float *all[] = {bench.a, bench.b, bench.c, bench.d, bench.w, bench.dw};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(bench.tokens);
}

// The tensors of GPT-2 124M by size: the vocabulary, the positions, and 12 layers of twelve each.
static int64_t gpt2_tensors(AdamwTensor *tensors) {
    static const int64_t layer[] = {768, 768, 2304 * 768, 2304, 768 * 768,  768,
                                    768, 768, 3072 * 768, 3072, 768 * 3072, 768};
    int64_t count = 0;
    tensors[count++].count = (int64_t)VOCAB * HIDDEN;
    tensors[count++].count = 1024 * HIDDEN;
    for (int i = 0; i < 12; i++)
        for (size_t t = 0; t < sizeof layer / sizeof *layer; t++) tensors[count++].count = layer[t];
    tensors[count++].count = HIDDEN;
    tensors[count++].count = HIDDEN;
    return count;
}

static void bench_optimizer(Backend *backend) {
    AdamwTensor tensors[256] = {0};
    Bench bench = {.backend = backend, .tensors = tensors, .tensor_count = gpt2_tensors(tensors)};
    float *memory[4];
    for (int i = 0; i < 4; i++) memory[i] = filled(PARAMETERS, 0.0f);
    int64_t at = 0;
    for (int64_t i = 0; i < bench.tensor_count; at += tensors[i++].count) {
        tensors[i].weight = memory[0] + at;
        tensors[i].m = memory[1] + at;
        tensors[i].v = memory[2] + at;
        tensors[i].gradient = memory[3] + at;
        tensors[i].decay = true;
    }
    bench.rows = 1;
    bench.cols = at;
    report(&bench, "squared norms", squared_norms, 4.0 * (double)at);
    report(&bench, "adamw", adamw, 32.0 * (double)at);
    for (int i = 0; i < 4; i++) free(memory[i]);
}

int main(void) {
    Error err = {0};
    Backend *backend = backend_cpu_create(PRECISION_FP32, 0, &err);
    if (!backend) {
        fprintf(stderr, "bench_memory_ops: %s\n", err.text);
        return 1;
    }
    bench_activations(backend);
    bench_optimizer(backend);
    backend->destroy(backend);
    return 0;
}
