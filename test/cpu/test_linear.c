// Matrix products and linear layers against float64, on shapes that cut tiles, panels and vectors at odd places.
// test_models.py compares the gradients of models with autograd.
#include "cpu/cpu.h"
#include "base/clock.h"
#include "op_check.h"

typedef struct Shape {
    int64_t rows, in, out;
    bool bias, gelu;
} Shape;

static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static double gelu_slope(double x) {
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

// Computes c (m, n) = a (m, k) b (k, n); a and b have any strides of rows and columns.
static void reference_product(double *c, int64_t m, int64_t n, int64_t k, const double *a, int64_t a_row, int64_t a_col,
                              const double *b, int64_t b_row, int64_t b_col) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++) sum += a[i * a_row + l * a_col] * b[l * b_row + j * b_col];
            c[i * n + j] = sum;
        }
}

// Returns the error bound of one rounding to the run's precision and a sum of `length` products in fp32.
static double sum_bound(const Op *op, int64_t length) {
    return (op->backend->precision == PRECISION_BF16 ? 0x1p-8 : 0) + 1e-6 + 2e-9 * (double)length;
}

// --- the products themselves

static void check_product(int64_t m, int64_t n, int64_t k, int form) {
    AutoOp op = op_start(PRECISION_FP32, 1);
    bool ta = form & 1, tb = form & 2, bf16 = form & 4, keep = form & 8;
    AutoOp source = op_start(bf16 ? PRECISION_BF16 : PRECISION_FP32, 1);
    int64_t pad = 3, sa = (ta ? m : k) + pad, sb = (tb ? k : n) + pad, sc = n + pad;
    Operand a = op_operand(&source, (ta ? k : m) * sa, 1, 0, 1), b = op_operand(&source, (tb ? n : k) * sb, 2, 0, 1);
    Operand c = keep ? op_operand(&op, m * sc, 3, 0, 1) : op_output(&op, m * sc);
    double *want = op_hold(&op, m * n * 8);
    reference_product(want, m, n, k, a.value, ta ? 1 : sa, ta ? sa : 1, b.value, tb ? 1 : sb, tb ? sb : 1);
    cpu_gemm(cpu_scratch(op.backend, CPU_GEMM_WORKSPACE), m, n, k, (CpuOperand){a.data, sa, ta, bf16, NULL},
             (CpuOperand){b.data, sb, tb, bf16, NULL}, keep, c.data, sc);
    for (int64_t i = 0; i < m; i++) {
        double got[1024];
        for (int64_t j = 0; j < n; j++) {
            got[j] = (double)((float *)c.data)[i * sc + j];
            if (keep) want[i * n + j] += c.value[i * sc + j];
        }
        op_near("product", got, want + i * n, n, 2e-6, sqrt((double)k));
    }
}

TEST(products_of_every_kind_agree_with_float64) {
    static const int64_t shapes[][3] = {{1, 1, 1},   {1, 48, 64},  {7, 5, 3},     {8, 48, 16},  {9, 49, 17},
                                        {64, 64, 1}, {65, 97, 70}, {257, 33, 40}, {37, 385, 9}, {13, 80, 513}};
    EACH_ROW (each, shapes)
        for (int form = 0; form < 16; form++) check_product((*each)[0], (*each)[1], (*each)[2], form);
}

TEST(nothing_is_written_beside_the_product) {
    enum { M = 9, N = 50, K = 20, STRIDE = 64 };
    AutoOp op = op_start(PRECISION_FP32, 1);
    Operand a = op_operand(&op, M * K, 1, 0, 1), b = op_operand(&op, K * N, 2, 0, 1);
    float *c = op_poison(&op, (M + 1) * STRIDE * 4);
    cpu_gemm(cpu_scratch(op.backend, CPU_GEMM_WORKSPACE), M, N, K, (CpuOperand){a.data, K, false, false, NULL},
             (CpuOperand){b.data, N, false, false, NULL}, false, c, STRIDE);
    for (int64_t i = 0; i <= M; i++)
        for (int64_t j = 0; j < STRIDE; j++) assert_int_equal(isnan(c[i * STRIDE + j]) != 0, i == M || j >= N);
}

// --- linear layers

typedef struct Layer {
    Operand x, w, b, dy, aux, y, z, dx, dw, db; // aux: input of the backward's GELU; z: forward's GELU input
} Layer;

