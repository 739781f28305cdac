// CUDA kernels on the virtual GPU against the CPU backend and float64: shapes that the tests of the CPU's operations
// leave out (rows of the large models, memory that is not aligned) and the operations that only a GPU has.
#include "cuda/cuda.h"
#include "cuda/cuda_library.h"
#include "managed.h"
#include "op_check.h"

static const double EPS = 1e-5;

static Op on_kernels(int precision) {
    Backend *be = assert_made(cuda_library()->backend_create(precision, 0, &unit_error));
    return (Op){.backend = managed_with_little_scratch(be)};
}

static double bound_of(int precision) {
    return precision == PRECISION_BF16 ? 0x1p-7 : 1e-5; // two roundings of bf16 may fall to different sides
}

// --- norms at lengths that use each form: one, two and four pieces per thread, single elements, sums in scratch

static const int64_t NORM_COLS[] = {2048, 8192, 9984, 16384, 1001, 5001, 32761};

typedef struct Norm {
    Operand x, delta, w, b, sum, out, dx, dw, db;
} Norm;

static Norm norm_run(Op *op, int64_t rows, int64_t cols, bool layernorm) {
    int64_t count = rows * cols;
    Norm n = {op_operand(op, count, 1, 0.2, 1), op_operand(op, count, 2, 0, 1), op_operand(op, cols, 3, 1, 0.5),
              op_operand(op, cols, 4, 0, 1),    op_output(op, count),           op_output(op, count),
              op_operand(op, count, 5, 0, 1),   op_gradient(op, cols, 6, 1),    op_gradient(op, cols, 7, 1)};
    Backend *b = op->backend;
    b->norm_forward(b, factor_plain(n.out.data), n.sum.data, n.x.data, n.delta.data, n.w.data,
                    layernorm ? n.b.data : NULL, rows, cols, EPS);
    b->norm_backward(b, n.dx.data, n.dw.data, layernorm ? n.db.data : NULL, n.delta.data, n.x.data, n.w.data, rows,
                     cols, EPS);
    Operand *results[] = {&n.sum, &n.out, &n.dx, &n.dw, &n.db};
    for (int i = 0; i < 5; i++) op_read(op, results[i]);
    return n;
}

static void check_norm(int precision, int64_t rows, int64_t cols, bool layernorm) {
    AutoOp cpu = op_start(precision, 2), gpu = on_kernels(precision);
    Norm want = norm_run(&cpu, rows, cols, layernorm), got = norm_run(&gpu, rows, cols, layernorm);
    double bound = bound_of(precision);
    assert_memory_equal(got.sum.data, want.sum.data, (size_t)want.sum.bytes);
    op_near("out", got.out.value, want.out.value, rows * cols, bound, 1.0);
    op_near("dx", got.dx.value, want.dx.value, rows * cols, bound, 1.0);
    op_near("dw", got.dw.value, want.dw.value, cols, 2e-5, (double)rows);
    op_near("db", got.db.value, want.db.value, cols, 2e-5, (double)rows);
}

TEST(norms_agree_with_the_cpu_at_every_length) {
    EACH_CASE (precision, each, NORM_COLS)
        for (int layernorm = 0; layernorm < 2; layernorm++)
            check_norm(precision, *each > 4096 ? 5 : 23, *each, layernorm);
}

// --- 8-bit results: they must be the CPU's quantization of the kernel's own bf16 results

enum { RMSNORM, LAYERNORM, SWIGLU, SWIGLU_BACKWARD, MAKERS };

static void make_result(Op *op, int maker, Factor out, int64_t rows, int64_t cols) {
    Operand x = op_operand(op, rows * 2 * cols, 1, 0.2, 9), w = op_operand(op, cols, 3, 1, 0.5);
    Backend *b = op->backend;
    if (maker == SWIGLU_BACKWARD) b->swiglu_backward(b, out, NULL, x.data, x.data, NULL, rows, cols / 2);
    if (maker == SWIGLU) b->swiglu_forward(b, out, x.data, NULL, rows, cols);
    void *bias = maker == LAYERNORM ? w.data : NULL;
    if (maker <= LAYERNORM) b->norm_forward(b, out, NULL, x.data, NULL, w.data, bias, rows, cols, EPS);
}

