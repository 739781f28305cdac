// The CUDA backend against the CPU's, on a real GPU: matrix products, attention, memory, events, lending. Our own
// kernels are tested by the programs test_gpu_* (make/test.mk). Without a GPU every test here is reported as skipped.
#include "backend/backend.h"
#include "base/clock.h"
#include "op_check.h"

#include "device/device.h"

static int gpus_here(void) {
    char why[256];
    const CudaLibrary *cuda = cuda_load(why);
    return cuda == NULL ? 0 : cuda->count(why);
}

static Backend *gpu_open(int precision, Error *err) {
    char why[256];
    return cuda_load(why)->backend_create(precision, 0, err);
}

#define NEEDS_GPU()                                                                                                    \
    do {                                                                                                               \
        if (gpus_here() == 0) skip();                                                                                  \
    } while (0)

// One operand in the memory of both backends.
typedef struct Twin {
    Operand cpu;
    void *gpu;
} Twin;

// The backends that are compared, and the GPU's memory.
typedef struct Both {
    Op op; // of the CPU
    Backend *cpu, *gpu;
    struct {
        void *memory;
        int64_t bytes;
    } held[16];
    int count;
} Both;

static Both both_open(int precision) {
    Both both = {.op = op_start(precision, 2), .gpu = assert_made(gpu_open(precision, &unit_error))};
    both.cpu = both.op.backend;
    return both;
}

static void *on_gpu(Both *both, int64_t bytes) {
    assert_true(both->count < (int)(sizeof both->held / sizeof *both->held));
    void *memory = assert_made(both->gpu->allocate(both->gpu, MEMORY_WORKSPACE, bytes, "test", &unit_error));
    both->held[both->count].memory = memory, both->held[both->count++].bytes = bytes;
    return memory;
}

static void both_close(Both *both) {
    assert_succeeds(both->gpu->synchronize(both->gpu, &unit_error));
    for (int i = 0; i < both->count; i++)
        both->gpu->release(both->gpu, MEMORY_WORKSPACE, both->held[i].memory, both->held[i].bytes);
    both->gpu->destroy(both->gpu);
    op_end(&both->op);
}

#define AutoBoth __attribute__((cleanup(both_close))) Both

// Returns random values in the run's precision or, if `wide`, in fp32. seed 0: NaN everywhere, so that unwritten
// elements show.
static Twin twin(Both *both, int64_t count, bool wide, uint64_t seed, double spread) {
    Twin t = {.cpu = wide        ? op_gradient(&both->op, count, seed, spread)
                     : seed == 0 ? op_output(&both->op, count)
                                 : op_operand(&both->op, count, seed, 0, spread)};
    t.gpu = on_gpu(both, t.cpu.bytes);
    both->gpu->upload(both->gpu, t.gpu, t.cpu.data, t.cpu.bytes);
    return t;
}

// The GPU's values, with a copy in the CPU's memory.
static Operand downloaded(Both *both, const Twin *t) {
    Operand copy = op_blank(&both->op, t->cpu.count, t->cpu.bytes / (t->cpu.count + (t->cpu.count == 0)));
    both->gpu->download(both->gpu, copy.data, t->gpu, copy.bytes);
    op_read(&both->op, &copy);
    return copy;
}

// |gpu - cpu| <= relative * (|cpu| + floor), and no NaN.
static void near_twins(Both *both, const char *what, Twin *t, double relative, double floor) {
    op_near(what, downloaded(both, t).value, op_read(&both->op, &t->cpu), t->cpu.count, relative, floor);
}

static double bound_of(const Both *both) { return both->cpu->precision == PRECISION_BF16 ? 0x1p-6 : 2e-5; }

// --- matrix products