static Layer run_layer(Op *op, const Shape *s) {
    Backend *backend = op->backend;
    Layer l = {.x = op_operand(op, s->rows * s->in, 1, 0, 1),
               .w = op_operand(op, s->out * s->in, 2, 0, 1),
               .b = op_operand(op, s->out, 3, 0, 1),
               .dy = op_operand(op, s->rows * s->out, 4, 0, 1),
               .aux = op_operand(op, s->rows * s->in, 5, 0, 4),
               .y = op_output(op, s->rows * s->out),
               .z = op_output(op, s->rows * s->out),
               .dx = op_output(op, s->rows * s->in),
               .dw = op_gradient(op, s->out * s->in, 6, 1),
               .db = op_gradient(op, s->out, 7, 1)};
    Epilogue epilogue = s->gelu ? EPILOGUE_GELU : EPILOGUE_NONE;
    backend->linear_forward(backend, l.y.data, s->gelu ? l.z.data : NULL, factor_plain(l.x.data),
                            factor_plain(l.w.data), s->bias ? l.b.data : NULL, s->rows, s->in, s->out, epilogue);
    backend->linear_backward_input(backend, l.dx.data, s->gelu ? l.aux.data : NULL, factor_plain(l.dy.data),
                                   factor_plain(l.w.data), s->rows, s->in, s->out, epilogue);
    backend->linear_backward_weight(backend, l.dw.data, s->bias ? l.db.data : NULL, factor_plain(l.dy.data),
                                    factor_plain(l.x.data), s->rows, s->in, s->out, true);
    return l;
}

// Returns dw of a small product, written into memory without a value, or added to zeros.
static Operand small_gradient(Op *op, bool adds) {
    enum { ROWS = 70, IN = 130, OUT = 97 };
    Operand x = op_operand(op, ROWS * IN, 1, 0, 1), dy = op_operand(op, ROWS * OUT, 2, 0, 1);
    Operand dw = op_gradient(op, OUT * IN, 0, 0.0);
    if (!adds) memset(dw.data, 0xff, OUT * IN * sizeof(float));
    op->backend->linear_backward_weight(op->backend, dw.data, NULL, factor_plain(dy.data), factor_plain(x.data), ROWS,
                                        IN, OUT, adds);
    return dw;
}

TEST(a_gradient_that_is_not_added_is_written_unread_and_has_the_same_bits) {
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        AutoOp op = op_start(precision, 2);
        Operand added = small_gradient(&op, true), written = small_gradient(&op, false);
        op_near("dw", op_read(&op, &written), op_read(&op, &added), added.count, 1e-6, 1.0);
        // A GPU may have another kernel for it.
        if (op.backend->own_sums) assert_memory_equal(added.data, written.data, (size_t)added.count * sizeof(float));
    }
}

// --- operands of eight bits

// Quantizes x (rows, cols) or its transpose. Sets *value to the quantized values.
static Factor quantized(Op *op, const Operand *x, int64_t rows, int64_t cols, int kind, bool transposed,
                        double **value) {
    int64_t height = transposed ? cols : rows, depth = transposed ? rows : cols;
    uint8_t *numbers = op_poison(op, rows * cols);
    void *scales = op_poison(op, factor_scale_bytes(kind, height, depth));
    Factor factor = {numbers, scales, x->data, kind};
    op->backend->quantize(op->backend, factor, factor_plain(x->data), rows, cols, transposed);
    *value = op_hold(op, rows * cols * 8);
    for (int64_t i = 0; i < rows * cols; i++)
        (*value)[i] = (double)fp8_to_float(numbers[i], factor_fraction(kind)) *
                      (double)factor_scale(&factor, height, depth, i / depth, i % depth);
    return factor;
}

