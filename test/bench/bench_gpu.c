// Measures the first GPU and prints JSON lines: matrix products of given shapes, and our own kernels against a copy.
//
//     bench_gpu SECONDS ROWS:IN:OUT... attention:BATCH:HEADS:SEQ...
//
// A product is timed on random operands, since zeros need less power and run faster. "burst" is the fastest of the
// first launches; "sustained" is the mean over the second half of SECONDS, when the clock has settled at the power
// limit. "gelu" is a forward with cuBLASLt's GELU epilogue, "gelu after" a forward followed by our GELU kernel. The
// rates of both count only the product's FLOPs. Attention is causal flash attention with heads of 128. Its rates count
// half of all pairs, with two products per pair in the forward and five in the backward.
#include "backend/backend.h"
#include "base/clock.h"
#include "device/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Bench {
    Backend *gpu;
    int64_t rows, in, out; // sizes of the product; a kernel uses rows x in values
    void *x, *w, *y, *z, *aux;
    float *wide; // fp32: weight gradient or optimizer states
    AttentionShape attention;
    double seconds;
    struct {
        void *memory;
        int64_t bytes;
    } taken[16]; // until drop()
    int count;
} Bench;

typedef void (*Run)(Bench *);

static Error error;

static void must(bool done) {
    if (done) return;
    fprintf(stderr, "bench_gpu: %s\n", error.text);
    exit(1);
}

static void *take(Bench *b, int64_t bytes) {
    void *memory = b->gpu->allocate(b->gpu, MEMORY_WORKSPACE, bytes, "a benchmark's operand", &error);
    must(memory != NULL);
    b->taken[b->count].memory = memory, b->taken[b->count++].bytes = bytes;
    return memory;
}

static void drop(Bench *b) {
    must(b->gpu->synchronize(b->gpu, &error) == 0);
    while (b->count-- > 0)
        b->gpu->release(b->gpu, MEMORY_WORKSPACE, b->taken[b->count].memory, b->taken[b->count].bytes);
    b->count = 0;
}

// Returns memory of `count` normal values in bf16; the same block of them is repeated.
static void *normals(Bench *b, int64_t count) {
    enum { BLOCK = 1 << 20 };
    int64_t block = count < BLOCK ? count : BLOCK;
    char *memory = take(b, count * 2);
    float *drawn = take(b, block * 4);
    const NormalRows draw = {.scale = 1.0f, .seed = 1, .stride = (uint64_t)block};
    b->gpu->draw_normal(b->gpu, drawn, 1, block, &draw);
    for (int64_t at = 0; at < count; at += block)
        b->gpu->from_float(b->gpu, memory + at * 2, drawn, count - at < block ? count - at : block);
    return memory;
}

static double launch_seconds(Bench *b, Run run, int times) {
    Event *begin = b->gpu->event_create(b->gpu), *end = b->gpu->event_create(b->gpu);
    b->gpu->event_record(b->gpu, begin, STREAM_COMPUTE);
    for (int i = 0; i < times; i++) run(b);
    b->gpu->event_record(b->gpu, end, STREAM_COMPUTE);
    must(b->gpu->synchronize(b->gpu, &error) == 0);
    double seconds = (b->gpu->event_seconds(b->gpu, end) - b->gpu->event_seconds(b->gpu, begin)) / times;
    b->gpu->event_destroy(b->gpu, begin);
    b->gpu->event_destroy(b->gpu, end);
    return seconds;
}

// Returns the seconds of the fastest of the first launches, and in *sustained the mean over the second half of the
// time.
static double measure(Bench *b, Run run, double *sustained) {
    enum { TIMES = 10 };
    double burst = INFINITY, begin, late = 0.0;
    int count = 0;
    run(b);
    begin = clock_seconds();
    for (int i = 0; i < 2 || clock_seconds() - begin < b->seconds; i++) {
        double each = launch_seconds(b, run, TIMES);
        if (i < 3 && each < burst) burst = each;
        if (i > 0 && clock_seconds() - begin >= b->seconds / 2) late += each, count++;
    }
    *sustained = count > 0 ? late / count : burst;
    return burst;
}