static void check_linear(int precision, int64_t rows, int64_t in, int64_t out, bool bias, bool gelu) {
    Both b = both_open(precision);
    double spread = 1.0 / sqrt((double)in);
    enum { X, W, BIAS, Y, AUX, DY, DX, DW, DBIAS, COUNT };
    Twin t[COUNT] = {
        twin(&b, rows * in, false, 1, 1),  twin(&b, out * in, false, 2, spread), twin(&b, out, false, 3, 1),
        twin(&b, rows * out, false, 0, 0), twin(&b, rows * out, false, 0, 0),    twin(&b, rows * out, false, 4, 1),
        twin(&b, rows * in, false, 0, 0),  twin(&b, out * in, true, 5, 1),       twin(&b, out, true, 6, 1)};
    Twin pre = twin(&b, rows * in, false, 7, 2); // input of the preceding GELU, for the backward
    Epilogue epilogue = gelu ? EPILOGUE_GELU : EPILOGUE_NONE;
    Backend *ends[] = {b.cpu, b.gpu};
    for (int e = 0; e < 2; e++) {
        Backend *be = ends[e];
#define AT(i) (e == 0 ? t[i].cpu.data : t[i].gpu)
        be->linear_forward(be, AT(Y), gelu ? AT(AUX) : NULL, factor_plain(AT(X)), factor_plain(AT(W)),
                           bias ? AT(BIAS) : NULL, rows, in, out, epilogue);
        be->linear_backward_input(be, AT(DX), gelu ? (e == 0 ? pre.cpu.data : pre.gpu) : NULL, factor_plain(AT(DY)),
                                  factor_plain(AT(W)), rows, in, out, epilogue);
        be->linear_backward_weight(be, AT(DW), bias ? AT(DBIAS) : NULL, factor_plain(AT(DY)), factor_plain(AT(X)), rows,
                                   in, out, true);
#undef AT
    }
    double bound = bound_of(&b);
    near_twins(&b, "y", &t[Y], bound, 1);
    if (gelu) near_twins(&b, "aux", &t[AUX], bound, 1);
    near_twins(&b, "dx", &t[DX], bound, sqrt((double)out / (double)in) + 1);
    near_twins(&b, "dw", &t[DW], 2e-5, sqrt((double)rows) + 1);
    if (bias) near_twins(&b, "dbias", &t[DBIAS], 2e-5, sqrt((double)rows) + 1);
    both_close(&b);
}

// Blocks of rows that are not adjacent in y, computed as one batched product.
static void check_blocks(int precision, int64_t in, int64_t out, bool bias, bool gelu) {
    AutoBoth b = both_open(precision);
    RowBlocks blocks = {3, 8, 10, 24};
    enum { X, W, BIAS, Y, AUX, COUNT };
    Twin t[COUNT] = {twin(&b, 28 * in, false, 1, 1), twin(&b, out * in, false, 2, 1.0 / sqrt((double)in)),
                     twin(&b, out, false, 3, 1), twin(&b, 56 * out, false, 4, 1), twin(&b, 56 * out, false, 5, 1)};
    for (int64_t i = 0; i < blocks.count; i++) {
        int64_t from = i * blocks.x_stride * in * b.cpu->element, to = i * blocks.y_stride * out * b.cpu->element;
        b.cpu->linear_forward(b.cpu, (char *)t[Y].cpu.data + to, gelu ? (char *)t[AUX].cpu.data + to : NULL,
                              factor_plain((char *)t[X].cpu.data + from), factor_plain(t[W].cpu.data),
                              bias ? t[BIAS].cpu.data : NULL, blocks.rows, in, out,
                              gelu ? EPILOGUE_GELU : EPILOGUE_NONE);
    }
    b.gpu->linear_forward_blocks(b.gpu, t[Y].gpu, gelu ? t[AUX].gpu : NULL, t[X].gpu, t[W].gpu,
                                 bias ? t[BIAS].gpu : NULL, &blocks, in, out, gelu ? EPILOGUE_GELU : EPILOGUE_NONE);
    near_twins(&b, "y", &t[Y], bound_of(&b), 1);
    near_twins(&b, "aux", &t[AUX], bound_of(&b), 1);
}

TEST(blocks_of_rows_agree_with_the_cpu) {
    NEEDS_GPU();
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)
        for (int form = 0; form < 4; form++) {
            check_blocks(precision, 64, 96, form & 1, form & 2);
            check_blocks(precision, 33, 45, form & 1, form & 2);
        }
}

