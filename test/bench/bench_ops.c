// Speed of the matrix products at the shapes of GPT-2 124M (4 sequences of 64), and of flash attention over long
// sequences, compared with its own products. The first argument sets the number of threads (0: OpenMP's default); the
// second selects a part: linear or long.
#include "backend/backend.h"
#include "base/clock.h"
#include "base/units.h"
#include "cpu/gemm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Bench {
    Backend *backend;
    float *x, *w, *y, *z, *bias;
    int64_t rows, in, out;
    Epilogue epilogue;
    AttentionShape shape;
    float *saved, *scratch;
} Bench;

static Error error;

static void *must(void *made) {
    if (made != NULL) return made;
    fprintf(stderr, "bench_ops: %s\n", error.text);
    exit(1);
}

// Fills `count` operands of these sizes, or gives them back.
static void fill(Backend *backend, float **const operands[], const int64_t counts[], int count) {
    for (int o = 0; o < count; o++) {
        float *x = must(backend->allocate(backend, MEMORY_WORKSPACE, counts[o] * 4, "a benchmark's operand", &error));
        for (int64_t i = 0; i < counts[o]; i++) x[i] = (float)((i * 2654435761u & 0xffff) / 65536.0 - 0.5);
        *operands[o] = x;
    }
}

static void drop(Backend *backend, float **const operands[], const int64_t counts[], int count) {
    for (int o = 0; o < count; o++) backend->release(backend, MEMORY_WORKSPACE, *operands[o], counts[o] * 4);
}

// Returns the time of the fastest of several runs: other programs can only make a run slower.
static double best_seconds(Bench *bench, void (*op)(Bench *)) {
    double best = INFINITY, begin = clock_seconds();
    op(bench);
    for (int i = 0; i < 3 || (i < 1000 && clock_seconds() - begin < 0.4); i++) {
        double start = clock_seconds();
        op(bench);
        best = fmin(best, clock_seconds() - start);
    }
    return best;
}

// --- linear layers

static void forward(Bench *b) {
    b->backend->linear_forward(b->backend, b->y, b->z, factor_plain(b->x), factor_plain(b->w), b->bias, b->rows, b->in,
                               b->out, b->epilogue);
}

static void backward_input(Bench *b) {
    b->backend->linear_backward_input(b->backend, b->x, b->z, factor_plain(b->y), factor_plain(b->w), b->rows, b->in,
                                      b->out, EPILOGUE_NONE);
}

static void backward_weight(Bench *b) {
    b->backend->linear_backward_weight(b->backend, b->w, b->bias, factor_plain(b->y), factor_plain(b->x), b->rows,
                                       b->in, b->out, true);
}

typedef struct Layer {
    const char *name;
    int64_t in, out, times; // occurrences in the model
    Epilogue epilogue;
} Layer;

static void bench_linear(Backend *backend, double peak) {
    static const Layer layers[] = {{"qkv", 768, 2304, 12, EPILOGUE_NONE},
                                   {"attention out", 768, 768, 12, EPILOGUE_NONE},
                                   {"ffn up + gelu", 768, 3072, 12, EPILOGUE_GELU},
                                   {"ffn down", 3072, 768, 12, EPILOGUE_NONE},
                                   {"head", 768, 50304, 1, EPILOGUE_NONE}};
    double seconds = 0, work = 0;
    printf("%-15s %16s  %10s %10s %10s  GFLOP/s (share of %.0f, the measured peak)\n", "linear", "rows x in x out",
           "forward", "dx", "dw", peak);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const Layer *l = &layers[i];
        Bench b = {.backend = backend, .rows = 256, .in = l->in, .out = l->out, .epilogue = l->epilogue};
        int64_t counts[] = {b.rows * b.in, b.in * b.out, b.rows * b.out, b.rows * b.out, b.out};
        float **operands[] = {&b.x, &b.w, &b.y, &b.z, &b.bias};
        fill(backend, operands, counts, 5);
        void (*const ops[])(Bench *) = {forward, backward_input, backward_weight};
        double flop = 2.0 * (double)b.rows * (double)b.in * (double)b.out;
        printf("%-15s %4ld x%5ld x%5ld ", l->name, (long)b.rows, (long)b.in, (long)b.out);
        for (int o = 0; o < 3; o++) {
            double best = best_seconds(&b, ops[o]);
            printf(" %4.0f (%2.0f%%)", flop / best * 1e-9, 100 * flop / best * 1e-9 / peak);
            seconds += best * (double)l->times, work += flop * (double)l->times;
        }
        printf("\n");
        drop(backend, operands, counts, 5);
    }
    printf("%-15s %.1f GFLOP in %.3f s: %.0f GFLOP/s, %.0f%% of the peak\n\n", "all of a step", work * 1e-9, seconds,
           work / seconds * 1e-9, 100 * work / seconds * 1e-9 / peak);
}

// --- attention

static void attention_forward(Bench *b) {
    b->backend->attention_forward(b->backend, b->y, b->saved, b->scratch, b->x, &b->shape);
}

static void attention_backward(Bench *b) {
    b->backend->attention_backward(b->backend, b->w, b->scratch, b->z, b->y, b->saved, b->x, &b->shape);
}

// --- flash over long sequences, compared with its own products. Measures the processor time of one thread, which other
// programs disturb little. The products run before and after each pass, in tiles of the size that flash uses.

