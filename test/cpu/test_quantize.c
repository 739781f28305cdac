// Numbers of eight bits against the definition of their formats, for every bf16 value; quantized matrices against the
// written rule of scales, in float64: the smallest power of two with which the largest magnitude stays in range.
#include "op_check.h"

// Returns the magnitude that these bits encode, by the definition of the format.
static double magnitude(int bits, int fraction) {
    int bias = fraction == FP8_E4M3 ? 7 : 15, exponent = bits >> fraction;
    double part = (double)(bits & ((1 << fraction) - 1)) / (1 << fraction);
    return exponent == 0 ? ldexp(part, 1 - bias) : ldexp(1 + part, exponent - bias);
}

static int largest_bits(int fraction) { return fraction == FP8_E4M3 ? 0x7e : 0x7b; }

// Returns the nearest number; ties go to an even last bit, and values above the largest number become the largest.
static uint8_t nearest(double x, int fraction) {
    int best = 0;
    if (fabs(x) >= magnitude(largest_bits(fraction), fraction))
        x = copysign(magnitude(largest_bits(fraction), fraction), x);
    for (int bits = 1; bits <= largest_bits(fraction); bits++) {
        double far = fabs(fabs(x) - magnitude(bits, fraction)), least = fabs(fabs(x) - magnitude(best, fraction));
        if (far < least || (far == least && bits % 2 == 0)) best = bits;
    }
    return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}

TEST(every_bf16_value_becomes_the_nearest_number) {
    static const int fractions[] = {FP8_E4M3, FP8_E5M2};
    for (int f = 0; f < 2; f++)
        for (uint32_t half = 0; half < 1 << 16; half++) {
            float x = fp8_float(half << 16);
            uint8_t got = fp8_from_float(x, fractions[f]);
            if (isnan(x)) assert_true(isnan(fp8_to_float(got, fractions[f])));
            else if (got != nearest((double)x, fractions[f]))
                fail_msg("%a became %02x, not %02x", (double)x, got, nearest((double)x, fractions[f]));
        }
}

TEST(a_number_comes_back_as_it_is) {
    static const int fractions[] = {FP8_E4M3, FP8_E5M2};
    for (int f = 0; f < 2; f++)
        for (int bits = 0; bits <= largest_bits(fractions[f]); bits++)
            for (int sign = 0; sign < 2; sign++) {
                double want = (sign ? -1 : 1) * magnitude(bits, fractions[f]);
                float got = fp8_to_float((uint8_t)(bits | sign << 7), fractions[f]);
                assert_true((double)got == want);
                assert_int_equal(fp8_from_float(got, fractions[f]), bits | sign << 7);
            }
}

// Bytes of PyTorch's float8_e4m3fn and float8_e5m2: ones, largest and smallest numbers, ties to even both ways.
TEST(bytes_are_those_of_float8) {
    static const struct {
        float x;
        uint8_t e4m3, e5m2;
    } written[] = {{1.0f, 0x38, 0x3c},    {448.0f, 0x7e, 0x5f},   {57344.0f, 0x7e, 0x7b},  {0x1p-6f, 0x08, 0x24},
                   {0x1p-9f, 0x01, 0x18}, {0x1p-10f, 0x00, 0x14}, {0x1.8p-9f, 0x02, 0x1a}, {0x1p-16f, 0x00, 0x01},
                   {1.0625f, 0x38, 0x3c}, {1.1875f, 0x3a, 0x3d},  {1.125f, 0x39, 0x3c},    {1.375f, 0x3b, 0x3e},
                   {-0.3f, 0xaa, 0xb5},   {-0.0f, 0x80, 0x80}};
    EACH_ROW (each, written) {
        assert_int_equal(fp8_from_float(each->x, FP8_E4M3), each->e4m3);
        assert_int_equal(fp8_from_float(each->x, FP8_E5M2), each->e5m2);
    }
}

static double rule(double largest, int fraction) {
    int exponent = -126;
    while (ldexp(magnitude(largest_bits(fraction), fraction), exponent) < largest) exponent++;
    return ldexp(1, exponent);
}