TEST(linear_layers_agree_with_the_cpu) {
    NEEDS_GPU();
    static const int64_t shapes[][3] = {{1, 8, 8},       {64, 64, 64},     {128, 256, 1024},
                                        {7, 5, 3},       {33, 65, 129},    {200, 96, 288},
                                        {256, 512, 257}, {128, 768, 2304}, {100, 1000, 24}};
    EACH_CASE (precision, each, shapes)
        for (int form = 0; form < 4; form++)
            check_linear(precision, (*each)[0], (*each)[1], (*each)[2], form & 1, form & 2);
}

// Counts the numbers of two arrays that differ, and fails if any two differ by more than their last bit of bf16.
static int64_t count_differences(const double *got, const double *want, int64_t count) {
    int64_t differ = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs(got[i] - want[i]) <= 0x1p-7 * (fabs(want[i]) + 1)))
            fail_msg("[%lld]: %g, not %g", (long long)i, got[i], want[i]);
        differ += got[i] != want[i];
    }
    return differ;
}

// A product of few results and many terms may be split, and the parts' sums could be rounded to bf16. If they are fp32,
// only results next to the middle between two numbers of bf16 can differ from the CPU's.
TEST(bf16_products_of_many_terms_are_summed_in_fp32) {
    NEEDS_GPU();
    enum { ROWS = 48, OUT = 32, TERMS = 8192 };
    AutoBoth b = both_open(PRECISION_BF16);
    Twin x = twin(&b, ROWS * TERMS, false, 1, 1), w = twin(&b, OUT * TERMS, false, 2, 1);
    Twin y = twin(&b, ROWS * OUT, false, 0, 0);
    b.cpu->linear_forward(b.cpu, y.cpu.data, NULL, factor_plain(x.cpu.data), factor_plain(w.cpu.data), NULL, ROWS,
                          TERMS, OUT, EPILOGUE_NONE);
    b.gpu->linear_forward(b.gpu, y.gpu, NULL, factor_plain(x.gpu), factor_plain(w.gpu), NULL, ROWS, TERMS, OUT,
                          EPILOGUE_NONE);
    double *got = downloaded(&b, &y).value, *want = op_read(&b.op, &y.cpu);
    assert_in_range(count_differences(got, want, y.cpu.count), 0, y.cpu.count / 50);
}

// --- attention

// Makes the last dimensions of every head zero, of queries and keys too.
static void clear_padding_(Backend *be, char *rows, const AttentionShape *s, int64_t heads) {
    int64_t all = s->batch * s->seq * heads, wide = s->head_dim - s->value_dim, bytes = all * wide * be->element;
    Error err = {0};
    void *zeros = be->allocate(be, MEMORY_WORKSPACE, bytes, "zeros", &err);
    assert_non_null(zeros);
    be->zero(be, zeros, bytes);
    be->copy_columns(be, rows + s->value_dim * be->element, s->head_dim, zeros, wide, false, all, wide);
    be->synchronize(be, &err);
    be->release(be, MEMORY_WORKSPACE, zeros, bytes);
}

static void check_attention(int precision, const AttentionShape *shape) {
    AttentionShape copy = *shape, *s = &copy;
    AutoBoth b = both_open(precision);
    enum { QKV, OUT, DOUT, DQKV, OPERANDS };
    int64_t rows = s->batch * s->seq, width = (s->heads + 2 * s->kv_heads) * s->head_dim, out = s->heads * s->head_dim;
    bool range = s->first > 0;
    Twin t[] = {twin(&b, rows * width, false, 1, 1),
                twin(&b, rows * out, false, 0, 0),
                twin(&b, rows * out, false, 2, 1),
                twin(&b, rows * width, false, range ? 5 : 0, 1),
                twin(&b, attention_range_count(s), false, 3, 1),
                twin(&b, attention_range_count(s), true, 4, 1)};
    Backend *ends[] = {b.cpu, b.gpu};
    for (int e = 0; e < 2; e++) {
        Backend *be = ends[e];
        void *at[OPERANDS];
        for (int i = 0; i < OPERANDS; i++) at[i] = e == 0 ? t[i].cpu.data : t[i].gpu;
        if (range) s->keys = e == 0 ? t[4].cpu.data : t[4].gpu, s->dkeys = e == 0 ? t[5].cpu.data : t[5].gpu;
        int64_t bytes[3] = {be->attention_scratch(be, s), attention_saved(s, be->element) + 256, rows * 4};
        void *memory[3]; // scratch, saved values, places
        for (int i = 0; i < 3; i++) memory[i] = e == 0 ? op_hold(&b.op, bytes[i]) : on_gpu(&b, bytes[i]);
        if (s->documents) be->upload(be, memory[2], s->host_places, bytes[2]);
        for (int i = 0; i < OPERANDS && s->value_dim > 0; i++)
            clear_padding_(be, at[i], s, s->heads + (i == QKV || i == DQKV ? 2 * s->kv_heads : 0));
        s->places = s->documents ? memory[2] : NULL;
        be->attention_forward(be, at[OUT], memory[1], memory[0], at[QKV], s);
        be->attention_backward(be, at[DQKV], memory[0], at[DOUT], at[OUT], memory[1], at[QKV], s);
    }
    near_twins(&b, "out", &t[1], bound_of(&b), 1);
    near_twins(&b, "dqkv", &t[3], 2 * bound_of(&b), 1);
    near_twins(&b, "dkeys", &t[5], 2 * bound_of(&b), 1);
}