static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

enum { WIDE = 128, KEYS = 256, QUERIES = GEMM_COLS };

typedef struct Tiles {
    float *keys, *queries, *scores, *sums;
} Tiles;

// Returns the seconds per FLOP of the products of a block of queries with a chunk of keys: scores and output in the
// forward, gradients of scores, values and keys in the backward.
static double products_seconds(const Tiles *t, bool backward) {
    int vectors = gemm_vectors(WIDE);
    GemmLeft keys = gemm_panels(t->keys, WIDE), dims = gemm_panels(t->keys, KEYS), rows = gemm_rows(t->scores);
    GemmRight queries = gemm_columns(t->queries, GEMM_VECTORS, WIDE), wide = gemm_columns(t->queries, vectors, QUERIES);
    int64_t products = 0;
    double start = thread_seconds();
    while (thread_seconds() - start < 0.05) {
        gemm_multiply(KEYS, QUERIES, WIDE, keys, queries, false, t->scores, QUERIES);
        if (backward) gemm_multiply(KEYS, QUERIES, WIDE, keys, queries, false, t->scores, QUERIES);
        for (int i = 0; backward && i < 2; i++) gemm_multiply(KEYS, WIDE, QUERIES, rows, wide, true, t->sums, WIDE);
        gemm_multiply(WIDE, QUERIES, KEYS, dims, gemm_columns(t->scores, GEMM_VECTORS, KEYS), false, t->sums, QUERIES);
        products += backward ? 5 : 2;
    }
    return (thread_seconds() - start) / (2.0 * (double)products * KEYS * QUERIES * WIDE);
}

typedef struct Pass {
    double ratio[16], rate[16];
} Pass;

static void pass_run(Pass *pass, int round, const Tiles *tiles, Bench *b, void (*op)(Bench *), bool backward) {
    double flop = (backward ? 5.0 : 2.0) * WIDE * (double)b->shape.seq * (double)b->shape.seq;
    double before = products_seconds(tiles, backward), start = thread_seconds();
    op(b);
    double seconds = thread_seconds() - start, after = products_seconds(tiles, backward);
    pass->ratio[round] = seconds / (flop * (before + after) / 2);
    pass->rate[round] = flop / seconds * 1e-9;
}

static double median(double *x, int count) {
    qsort(x, (size_t)count, sizeof *x, compare_doubles);
    return x[count / 2];
}

static void bench_long(void) {
    Backend *backend = must(backend_cpu_create(PRECISION_FP32, 1, &error));
    Tiles tiles;
    float **const sides[] = {&tiles.keys, &tiles.queries, &tiles.scores, &tiles.sums};
    const int64_t sizes[] = {KEYS * WIDE, QUERIES * (WIDE + GEMM_COLS), (KEYS + GEMM_ROWS) * QUERIES,
                             KEYS * (WIDE + GEMM_COLS)};
    fill(backend, sides, sizes, 4);
    printf("flash, one head of %d, one thread; time / its products (goal: at most 1.10), GFLOP/s of the causal half\n",
           WIDE);
    for (int64_t seq = 2048; seq <= 32768; seq *= 4) {
        Pass forward, backward;
        int rounds = seq < 8192 ? 15 : seq == 8192 ? 9 : 3;
        AttentionShape shape = {.batch = 1, .seq = seq, .heads = 1, .kv_heads = 1, .mode = ATTENTION_FLASH};
        shape.head_dim = WIDE;
        Bench b = {.backend = backend, .shape = shape};
        float **const operands[] = {&b.x, &b.w, &b.y, &b.z, &b.saved, &b.scratch};
        const int64_t scratch = backend->attention_scratch(backend, &shape), out = seq * WIDE;
        const int64_t counts[] = {3 * out, 3 * out, out, out, seq, scratch / 4};
        fill(backend, operands, counts, 6);
        for (int i = 0; i < rounds; i++) {
            pass_run(&forward, i, &tiles, &b, attention_forward, false);
            pass_run(&backward, i, &tiles, &b, attention_backward, true);
        }
        printf("%6ld  forward %.3f, %.0f  backward %.3f, %.0f  scratch %.1f MiB\n", (long)seq,
               median(forward.ratio, rounds), median(forward.rate, rounds), median(backward.ratio, rounds),
               median(backward.rate, rounds), (double)scratch / (1 << 20));
        drop(backend, operands, counts, 6);
    }
    printf("\n");
    drop(backend, sides, sizes, 4);
    backend->destroy(backend);
}

static bool wanted(int argc, char **argv, const char *part) { return argc < 3 || strcmp(argv[2], part) == 0; }

int main(int argc, char **argv) {
    Backend *backend = must(backend_cpu_create(PRECISION_FP32, argc > 1 ? atoi(argv[1]) : 0, &error));
    setvbuf(stdout, NULL, _IOLBF, 0); // line-buffered, also into pipes
    double peak = 1e3 * backend_cpu_measure_peak(PRECISION_FP32, argc > 1 ? atoi(argv[1]) : 0);
    printf("%s\n", backend->device);
    if (wanted(argc, argv, "linear")) bench_linear(backend, peak);
    if (wanted(argc, argv, "long")) bench_long();
    backend->destroy(backend);
    return 0;
}
