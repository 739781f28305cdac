// Muon's products against float64, on any backend.
#include "engine/muon.h"
#include "op_check.h"

#include <math.h>
#include <string.h>

typedef struct Matrix {
    int64_t rows, cols;
} Matrix;

static const Matrix SIZES[] = {{1, 1}, {1, 40}, {33, 7}, {7, 33}, {48, 48}, {96, 64}, {64, 161}, {130, 96}};
enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES };

// Fills x with numbers of norm 1. Rows beyond the third are close to sums of the first two, as in gradients.
static void fill(float *x, const Matrix *s) {
    double squares = 0;
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < s->cols; j++) {
            double value = op_random(7, i * s->cols + j) * (i < 3 ? 1.0 : 0.1);
            if (i >= 3) value += (double)x[j] * op_random(8, i);
            x[i * s->cols + j] = (float)value;
        }
    for (int64_t i = 0; i < s->rows * s->cols; i++) squares += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < s->rows * s->cols; i++) x[i] = (float)((double)x[i] / sqrt(squares));
}

// to (m, n) = a (m, k) b, b stored as (k, n), or as (n, k) if `turned`.
static void multiply(double *to, const double *a, const double *b, int64_t m, int64_t k, int64_t n, bool turned) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t c = 0; c < k; c++) sum += a[i * k + c] * (turned ? b[j * k + c] : b[c * n + j]);
            to[i * n + j] = sum;
        }
}

// Five steps x = a x + (b s + c s s) x, always with s = x xT: a tall matrix has the same result.
static void reference(Op *op, double *x, const Matrix *size) {
    int64_t m = size->rows, n = size->cols;
    double *s = op_hold(op, m * m * 8), *ss = op_hold(op, m * m * 8), *y = op_hold(op, m * n * 8);
    for (int step = 0; step < 5; step++) {
        multiply(s, x, x, m, n, m, true);
        multiply(ss, s, s, m, m, m, false);
        for (int64_t i = 0; i < m * m; i++) s[i] = -4.775 * s[i] + 2.0315 * ss[i];
        multiply(y, s, x, m, m, n, false);
        for (int64_t i = 0; i < m * n; i++) x[i] = 3.4445 * x[i] + y[i];
    }
}

static void check(int precision, const Matrix *s) {
    AutoOp op = op_start(precision, 2);
    int64_t count = s->rows * s->cols, bytes = orthogonalize_workspace(s->rows, s->cols, op.backend->element);
    enum { GUARD = 64 };
    unsigned char *work = op_poison(&op, bytes + GUARD);
    memset(work + bytes, 0xa5, GUARD);
    float *x = op_hold(&op, count * 4), *got = op_hold(&op, count * 4);
    double *want = op_hold(&op, count * 8), worst = 0;
    fill(x, s);
    op.backend->from_float(op.backend, work, x, count);
    op.backend->to_float(op.backend, x, work, count);
    for (int64_t i = 0; i < count; i++) want[i] = (double)x[i];
    reference(&op, want, s);
    orthogonalize(op.backend, work, s->rows, s->cols);
    op.backend->to_float(op.backend, got, work, count);
    for (int64_t i = 0; i < count; i++) worst = fmax(worst, fabs((double)got[i] - want[i]));
    for (int i = 0; i < GUARD; i++) assert_int_equal(work[bytes + i], 0xa5);
    // In bf16 every intermediate matrix is rounded; singular values below 2^-8 of the largest are noise.
    if (worst > (precision == PRECISION_FP32 ? 2e-4 : 0.25))
        fail_msg("(%lld, %lld): an element is off by %g", (long long)s->rows, (long long)s->cols, worst);
}

TEST(orthogonalize_agrees_with_float64) {
    EACH_ROW (each, SIZES) {
        check(PRECISION_FP32, each);
        check(PRECISION_BF16, each);
    }
}

// x = U S VT with S from 1 to 0.01: afterwards xT x has traces of singular values near 1 (Jordan et al.: 0.7 to 1.2).
TEST(singular_values_end_near_one) {
    enum { N = 24, COLS = 40 };
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        AutoOp op = op_start(precision, 2);
        void *work = op_poison(&op, orthogonalize_workspace(N, COLS, op.backend->element));
        float *x = op_hold(&op, N * COLS * 4);
        // Rows are orthogonal: cosines of different frequencies, with lengths from 0.2 down to 0.01.
        for (int i = 0; i < N; i++)
            for (int j = 0; j < COLS; j++)
                x[i * COLS + j] = (float)(0.2 * pow(0.05, i / (N - 1.0)) * sqrt(2.0 / COLS) *
                                          cos(3.14159265358979 * (i + 1) * (j + 0.5) / COLS));
        op.backend->from_float(op.backend, work, x, N * COLS);
        orthogonalize(op.backend, work, N, COLS);
        op.backend->to_float(op.backend, x, work, N * COLS);
        for (int i = 0; i < N; i++) {
            double squares = 0;
            for (int j = 0; j < COLS; j++) squares += (double)x[i * COLS + j] * (double)x[i * COLS + j];
            if (!(sqrt(squares) > 0.6 && sqrt(squares) < 1.3)) fail_msg("row %d has the length %g", i, sqrt(squares));
        }
    }
}

static int64_t run(Op *op, const void *shape, unsigned char *out) {
    const Matrix *s = shape;
    int64_t count = s->rows * s->cols, bytes = count * op->backend->element;
    void *work = op_poison(op, orthogonalize_workspace(s->rows, s->cols, op->backend->element));
    float *x = op_hold(op, count * 4);
    fill(x, s);
    op->backend->from_float(op->backend, work, x, count);
    orthogonalize(op->backend, work, s->rows, s->cols);
    memcpy(out, work, (size_t)bytes);
    return bytes;
}

TEST(bits_do_not_depend_on_threads) {
    for (int i = 4; i < SIZE_COUNT; i++) op_same_for_any_threads(run, &SIZES[i], 1 << 20);
}