TEST(a_scale_is_the_smallest_that_keeps_the_range) {
    for (uint32_t half = 0; half < 0x7f80; half++) {
        double x = (double)fp8_float(half << 16);
        assert_true((double)fp8_scale_float(fp8_scale(half << 16, FP8_E4M3)) == rule(x, FP8_E4M3));
        assert_true((double)fp8_scale_float(fp8_scale(half << 16, FP8_E5M2)) == rule(x, FP8_E5M2));
    }
}

// --- matrices

typedef struct Case {
    int64_t rows, cols;
    int kind;
    bool transposed;
} Case;

typedef struct Made {
    uint8_t *numbers, *scales;
    int64_t rows, depth, bytes;
} Made;

// Values whose exponents differ by up to 40, so that blocks have scales of their own.
static Operand matrix(Op *op, int64_t count) {
    float *floats = op_hold(op, count * 4);
    Operand x = op_output(op, count);
    for (int64_t i = 0; i < count; i++)
        floats[i] = (float)ldexp(op_random(5, i), (int)(20 * op_random(6, i / 32)) - (i % 97 == 0 ? 30 : 0));
    op->backend->from_float(op->backend, x.data, floats, count);
    op_read(op, &x);
    return x;
}

static Made make(Op *op, const Case *c, const void *x) {
    Made made = {.rows = c->transposed ? c->cols : c->rows, .depth = c->transposed ? c->rows : c->cols};
    made.bytes = factor_scale_bytes(c->kind, made.rows, made.depth);
    made.numbers = op_poison(op, made.rows * made.depth);
    made.scales = op_poison(op, made.bytes);
    Factor to = {made.numbers, made.scales, x, c->kind};
    op->backend->quantize(op->backend, to, factor_plain(x), c->rows, c->cols, c->transposed);
    return made;
}

// The largest magnitude of the block that begins at (row, col).
static double largest(const double *x, const Made *m, int kind, int64_t row, int64_t col) {
    int64_t rows = factor_block_rows(kind), cols = factor_block_cols(kind);
    double most = 0;
    for (int64_t r = rows > 0 ? row : 0; r < m->rows && (rows == 0 || r < row + rows); r++)
        for (int64_t c = cols > 0 ? col : 0; c < m->depth && (cols == 0 || c < col + cols); c++)
            most = fmax(most, fabs(x[r * m->depth + c]));
    return most;
}

static void check_case(const Case *c) {
    AutoOp op = op_start(PRECISION_BF16, 3);
    Operand x = matrix(&op, c->rows * c->cols);
    Made m = make(&op, c, x.data);
    double *want = op_hold(&op, m.rows * m.depth * 8);
    for (int64_t r = 0; r < m.rows; r++)
        for (int64_t k = 0; k < m.depth; k++)
            want[r * m.depth + k] = x.value[c->transposed ? k * c->cols + r : r * c->cols + k];
    int fraction = factor_fraction(c->kind);
    int64_t rows = factor_block_rows(c->kind), cols = factor_block_cols(c->kind);
    Factor factor = {m.numbers, m.scales, x.data, c->kind};
    double scale = rule(largest(want, &m, c->kind, 0, 0), fraction);
    for (int64_t r = 0; r < m.rows; r++)
        for (int64_t k = 0; k < m.depth; k++) {
            if (cols > 0 && k % cols == 0) scale = rule(largest(want, &m, c->kind, r / rows * rows, k), fraction);
            if ((double)factor_scale(&factor, m.rows, m.depth, r, k) != scale)
                fail_msg("kind %d (%ld, %ld): scale %a, not %a", c->kind, (long)r, (long)k,
                         (double)factor_scale(&factor, m.rows, m.depth, r, k), scale);
            uint8_t number = nearest(want[r * m.depth + k] / scale, fraction);
            if (m.numbers[r * m.depth + k] != number)
                fail_msg("kind %d (%ld, %ld): %02x, not %02x", c->kind, (long)r, (long)k, m.numbers[r * m.depth + k],
                         number);
        }
}

static const Case CASES[] = {{16, 16, 0, false}, {48, 272, 0, false}, {144, 160, 0, true}, {256, 128, 0, true}};