// It neither reads nor writes them.
TEST(flash_leaves_out_the_zeros_behind_values) {
    NEEDS_GPU();
    AttentionShape s = {.batch = 2, .seq = 72, .heads = 3, .kv_heads = 3, .head_dim = 24, .value_dim = 16};
    s.mode = ATTENTION_FLASH;
    check_attention(PRECISION_BF16, &s);
    s.head_dim = 192, s.value_dim = 128;
    check_attention(PRECISION_BF16, &s);
}

// Shapes of so many tiles that a deterministic backward on Hopper is split into calls, by sequences and by heads.
TEST(flash_in_several_calls_agrees_with_the_cpu) {
    NEEDS_GPU();
    static const int64_t shapes[][3] = {{32, 64, 64}, {1, 2048, 1024}};
    EACH_ROW (each, shapes) {
        AttentionShape s = {.batch = (*each)[0], .heads = (*each)[1], .kv_heads = (*each)[2]};
        s.seq = 16, s.head_dim = 8, s.mode = ATTENTION_FLASH, s.deterministic = DETERMINISTIC_AUTO;
        check_attention(PRECISION_BF16, &s);
        s.first = 24;
        check_attention(PRECISION_BF16, &s);
    }
    // With documents the statistics of the second call, of heads 1029 to 2057, begin at a float of their own.
    int32_t places[16];
    for (int i = 0; i < 16; i++) places[i] = i % 9;
    AttentionShape s = {.batch = 1, .seq = 16, .heads = 2058, .kv_heads = 2058, .head_dim = 8};
    s.mode = ATTENTION_FLASH, s.deterministic = DETERMINISTIC_AUTO, s.documents = true, s.host_places = places;
    check_attention(PRECISION_BF16, &s);
}

// Documents of one token, of lengths around a kind's, of a whole sequence, and more short ones than a call has room
// for. In a range, the first document of a sequence begins before it.
TEST(documents_of_flash_agree_with_the_cpu) {
    NEEDS_GPU();
    enum { SEQ = 260, BATCH = 3, SHORT = 5, COUNT = 4 };
    static const int lengths[COUNT] = {1, 128, 129, 3}; // the last one is cut
    for (int kv_heads = 2; kv_heads <= 4; kv_heads += 2)
        for (int first = 0; first <= 40; first += 40) {
            int32_t places[SEQ * BATCH];
            int before = first / 4; // of sequence 0; keys before these have no query
            for (int i = 0, document = 0, place = before; i < SEQ; i++, place++) {
                if (place == lengths[document] + (document == 0 ? before : 0)) document++, place = 0;
                places[i * BATCH] = place;
                places[i * BATCH + 1] = first + i;
                places[i * BATCH + 2] = i < 17 ? first + i : (i - 17) % SHORT;
            }
            AttentionShape s = {.batch = BATCH, .seq = SEQ, .heads = 4, .kv_heads = kv_heads, .head_dim = 8};
            s.mode = ATTENTION_FLASH, s.first = first, s.documents = true, s.host_places = places;
            check_attention(PRECISION_BF16, &s);
        }
}