static void multiply(Bench *b, void *y, void *aux, Epilogue epilogue) {
    b->gpu->linear_forward(b->gpu, y, aux, factor_plain(b->x), factor_plain(b->w), NULL, b->rows, b->in, b->out,
                           epilogue);
}

static void forward(Bench *b) { multiply(b, b->y, NULL, EPILOGUE_NONE); }

static void gelu(Bench *b) { multiply(b, b->y, b->aux, EPILOGUE_GELU); }

static void gelu_after(Bench *b) {
    multiply(b, b->aux, NULL, EPILOGUE_NONE);
    b->gpu->gelu_forward(b->gpu, b->y, b->aux, b->rows * b->out);
}

static void backward_input(Bench *b) {
    b->gpu->linear_backward_input(b->gpu, b->z, NULL, factor_plain(b->y), factor_plain(b->w), b->rows, b->in, b->out,
                                  EPILOGUE_NONE);
}

static void backward_weight(Bench *b) {
    b->gpu->linear_backward_weight(b->gpu, b->wide, NULL, factor_plain(b->y), factor_plain(b->x), b->rows, b->in,
                                   b->out, true);
}

static void product(Bench *b) {
    static const struct {
        const char *name;
        Run run;
    } passes[] = {{"forward", forward},
                  {"gelu", gelu},
                  {"gelu after", gelu_after},
                  {"input", backward_input},
                  {"weight", backward_weight}};
    double flops = 2.0 * (double)b->rows * (double)b->in * (double)b->out, sustained;
    b->x = normals(b, b->rows * b->in);
    b->z = normals(b, b->rows * b->in);
    b->w = normals(b, b->in * b->out);
    b->y = normals(b, b->rows * b->out);
    b->aux = take(b, b->rows * b->out * 2);
    b->wide = take(b, b->in * b->out * 4);
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        passes[i].run(b);
        double burst = measure(b, passes[i].run, &sustained);
        printf("{\"product\":\"%s\",\"rows\":%lld,\"in\":%lld,\"out\":%lld,\"burst_tflops\":%.6g,"
               "\"sustained_tflops\":%.6g}\n",
               passes[i].name, (long long)b->rows, (long long)b->in, (long long)b->out, flops / burst / 1e12,
               flops / sustained / 1e12);
    }
    drop(b);
}

// --- flash attention

static void attend(Bench *b) { b->gpu->attention_forward(b->gpu, b->y, b->aux, b->w, b->x, &b->attention); }

static void attend_backward(Bench *b) {
    b->gpu->attention_backward(b->gpu, b->z, b->w, b->y, b->y, b->aux, b->x, &b->attention);
}

static void attention(Bench *b, int64_t batch, int64_t heads, int64_t seq) {
    AttentionShape *s = &b->attention;
    *s = (AttentionShape){
        .batch = batch, .seq = seq, .heads = heads, .kv_heads = heads, .head_dim = 128, .mode = ATTENTION_FLASH};
    int64_t count = batch * seq * heads * 128;
    double flops = 2.0 * (double)seq * (double)count, sustained[2], burst[2];
    b->x = normals(b, 3 * count);
    b->y = normals(b, count);
    b->z = normals(b, 3 * count);
    b->aux = take(b, batch * heads * seq * 4);
    for (int deterministic = 1; deterministic >= 0; deterministic--) {
        s->deterministic = deterministic ? DETERMINISTIC_ON : DETERMINISTIC_OFF;
        b->w = take(b, b->gpu->attention_scratch(b->gpu, s));
        burst[0] = measure(b, attend, &sustained[0]);
        burst[1] = measure(b, attend_backward, &sustained[1]);
        for (int back = 0; back < 2; back++)
            printf("{\"attention\":\"%s\",\"deterministic\":%s,\"batch\":%lld,\"heads\":%lld,\"seq\":%lld,"
                   "\"burst_tflops\":%.6g,\"sustained_tflops\":%.6g}\n",
                   back ? "backward" : "forward", deterministic ? "true" : "false", (long long)batch, (long long)heads,
                   (long long)seq, (back ? 2.5 : 1.0) * flops / burst[back] / 1e12,
                   (back ? 2.5 : 1.0) * flops / sustained[back] / 1e12);
    }
    drop(b);
}