TEST(matrices_follow_the_rule_in_every_kind) {
    EACH_ROW (each, CASES)
        for (int kind = FACTOR_E4M3; kind <= FACTOR_ROWS_32; kind++) {
            Case c = *each;
            c.kind = kind;
            check_case(&c);
        }
}

static void assert_same_scales(const Factor *a, const Factor *b, int64_t rows, int64_t cols) {
    for (int64_t at = 0; at < rows * cols; at++)
        assert_true(factor_scale(a, rows, cols, at / cols, at % cols) ==
                    factor_scale(b, rows, cols, at / cols, at % cols));
}

// Transposing a quantized matrix gives the quantized transpose of its values in bf16.
TEST(eight_bits_are_transposed_as_their_values_in_bf16_are) {
    for (int kind = FACTOR_ROWS_128; kind <= FACTOR_ROWS_32; kind += FACTOR_ROWS_32 - FACTOR_ROWS_128)
        EACH_ROW (each, CASES) {
            Case c = {each->rows, each->cols, kind, false}, across = {c.rows, c.cols, kind, true};
            AutoOp op = op_start(PRECISION_BF16, 3);
            Operand x = matrix(&op, c.rows * c.cols), values = op_output(&op, c.rows * c.cols);
            Made m = make(&op, &c, x.data), got;
            Factor narrow = {m.numbers, m.scales, NULL, kind};
            float *floats = op_hold(&op, x.count * 4);
            for (int64_t at = 0; at < x.count; at++)
                floats[at] = fp8_to_float(m.numbers[at], FP8_E4M3) *
                             factor_scale(&narrow, c.rows, c.cols, at / c.cols, at % c.cols);
            op.backend->from_float(op.backend, values.data, floats, x.count);
            Made want = make(&op, &across, values.data);
            got = make(&op, &across, x.data);
            memset(got.numbers, 0x55, (size_t)x.count);
            Factor to = {got.numbers, got.scales, NULL, kind}, wanted = {want.numbers, want.scales, NULL, kind};
            op.backend->quantize(op.backend, to, narrow, c.rows, c.cols, true);
            assert_memory_equal(got.numbers, want.numbers, (size_t)x.count);
            assert_same_scales(&to, &wanted, c.cols, c.rows);
        }
}

// A transpose that is given the matrix's scale equals one that finds the scale, and does not search for it again.
TEST(a_transpose_reads_the_scale_that_was_found) {
    for (int kind = FACTOR_E4M3; kind <= FACTOR_E5M2; kind++)
        EACH_ROW (each, CASES) {
            Case c = {each->rows, each->cols, kind, false}, across = {c.rows, c.cols, kind, true};
            AutoOp op = op_start(PRECISION_BF16, 3);
            Operand x = matrix(&op, c.rows * c.cols);
            Made m = make(&op, &c, x.data), want = make(&op, &across, x.data);
            Factor known = {x.data, m.scales, x.data, FACTOR_PLAIN}, to = {m.numbers, m.scales, NULL, kind};
            float *scales = (float *)m.scales, found = scales[0]; // [1] is the largest magnitude
            op.backend->quantize(op.backend, to, known, c.rows, c.cols, true);
            assert_memory_equal(m.numbers, want.numbers, (size_t)x.count);
            assert_true(scales[0] == found);
            scales[1] *= 4;
            op.backend->quantize(op.backend, to, known, c.rows, c.cols, true);
            assert_true(scales[0] == 4 * found);
        }
}