static void check_quantized(int input, int gradient, int weight, int64_t rows, int64_t in, int64_t out) {
    AutoOp op = op_start(PRECISION_BF16, 2);
    Backend *b = op.backend;
    Operand x = op_operand(&op, rows * in, 1, 0, 1), w = op_operand(&op, out * in, 2, 0, 0.1);
    Operand dy = op_operand(&op, rows * out, 3, 0, 0.01), bias = op_operand(&op, out, 4, 0, 1);
    Operand y = op_output(&op, rows * out), dx = op_output(&op, rows * in), dw = op_gradient(&op, out * in, 5, 1);
    Operand db = op_gradient(&op, out, 6, 1);
    double *xv, *wv, *dyv, *wtv, *dytv, *xtv, *want = op_hold(&op, (rows + in) * (out + in) * 8);
    Factor fx = quantized(&op, &x, rows, in, input, false, &xv), fw = quantized(&op, &w, out, in, weight, false, &wv);
    Factor fdy = quantized(&op, &dy, rows, out, gradient, false, &dyv);
    Factor fwt = quantized(&op, &w, out, in, weight, true, &wtv);
    Factor fdyt = quantized(&op, &dy, rows, out, gradient, true, &dytv);
    Factor fxt = quantized(&op, &x, rows, in, input, true, &xtv);
    b->linear_forward(b, y.data, NULL, fx, fw, bias.data, rows, in, out, EPILOGUE_NONE);
    b->linear_backward_input(b, dx.data, NULL, fdy, fwt, rows, in, out, EPILOGUE_NONE);
    b->linear_backward_weight(b, dw.data, db.data, fdyt, fxt, rows, in, out, true);
    reference_product(want, rows, out, in, xv, in, 1, wv, 1, in);
    for (int64_t i = 0; i < rows * out; i++) want[i] += bias.value[i % out];
    op_near("y", op_read(&op, &y), want, rows * out, op_bound(&op), 0.01);
    reference_product(want, rows, in, out, dyv, out, 1, wtv, 1, out);
    op_near("dx", op_read(&op, &dx), want, rows * in, op_bound(&op), 0.001);
    reference_product(want, out, in, rows, dytv, rows, 1, xtv, 1, rows);
    for (int64_t i = 0; i < out * in; i++) want[i] += dw.value[i];
    op_near("dw", op_result(&op, &dw), want, out * in, 1e-5, 1.0);
    for (int64_t j = 0; j < out; j++) want[j] = db.value[j];
    for (int64_t i = 0; i < rows * out; i++) want[i % out] += dy.value[i];
    op_near("db", op_result(&op, &db), want, out, 1e-5, 1.0);
}

TEST(quantized_products_are_those_of_their_values) {
    static const int kinds[][3] = {{FACTOR_E4M3, FACTOR_E5M2, FACTOR_E4M3},
                                   {FACTOR_ROWS_128, FACTOR_ROWS_128, FACTOR_BLOCKS_128},
                                   {FACTOR_ROWS_32, FACTOR_ROWS_32, FACTOR_ROWS_32}};
    static const int64_t shapes[][3] = {{32, 64, 96}, {288, 160, 416}, {64, 544, 32}};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 3; i++)
            check_quantized(kinds[k][0], kinds[k][1], kinds[k][2], shapes[i][0], shapes[i][1], shapes[i][2]);
}

static void reference_forward(const Shape *s, double *z, double *y, const double *x, const double *w, const double *b) {
    reference_product(z, s->rows, s->out, s->in, x, s->in, 1, w, 1, s->in);
    for (int64_t i = 0; i < s->rows * s->out; i++) {
        if (s->bias) z[i] += b[i % s->out];
        y[i] = s->gelu ? gelu(z[i]) : z[i];
    }
}

static void reference_dx(const Shape *s, double *dx, const double *dy, const double *w, const double *aux) {
    reference_product(dx, s->rows, s->in, s->out, dy, s->out, 1, w, s->in, 1);
    for (int64_t i = 0; s->gelu && i < s->rows * s->in; i++) dx[i] *= gelu_slope(aux[i]);
}

static void reference_dw(const Shape *s, double *dw, double *db, const double *dy, const double *x) {
    reference_product(dw, s->out, s->in, s->rows, dy, 1, s->out, x, s->in, 1);
    for (int64_t j = 0; j < s->out; j++) db[j] = 0;
    for (int64_t i = 0; i < s->rows * s->out; i++) db[i % s->out] += dy[i];
}

static void check_layer(int precision, const Shape *s) {
    AutoOp op = op_start(precision, 2);
    Layer l = run_layer(&op, s);
    double *z = op_hold(&op, s->rows * s->out * 8), *y = op_hold(&op, s->rows * s->out * 8);
    double *dx = op_hold(&op, s->rows * s->in * 8), *dw = op_hold(&op, s->in * s->out * 8);
    double *db = op_hold(&op, s->out * 8), length = sqrt((double)s->in);
    reference_forward(s, z, y, l.x.value, l.w.value, l.b.value);
    if (s->gelu) { // GELU is applied to the stored values
        op_near("aux", op_read(&op, &l.z), z, s->rows * s->out, sum_bound(&op, s->in), length);
        for (int64_t i = 0; i < s->rows * s->out; i++) y[i] = gelu(l.z.value[i]);
    }
    op_near("y", op_read(&op, &l.y), y, s->rows * s->out, sum_bound(&op, s->in), length);
    reference_dx(s, dx, l.dy.value, l.w.value, l.aux.value);
    op_near("dx", op_read(&op, &l.dx), dx, s->rows * s->in, sum_bound(&op, s->out), sqrt((double)s->out));
    reference_dw(s, dw, db, l.dy.value, l.x.value);
    for (int64_t i = 0; i < s->in * s->out; i++) dw[i] += l.dw.value[i];
    for (int64_t i = 0; i < s->out; i++) db[i] = l.db.value[i] + (s->bias ? db[i] : 0);
    length = sqrt((double)s->rows);
    op_near("dw", op_result(&op, &l.dw), dw, s->in * s->out, 2e-6, length);
    op_near("db", op_result(&op, &l.db), db, s->out, 2e-6, length);
}