// --- our own kernels, over rows x in values

static void copy(Bench *b) { b->gpu->copy(b->gpu, STREAM_COMPUTE, b->y, b->x, b->rows * b->in * 2); }

static void norm(Bench *b) {
    b->gpu->norm_forward(b->gpu, factor_plain(b->y), b->wide, b->x, b->z, b->w, NULL, b->rows, b->in, 1e-5);
}

static void norm_backward(Bench *b) {
    b->gpu->norm_backward(b->gpu, b->z, b->wide, NULL, b->y, b->x, b->w, b->rows, b->in, 1e-5);
}

static void swiglu(Bench *b) { b->gpu->swiglu_forward(b->gpu, factor_plain(b->y), b->x, NULL, b->rows, b->in / 2); }

static void swiglu_backward(Bench *b) {
    b->gpu->swiglu_backward(b->gpu, factor_plain(b->z), NULL, b->y, b->x, NULL, b->rows, b->in / 2);
}

static void update(Bench *b) {
    const int64_t count = b->rows * b->in / 4;
    const AdamwTensor tensor = {b->x,  b->wide, b->wide + count, b->wide + 2 * count, b->wide + 3 * count, count, true,
                                false, 0};
    const AdamwStep step = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .gradient_scale = 1.0, .step = 1};
    b->gpu->adamw(b->gpu, &tensor, 1, &step);
}

static void kernels(Bench *b) {
    // Bytes moved for each of the rows x in values.
    static const struct {
        const char *name;
        Run run;
        double bytes;
    } all[] = {{"copy", copy, 4},
               {"rmsnorm", norm, 8},
               {"rmsnorm backward", norm_backward, 8},
               {"swiglu", swiglu, 3},
               {"swiglu backward", swiglu_backward, 5},
               {"adamw", update, 34 / 4.0}};
    double sustained, reached = 0.0;
    b->x = normals(b, b->rows * b->in);
    b->y = normals(b, b->rows * b->in);
    b->z = normals(b, b->rows * b->in);
    b->w = normals(b, b->in);
    b->wide = take(b, b->rows * b->in * 4);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        measure(b, all[i].run, &sustained);
        double rate = all[i].bytes * (double)(b->rows * b->in) / sustained / 1e9;
        if (i == 0) reached = rate;
        printf("{\"kernel\":\"%s\",\"gb_s\":%.6g,\"of_copy\":%.4g}\n", all[i].name, rate, rate / reached);
    }
}

int main(int argc, char **argv) {
    char why[256];
    const CudaLibrary *cuda = cuda_load(why);
    if (cuda == NULL || cuda->count(why) == 0) {
        printf("bench_gpu: skipped: %s\n", why);
        return 0;
    }
    Bench b = {.gpu = cuda->backend_create(PRECISION_BF16, 0, &error), .seconds = argc > 1 ? atof(argv[1]) : 0.2};
    must(b.gpu != NULL);
    for (int i = 2; i < argc; i++) {
        long long rows, in, out;
        if (sscanf(argv[i], "attention:%lld:%lld:%lld", &rows, &in, &out) == 3 && rows > 0 && in > 0 && out > 0) {
            attention(&b, rows, in, out);
            continue;
        }
        if (sscanf(argv[i], "%lld:%lld:%lld", &rows, &in, &out) != 3 || rows < 1 || in < 1 || out < 1) {
            fprintf(stderr, "bench_gpu: %s: give positive integers as ROWS:IN:OUT or attention:BATCH:HEADS:SEQ\n",
                    argv[i]);
            return 2;
        }
        b.rows = rows, b.in = in, b.out = out;
        product(&b);
    }
    if (argc < 3) b.rows = 4096, b.in = 8192;
    kernels(&b);
    b.gpu->destroy(b.gpu);
    return 0;
}