TEST(attention_agrees_with_the_cpu_in_every_mode) {
    NEEDS_GPU();
    static const int64_t shapes[][5] = {{1, 64, 2, 2, 64},  {2, 33, 3, 3, 24}, {1, 17, 4, 1, 40},
                                        {2, 128, 4, 2, 64}, {3, 96, 4, 4, 96}, {2, 256, 8, 2, 128}};
    EACH_CASE (precision, each, shapes)
        for (int mode = ATTENTION_NONE; mode <= ATTENTION_FLASH; mode++)
            for (int softmax = SOFTMAX_FUSED; softmax <= SOFTMAX_MEGATRON; softmax++) {
                const int64_t *d = *each;
                AttentionShape s = {.batch = d[0], .seq = d[1], .heads = d[2], .kv_heads = d[3]};
                s.head_dim = d[4], s.mode = mode, s.softmax = softmax;
                check_attention(precision, &s);
                s.first = 31; // a range; the largest shape would take as long as all others
                if (s.seq < 256) check_attention(precision, &s);
                s.first = 0, s.full = true;
                check_attention(precision, &s);
            }
}

// The same call twice gives the same bits.
TEST(reruns_give_the_same_bits) {
    NEEDS_GPU();
    AutoBoth b = both_open(PRECISION_BF16);
    enum { ROWS = 512, IN = 1024, OUT = 768 };
    Twin x = twin(&b, ROWS * IN, false, 1, 1), dy = twin(&b, ROWS * OUT, false, 2, 1);
    Twin dw[2] = {twin(&b, OUT * IN, true, 3, 1), twin(&b, OUT * IN, true, 3, 1)};
    for (int i = 0; i < 2; i++)
        b.gpu->linear_backward_weight(b.gpu, dw[i].gpu, NULL, factor_plain(dy.gpu), factor_plain(x.gpu), ROWS, IN, OUT,
                                      true);
    Operand found[2] = {downloaded(&b, &dw[0]), downloaded(&b, &dw[1])};
    assert_memory_equal(found[0].data, found[1].data, (size_t)found[0].bytes);
}

// --- the device

TEST(events_tell_the_time_of_the_host) {
    NEEDS_GPU();
    AutoBoth b = both_open(PRECISION_FP32);
    Event *event = b.gpu->event_create(b.gpu);
    // The clocks are compared at synchronize. If this process is interrupted there, times are off until the next one,
    // so a busy machine gets more attempts.
    int right = 0;
    double before = 0, told = 0, after = 0;
    for (int i = 0; i < 300 && right < 3; i++) {
        before = clock_seconds();
        b.gpu->event_record(b.gpu, event, STREAM_COMPUTE);
        while (!b.gpu->event_done(b.gpu, event)) continue;
        after = clock_seconds(), told = b.gpu->event_seconds(b.gpu, event);
        right = told >= before - 1e-3 && told <= after + 1e-3 ? right + 1 : 0;
        assert_succeeds(b.gpu->synchronize(b.gpu, &unit_error));
    }
    if (right < 3) fail_msg("%.6f is not in %.6f .. %.6f", told, before, after);
    b.gpu->event_destroy(b.gpu, event);
}

TEST(memory_that_was_uploaded_may_be_overwritten_at_once) {
    NEEDS_GPU();
    enum { BYTES = 1 << 20 };
    AutoBoth b = both_open(PRECISION_FP32);
    void *there = on_gpu(&b, BYTES);
    char *host = op_hold(&b.op, BYTES);
    memset(host, 1, BYTES);
    b.gpu->upload(b.gpu, there, host, BYTES);
    memset(host, 2, BYTES);
    b.gpu->download(b.gpu, host, there, BYTES);
    for (int64_t i = 0; i < BYTES; i++) assert_int_equal(host[i], 1);
}

TEST(too_much_memory_is_refused_with_what_holds_the_rest) {
    NEEDS_GPU();
    AutoBoth b = both_open(PRECISION_FP32);
    on_gpu(&b, 1 << 20);
    assert_refused(b.gpu->allocate(b.gpu, MEMORY_OWN_SLOTS, (int64_t)1 << 50, "slots", &unit_error), EXIT_FAILED,
                   "own slots");
    assert_contains(unit_error.text, "workspace");
}