static void check_narrow(int maker, int kind, int64_t rows, int64_t cols, bool on_cpu) {
    AutoOp cpu = op_start(PRECISION_BF16, 2), gpu = on_cpu ? op_start(PRECISION_BF16, 2) : on_kernels(PRECISION_BF16);
    int64_t bytes = factor_scale_bytes(kind, rows, cols);
    Operand plain = op_output(&gpu, rows * cols), source = op_output(&gpu, rows * cols);
    Factor want = {op_poison(&cpu, rows * cols), op_poison(&cpu, bytes), plain.data, kind};
    Factor got = {op_poison(&gpu, rows * cols), op_poison(&gpu, bytes), source.data, kind};
    make_result(&gpu, maker, factor_plain(plain.data), rows, cols);
    make_result(&gpu, maker, got, rows, cols);
    cpu.backend->quantize(cpu.backend, want, factor_plain(plain.data), rows, cols, false);
    if (maker == SWIGLU_BACKWARD) assert_memory_equal(source.data, plain.data, (size_t)(2 * rows * cols));
    assert_memory_equal(got.data, want.data, (size_t)(rows * cols));
    assert_memory_equal(got.scales, want.scales, (size_t)bytes);
}

TEST(results_of_eight_bits_are_the_quantized_results) {
    static const int64_t cols[] = {32, 288, 1376, 2048, 9984};
    for (int i = 0; i < 5; i++)
        for (int maker = 0; maker < MAKERS; maker++)
            for (int kind = FACTOR_ROWS_128; kind <= FACTOR_ROWS_32; kind += FACTOR_ROWS_32 - FACTOR_ROWS_128)
                for (int on_cpu = 0; on_cpu < 2; on_cpu++) check_narrow(maker, kind, 37, cols[i], on_cpu);
}

TEST(rows_beyond_the_limit_are_refused) {
    AutoOp op = on_kernels(PRECISION_FP32);
    CudaBackend *cuda = cuda_self(op.backend);
    Operand x = op_output(&op, 32769), w = op_output(&op, 32769), out = op_output(&op, 32769);
    cuda_norm_forward(op.backend, factor_plain(out.data), NULL, x.data, NULL, w.data, NULL, 1, 32769, EPS);
    assert_non_null(strstr(cuda->failed_at, "32768 columns"));
    cuda->failed_at = NULL;
}

// --- memory that is not aligned to 16 bytes, where kernels cannot access pieces of 16 bytes

typedef struct Shifted {
    int64_t shift, count;
} Shifted;

static int64_t run_shifted(Op *op, const void *shape, unsigned char *out) {
    const Shifted *s = shape;
    int64_t element = op->backend->element, n = s->count;
    char *x = op_operand(op, 2 * n + 64, 1, 0, 1).data, *y = op_operand(op, 2 * n + 64, 2, 0, 1).data;
    char *z = op_poison(op, (2 * n + 64) * element);
    Backend *b = op->backend;
    b->combine(b, z + s->shift * element, 1, x, 1, y + s->shift * element, n);
    b->swiglu_forward(b, factor_plain(y), x + s->shift * element, NULL, 1, n);
    b->norm_forward(b, factor_plain(x + s->shift * element), NULL, z + s->shift * element, NULL, y, NULL, 1, n, EPS);
    memcpy(out, x + s->shift * element, (size_t)(n * element));
    memcpy(out + n * element, z + s->shift * element, (size_t)(n * element));
    memcpy(out + 2 * n * element, y, (size_t)(n * element));
    return 3 * n * element;
}

TEST(memory_that_is_not_aligned_gives_the_same_values) {
    enum { COUNT = 1000, BYTES = 3 * COUNT * 4 };
    static unsigned char first[BYTES], other[BYTES];
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)
        for (int64_t shift = 0; shift < 4; shift++) {
            AutoOp op = on_kernels(precision), cpu = op_start(precision, 1);
            Shifted s = {shift, COUNT};
            int64_t bytes = run_shifted(&op, &s, first), count = bytes / op.backend->element;
            assert_int_equal(run_shifted(&cpu, &s, other), bytes);
            Operand got = op_output(&op, count), want = op_output(&cpu, count);
            memcpy(got.data, first, (size_t)bytes);
            memcpy(want.data, other, (size_t)bytes);
            op_near("shifted", op_read(&op, &got), op_read(&cpu, &want), count, bound_of(precision), 1.0);
        }
}