TEST(layers_agree_with_float64) {
    static const Shape shapes[] = {
        {1, 1, 1, true, true},       {1, 768, 5, true, false},   {3, 7, 2, false, true},
        {17, 33, 49, true, true},    {64, 96, 96, true, false},  {65, 97, 193, true, true},
        {256, 40, 770, true, true},  {300, 770, 40, true, true}, {513, 129, 385, false, false},
        {130, 520, 260, true, true}, {700, 8, 8, true, true},    {2, 300, 1000, true, true}};
    EACH_CASE (precision, each, shapes) check_layer(precision, each);
}

static int64_t run(Op *op, const void *shape, unsigned char *out) {
    Layer l = run_layer(op, shape);
    return op_outputs(out, &l.y, &l.z, &l.dx, &l.dw, &l.db);
}

TEST(bits_do_not_depend_on_threads) {
    static const Shape shapes[] = {
        {1, 40, 3, true, true}, {256, 768, 768, true, true}, {100, 3072, 70, true, true}, {2100, 65, 130, true, false}};
    EACH_ROW (each, shapes) op_same_for_any_threads(run, each, 16 << 20);
}

// --- the functions inside

TEST(exp_is_accurate_from_zero_to_infinity) {
    for (double x = -87.2; x < 88.2; x += 1e-4) {
        float at = (float)x;
        double want = exp((double)at);
        if (fabs((double)cpu_expf(at) - want) > 2e-7 * want) fail_msg("exp(%g)", (double)at);
    }
    assert_true(cpu_expf(0.0f) == 1.0f && cpu_expf(-INFINITY) == 0.0f && cpu_expf(-1e30f) == 0.0f);
    assert_true(isinf(cpu_expf(INFINITY)) && isinf(cpu_expf(1e30f)) && isnan(cpu_expf(NAN)));
}

TEST(exp2_is_accurate_up_to_its_largest_argument) {
    for (double x = -126.0; x <= 127.0; x += 1e-4) {
        float at = (float)x;
        double want = exp2((double)at);
        if (fabs((double)cpu_exp2f(at) - want) > 2e-7 * want) fail_msg("exp2(%g)", (double)at);
    }
    assert_true(cpu_exp2f(0.0f) == 1.0f && cpu_exp2f(-126.1f) == 0.0f && cpu_exp2f(-1e30f) == 0.0f);
    assert_true(cpu_exp2f(-INFINITY) == 0.0f && isnan(cpu_exp2f(NAN)));
}

TEST(gelu_is_accurate_far_from_zero_too) {
    AutoOp op = op_start(PRECISION_FP32, 1);
    enum { N = 4001 };
    Operand one = op_operand(&op, 1, 1, 1, 0), x = op_output(&op, N), y = op_output(&op, N), z = op_output(&op, N);
    double want[N], *got;
    for (int i = 0; i < N; i++) ((float *)x.data)[i] = (float)pow((i - N / 2) / 400.0, 3);
    op_read(&op, &x);
    op.backend->linear_forward(op.backend, y.data, z.data, factor_plain(x.data), factor_plain(one.data), NULL, N, 1, 1,
                               EPILOGUE_GELU);
    got = op_read(&op, &y);
    for (int i = 0; i < N; i++) {
        want[i] = gelu(x.value[i]);
        if (x.value[i] < -4) want[i] = got[i] = fabs(got[i]) < 1e-3 ? 0 : got[i]; // float64's own 1 + tanh cancels
    }
    op_near("gelu", got, want, N, 3e-6, 1e-3);
    Operand ones = op_operand(&op, N, 1, 1, 0);
    op.backend->linear_backward_input(op.backend, y.data, x.data, factor_plain(ones.data), factor_plain(one.data), N, 1,
                                      1, EPILOGUE_GELU);
    for (int i = 0; i < N; i++) want[i] = gelu_slope(x.value[i]);
    op_near("gelu'", op_read(&op, &y), want, N, 3e-6, 1.0);
}

TEST(the_peak_is_measured_in_a_fraction_of_a_second) {
    double start = clock_seconds(), peak = backend_cpu_measure_peak(PRECISION_FP32, 1);
    assert_true(peak > 0);
    assert_true(clock_seconds() - start < 30); // a tenth of a second; sanitizers and busy machines take longer
}