// Each rank quantizes its rows and gathers numbers and scales: the operand is that of all rows.
TEST(gathered_operands_are_the_operand_of_all_rows) {
    enum { RANKS = 4 };
    for (int kind = FACTOR_ROWS_128; kind <= FACTOR_ROWS_32; kind += FACTOR_ROWS_32 - FACTOR_ROWS_128)
        EACH_ROW (each, CASES) {
            Case all = {each->rows, each->cols, kind, false}, part = {all.rows / RANKS, all.cols, kind, false};
            AutoOp op = op_start(PRECISION_BF16, 3);
            Operand x = matrix(&op, all.rows * all.cols);
            Made want = make(&op, &all, x.data);
            int64_t bytes = factor_scale_bytes(kind, part.rows, part.cols);
            char *gathered = op_poison(&op, RANKS * bytes), *joined = op_poison(&op, want.bytes);
            for (int rank = 0; rank < RANKS; rank++) {
                int64_t first = rank * part.rows * part.cols;
                Made m = make(&op, &part, (uint16_t *)x.data + first);
                assert_memory_equal(m.numbers, want.numbers + first, (size_t)(part.rows * part.cols));
                memcpy(gathered + rank * bytes, m.scales, (size_t)bytes);
            }
            op.backend->join_scales(op.backend, joined, gathered, RANKS, all.rows, all.cols, kind);
            assert_memory_equal(joined, want.scales, (size_t)want.bytes);
        }
}

TEST(scales_lie_where_cublaslt_reads_them) {
    // (rows, depth) = (256, 1024): 8 lines of 256; 2 lines of 8 blocks; tiles of 128 rows and 4 scales of 32.
    assert_int_equal(factor_scale_place(FACTOR_ROWS_128, 256, 1024, 5, 384), 3 * 256 + 5);
    assert_int_equal(factor_scale_place(FACTOR_BLOCKS_128, 256, 1024, 128, 384), 8 + 3);
    assert_int_equal(factor_scale_place(FACTOR_BLOCKS_128, 256, 640, 128, 128), 8 + 1); // 5 blocks, padded to 8
    assert_int_equal(factor_scale_place(FACTOR_ROWS_32, 256, 1024, 1, 0), 16);
    assert_int_equal(factor_scale_place(FACTOR_ROWS_32, 256, 1024, 32, 32), 4 + 1);
    assert_int_equal(factor_scale_place(FACTOR_ROWS_32, 256, 1024, 128, 128), 9 * 512);
}

// cuBLASLt requires it ("1D Block Scaling Factors Layout"): a NaN left there by another operand would reach all sums.
TEST(scales_of_32_past_the_operand_are_zero) {
    EACH_ROW (each, CASES) {
        AutoOp op = op_start(PRECISION_BF16, 3);
        Made m = make(&op, &(Case){each->rows, each->cols, FACTOR_ROWS_32, each->transposed},
                      matrix(&op, each->rows * each->cols).data);
        for (int64_t r = 0; r < m.rows; r++)
            for (int64_t k = 0; k < m.depth; k += 32)
                m.scales[factor_scale_place(FACTOR_ROWS_32, m.rows, m.depth, r, k)] = 0;
        for (int64_t i = 0; i < m.bytes; i++) assert_int_equal(m.scales[i], 0);
    }
}

TEST(what_is_not_finite_makes_its_scale_nan) {
    for (int kind = FACTOR_E4M3; kind <= FACTOR_ROWS_32; kind++)
        for (int bad = 0; bad < 2; bad++) {
            AutoOp op = op_start(PRECISION_BF16, 2);
            Operand x = matrix(&op, 128 * 256);
            ((uint16_t *)x.data)[3 * 256 + 140] = bad == 0 ? 0xff80 : 0x7fc0;
            Made m = make(&op, &(Case){128, 256, kind, false}, x.data);
            Factor factor = {m.numbers, m.scales, x.data, kind};
            assert_true(isnan(factor_scale(&factor, 128, 256, 3, 128)));
            if (factor_block_cols(kind) > 0) assert_false(isnan(factor_scale(&factor, 128, 256, 3, 0)));
        }
}

static int64_t run(Op *op, const void *context, unsigned char *out) {
    const Case *c = context;
    Operand x = matrix(op, c->rows * c->cols);
    Made m = make(op, c, x.data);
    memcpy(out, m.numbers, (size_t)(m.rows * m.depth));
    memcpy(out + m.rows * m.depth, m.scales, (size_t)m.bytes);
    return m.rows * m.depth + m.bytes;
}

TEST(bits_do_not_depend_on_threads) {
    for (int kind = FACTOR_E4M3; kind <= FACTOR_ROWS_32; kind++)
        op_same_for_any_threads(run, &(Case){272, 400, kind, kind % 2 == 0}, 1 << 20);
}