// The CPU's rule: sums in rank order, in fp32, rounded once. The rank's own block is read from the output.
static void check_blocks(int precision, int ranks, int rank, int64_t count) {
    AutoOp op = on_kernels(precision), cpu = op_start(precision, 1);
    int64_t width = op.backend->element;
    char *others = op_operand(&op, ranks * count, 1, 0, 1).data;
    float *values = op_hold(&op, ranks * count * 4), *sum = op_hold(&op, count * 4);
    cpu.backend->to_float(cpu.backend, values, others, ranks * count);
    for (int q = 0; q < ranks; q++)
        for (int64_t i = 0; i < count; i++) sum[i] = q == 0 ? values[i] : sum[i] + values[q * count + i];
    Operand want = op_output(&cpu, count), out = op_output(&op, count);
    cpu.backend->from_float(cpu.backend, want.data, sum, count);
    memcpy(out.data, others + rank * count * width, (size_t)(count * width));
    memset(others + rank * count * width, 0xff, (size_t)(count * width));
    cuda_sum_blocks(op.backend, out.data, out.data, others, ranks, rank, count);
    assert_memory_equal(out.data, want.data, (size_t)(count * width));
}

TEST(blocks_of_ranks_are_summed_to_the_bits_of_cpus) {
    static const int64_t counts[] = {1, 8, 1000, 4096, 4099};
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)
        for (int ranks = 2; ranks <= 9; ranks++)
            for (int i = 0; i < 5; i++) check_blocks(precision, ranks, (ranks + i) % ranks, counts[i]);
}

// Tensors that begin at unaligned addresses have the same bits in their norms, and the same weights after an update.
TEST(tensors_may_begin_anywhere) {
    enum { COUNT = 40001 };
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        double norms[2] = {0, 0};
        float *weights[2];
        AutoOp op = on_kernels(precision);
        for (int shift = 0; shift < 2; shift++) {
            float *scratch[4];
            for (int i = 0; i < 4; i++) {
                scratch[i] = (float *)op_hold(&op, (COUNT + 8) * 4) + shift;
                for (int k = 0; k < COUNT; k++)
                    scratch[i][k] = (float)(i == 3 ? fabs(op_random(3, k)) : op_random(i, k));
            }
            weights[shift] = scratch[0];
            char *low = (char *)op_poison(&op, (COUNT + 8) * 4) + shift * op.backend->element;
            AdamwTensor t = {low, scratch[0], scratch[1], scratch[3], scratch[2], COUNT, true, false, 1.0};
            if (precision == PRECISION_FP32) t.weight = scratch[0], t.master = NULL;
            AdamwStep step = {1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, 3};
            op.backend->squared_norms(op.backend, &norms[shift], &t, 1);
            op.backend->adamw(op.backend, &t, 1, &step);
            for (int k = 0; k < COUNT; k++) assert_true(scratch[2][k] == 0.0f);
        }
        assert_true(norms[0] == norms[1]);
        for (int k = 0; k < COUNT; k++) assert_true(weights[0][k] == weights[1][k]);
    }
}

// --- operations next to matrix products

static double gelu(double x) { return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x))); }
static double gelu_of(void *x) { return gelu(*(double *)x); }

TEST(gelu_agrees_with_float64) {
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)
        for (int64_t count = 1; count < 5000; count = count * 3 + 1) {
            AutoOp op = on_kernels(precision);
            Operand x = op_operand(&op, count, 1, 0, 9), dout = op_operand(&op, count, 2, 0, 1);
            Operand y = op_output(&op, count), dx = op_output(&op, count);
            double *want = op_hold(&op, count * 8), *slope = op_hold(&op, count * 8);
            for (int64_t i = 0; i < count; i++) {
                want[i] = gelu(x.value[i]);
                slope[i] = dout.value[i] * op_slope(gelu_of, &x.value[i], &x.value[i]);
            }
            cuda_gelu_forward(op.backend, y.data, x.data, count);
            cuda_gelu_backward(op.backend, dx.data, dout.data, x.data, count);
            op_near("gelu", op_read(&op, &y), want, count, op_bound(&op), 0.1);
            op_near("gelu backward", op_read(&op, &dx), slope, count, op_bound(&op), 0.1);
        }
}

static void check_bias(int precision, int64_t rows, int64_t cols) {
    AutoOp op = on_kernels(precision);
    Operand y = op_operand(&op, rows * cols, 1, 0, 1), bias = op_operand(&op, cols, 2, 0, 1);
    Operand sums = op_gradient(&op, cols, 3, 1);
    double *want = op_hold(&op, rows * cols * 8);
    for (int64_t i = 0; i < rows * cols; i++) {
        sums.value[i % cols] += y.value[i];
        want[i] = y.value[i] + bias.value[i % cols];
    }
    cuda_column_sums(op.backend, sums.data, y.data, rows, cols);
    cuda_bias_add(op.backend, y.data, bias.data, rows, cols);
    op_near("column sums", op_result(&op, &sums), sums.value, cols, 1e-6, sqrt((double)rows) + 1);
    op_near("bias", op_read(&op, &y), want, rows * cols, op_bound(&op), 0.1);
}

TEST(biases_and_their_gradients_agree_with_float64) {
    static const int64_t rows[] = {1, 7, 300}, cols[] = {1, 33, 768, 2056};
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)
        for (int r = 0; r < 3; r++)
            for (int c = 0; c < 4; c++) check_bias(precision, rows[r], cols[c]);
}

TEST(gradients_of_a_range_are_added_in_fp32) {
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)
        for (int64_t count = 1; count < 9000; count = 3 * count + 8) {
            AutoOp op = on_kernels(precision);
            Operand to = op_gradient(&op, count, 1, 1.0), from = op_operand(&op, count, 2, 0.0, 1.0);
            for (int64_t i = 0; i < count; i++) to.value[i] += from.value[i];
            cuda_accumulate_narrow(op.backend, to.data, from.data, count);
            op_near("sum", op_result(&op, &to), to.value, count, 1e-6, 1.0);
        }
}

// --- softmax of attention scores

static const CudaScores SCORES[] = {
    {1, 1, 1, 0, 1.0f, NULL, 0},       {3, 7, 7, 0, 0.5f, NULL, 0},      {2, 64, 64, 0, 0.125f, NULL, 0},
    {2, 33, 130, 97, 0.2f, NULL, 0},   {1, 5, 1000, 995, 1.0f, NULL, 0}, {1, 40, 2048, 2008, 0.1f, NULL, 0},
    {1, 2, 9000, 8998, 0.3f, NULL, 0}, {2, 16, 24, 3, 0.5f, NULL, 0},
};

static int64_t scores_count(const CudaScores *s) { return s->matrices * s->rows * s->cols; }

static void softmax_reference(const CudaScores *s, double *p, double *ds, const double *x, const double *dp) {
    for (int64_t row = 0; row < s->matrices * s->rows; row++) {
        int64_t at = row * s->cols, query = s->first + row % s->rows, seen = query + 1;
        int64_t from = s->places == NULL ? 0 : query - s->places[(query - s->first) * s->apart];
        double most = -INFINITY, sum = 0, delta = 0;
        for (int64_t i = from; i < seen; i++) most = fmax(most, s->scale * x[at + i]);
        for (int64_t i = from; i < seen; i++) sum += exp(s->scale * x[at + i] - most);
        for (int64_t i = 0; i < s->cols; i++)
            p[at + i] = i >= from && i < seen ? exp(s->scale * x[at + i] - most) / sum : 0.0;
        for (int64_t i = from; i < seen; i++) delta += p[at + i] * dp[at + i];
        for (int64_t i = 0; i < s->cols; i++)
            ds[at + i] = i >= from && i < seen ? s->scale * p[at + i] * (dp[at + i] - delta) : 0.0;
    }
}

// Fills the scores above the diagonal with NaNs, which must not be read.
static void spoil_unseen(const Op *op, const CudaScores *s, const Operand *x) {
    for (int64_t i = 0; i < x->count; i++)
        if (i % s->cols > s->first + i / s->cols % s->rows)
            memset((char *)x->data + i * op->backend->element, 0xff, (size_t)op->backend->element);
}

static void check_softmax(int precision, CudaScores scores, bool fused, bool in_place, int64_t document) {
    AutoOp op = on_kernels(precision);
    const CudaScores *s = &scores;
    int64_t count = scores_count(s);
    scores.apart = 3, scores.places = op_places(&op, s->first + s->rows, 3, document);
    if (document > 0) scores.places += s->first * scores.apart;
    Operand x = op_operand(&op, count, 1, 0, 20), dp = op_operand(&op, count, 2, 0, 1);
    Operand p = in_place ? x : op_output(&op, count), ds = in_place ? dp : op_output(&op, count);
    double *want_p = op_hold(&op, count * 8), *want_ds = op_hold(&op, count * 8);
    float *wide = op_poison(&op, count * 4);
    softmax_reference(s, want_p, want_ds, x.value, dp.value);
    spoil_unseen(&op, s, &x);
    spoil_unseen(&op, s, &dp);
    if (fused) {
        cuda_softmax_forward(op.backend, p.data, x.data, NULL, s);
        cuda_softmax_backward(op.backend, ds.data, dp.data, p.data, NULL, s);
    } else {
        cuda_softmax_forward(op.backend, p.data, x.data, wide, s);
        cuda_softmax_backward(op.backend, ds.data, dp.data, p.data, wide, s);
    }
    double bound = precision == PRECISION_BF16 ? 0x1p-7 : 1e-5; // the slopes start from p as stored
    op_near("p", op_read(&op, &p), want_p, count, bound, 1e-6);
    op_near("dscores", op_read(&op, &ds), want_ds, count, bound, 0.3 * s->scale);
}

TEST(both_softmaxes_agree_with_float64) {
    EACH_CASE (precision, each, SCORES)
        for (int form = 0; form < 8; form++) check_softmax(precision, *each, form & 1, form & 2, form & 4 ? 20 : 0);
}

// --- bits do not depend on the order in which blocks and threads run, which is another at each launch

static int64_t run_all(Op *op, unsigned char *out) {
    const CudaScores *s = &SCORES[3];
    Norm n = norm_run(op, 50, 1032, true);
    Operand x = op_operand(op, scores_count(s), 1, 0, 20), p = op_output(op, x.count), ds = op_output(op, x.count);
    Operand sums = op_gradient(op, 1032, 3, 1);
    cuda_softmax_forward(op->backend, p.data, x.data, NULL, s);
    cuda_softmax_backward(op->backend, ds.data, x.data, p.data, NULL, s);
    cuda_column_sums(op->backend, sums.data, n.x.data, 50, 1032);
    return op_outputs(out, &n.out, &n.dx, &n.dw, &n.db, &p, &ds, &sums);
}

// Rows that begin anywhere in a block of four, contiguous or with gaps between them, and rows far out in a stream.
TEST(normals_have_the_bits_of_the_cpu) {
    static const struct {
        int64_t rows, cols;
        NormalRows draw;
    } cases[] = {{1, 1, {1, 1, 2, 3, 1}},
                 {300, 64, {0.02f, 1337, 5, 0, 64}},
                 {17, 37, {0.02f, 7, (uint64_t)1 << 40, 3, 101}},
                 {5, 2050, {0.5f, (uint64_t)1 << 35, 9, ((uint64_t)1 << 33) + 2, 4099}}};
    AutoOp cpu = op_start(PRECISION_FP32, 2), gpu = on_kernels(PRECISION_FP32);
    EACH_ROW (each, cases) {
        int64_t rows = each->rows, cols = each->cols;
        const NormalRows *draw = &each->draw;
        Operand want = op_output(&cpu, rows * cols), got = op_output(&gpu, rows * cols);
        cpu.backend->draw_normal(cpu.backend, want.data, rows, cols, draw);
        gpu.backend->draw_normal(gpu.backend, got.data, rows, cols, draw);
        assert_memory_equal(got.data, want.data, (size_t)(rows * cols * 4));
        uint64_t last = draw->first + (uint64_t)(rows - 1) * draw->stride + (uint64_t)cols - 1;
        float alone;
        random_normal_fill(&alone, 1, draw->scale, draw->seed, draw->stream, last);
        assert_true(((float *)want.data)[rows * cols - 1] == alone);
    }
}

TEST(bits_do_not_depend_on_the_order_of_turns) {
    enum { LIMIT = 4 << 20 };
    unsigned char *out[3];
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        for (int order = 0; order < 3; order++) {
            AutoOp op = on_kernels(precision);
            out[order] = calloc(1, LIMIT);
            assert_non_null(out[order]);
            assert_true(run_all(&op, out[order]) <= LIMIT);
        }
        assert_memory_equal(out[0], out[1], LIMIT);
        assert_memory_equal(out[0], out[2], LIMIT);
        for (int order = 0; order < 3; order++) free(out[order]);
    }
}
