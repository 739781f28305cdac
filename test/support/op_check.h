// Shared by the tests of a backend's operations: operands in the run's precision with exact values for a float64
// reference, outputs filled with NaN, comparison with a bound, and central differences.
#pragma once

#include "backend/backend.h"
#include "unit.h"

#include <math.h>
#include <string.h>

// Runs a statement for every row of a table, to which `each` points, and EACH_CASE also for both precisions.
#define EACH_ROW(each, table)                                                                                          \
    for (const __typeof__(*(table)) *each = (table); each < (table) + sizeof(table) / sizeof *(table); each++)
#define EACH_CASE(precision, each, table)                                                                              \
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)                                     \
        EACH_ROW (each, table)

// A backend and all memory allocated for a test of it.
typedef struct Op {
    Backend *backend;
    void *held[128];
    int count;
} Op;

// data: in the run's precision (or fp32, see op_gradient), for the operation; value: as double, for the reference.
typedef struct Operand {
    void *data;
    double *value;
    int64_t count, bytes;
} Operand;

static inline Op op_start(int precision, int threads) {
    return (Op){.backend = assert_made(backend_cpu_create(precision, threads, &unit_error))};
}

static inline void op_end(Op *op) {
    for (int i = 0; i < op->count; i++) free(op->held[i]);
    op->backend->destroy(op->backend);
}

// An Op that ends with its block.
#define AutoOp __attribute__((cleanup(op_end))) Op

static inline void *op_hold(Op *op, int64_t bytes) {
    assert_true(op->count < (int)(sizeof op->held / sizeof *op->held));
    void *memory = calloc(1, (size_t)bytes + 1);
    assert_non_null(memory);
    return op->held[op->count++] = memory;
}

// All bits set is NaN in both precisions, so that elements that are not written are noticed.
static inline void *op_poison(Op *op, int64_t bytes) { return memset(op_hold(op, bytes), 0xff, (size_t)bytes); }

// Returns a number in (-1, 1), uniformly distributed: splitmix64 of i.
static inline double op_random(uint64_t seed, int64_t i) {
    uint64_t z = (uint64_t)i * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return ((double)(z >> 11) + 0.5) * 0x1p-52 - 1.0;
}

static inline Operand op_blank(Op *op, int64_t count, int64_t element) {
    Operand operand = {.count = count, .bytes = count * element};
    operand.data = op_poison(op, operand.bytes);
    operand.value = op_hold(op, count * (int64_t)sizeof(double));
    return operand;
}

// Returns an output in the run's precision, filled with NaN.
static inline Operand op_output(Op *op, int64_t count) { return op_blank(op, count, op->backend->element); }

static inline double *op_read(Op *op, Operand *operand) {
    float *floats = malloc((size_t)operand->count * sizeof *floats + 1);
    assert_non_null(floats);
    if (operand->bytes == operand->count * op->backend->element)
        op->backend->to_float(op->backend, floats, operand->data, operand->count);
    else memcpy(floats, operand->data, (size_t)operand->bytes);
    for (int64_t i = 0; i < operand->count; i++) operand->value[i] = (double)floats[i];
    free(floats);
    return operand->value;
}

// Returns the values of `data` in memory of their own; value[] keeps those from before the operation.
static inline double *op_result(Op *op, const Operand *operand) {
    Operand result = *operand;
    result.value = op_hold(op, operand->count * (int64_t)sizeof(double));
    return op_read(op, &result);
}

// Returns random values around `center` in the run's precision; value[] has the rounded values.
static inline Operand op_operand(Op *op, int64_t count, uint64_t seed, double center, double spread) {
    Operand operand = op_output(op, count);
    float *floats = op_hold(op, count * (int64_t)sizeof(float));
    for (int64_t i = 0; i < count; i++) floats[i] = (float)(center + spread * op_random(seed, i));
    op->backend->from_float(op->backend, operand.data, floats, count);
    op_read(op, &operand);
    return operand;
}

// Returns random values around 0 in fp32, for any precision of the run.
static inline Operand op_gradient(Op *op, int64_t count, uint64_t seed, double spread) {
    Operand operand = op_blank(op, count, sizeof(float));
    float *floats = operand.data;
    for (int64_t i = 0; i < count; i++) {
        floats[i] = (float)(spread * op_random(seed, i));
        operand.value[i] = (double)floats[i];
    }
    return operand;
}

// Checks |got - want| <= relative * (|want| + floor) for every element; a NaN fails.
static inline void op_near(const char *what, const double *got, const double *want, int64_t count, double relative,
                           double floor) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= relative * (fabs(want[i]) + floor)))
            fail_msg("%s[%ld] of %ld: %.9g, reference %.9g", what, (long)i, (long)count, got[i], want[i]);
}

// Returns the places of tokens in their documents, (positions, batch). Documents begin anywhere, `length` tokens apart
// on average. length 0: NULL.
static inline int32_t *op_places(Op *op, int64_t positions, int64_t batch, int64_t length) {
    if (length <= 0) return NULL;
    int32_t *places = (int32_t *)op_hold(op, positions * batch * (int64_t)sizeof *places);
    for (int64_t i = batch; i < positions * batch; i++)
        places[i] = op_random(31, i) < 2.0 / (double)length - 1.0 ? 0 : places[i - batch] + 1;
    return places;
}

// Returns the relative error bound of a result computed in fp32 and stored in the run's precision.
static inline double op_bound(const Op *op) { return op->backend->precision == PRECISION_BF16 ? 0x1p-8 : 4e-6; }

// Returns d f(context) / d *x by central differences; f reads the memory that x points to.
typedef double (*OpFunction)(void *context);
static inline double op_slope(OpFunction f, void *context, double *x) {
    double at = *x, step = 1e-6;
    *x = at + step;
    double above = f(context);
    *x = at - step;
    double below = f(context);
    *x = at;
    return (above - below) / (2 * step);
}

// Checks that `run` gives the same bytes on 1, 2 and 3 threads in both precisions. run fills `out`, returns the length.
typedef int64_t (*OpRun)(Op *op, const void *shape, unsigned char *out);
static inline void op_same_for_any_threads(OpRun run, const void *shape, int64_t limit) {
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        unsigned char *out[3];
        int64_t bytes[3];
        for (int t = 0; t < 3; t++) {
            AutoOp op = op_start(precision, t + 1);
            out[t] = malloc((size_t)limit);
            assert_non_null(out[t]);
            bytes[t] = run(&op, shape, out[t]);
            assert_true(bytes[t] > 0 && bytes[t] <= limit);
        }
        for (int t = 1; t < 3; t++) {
            assert_int_equal(bytes[0], bytes[t]);
            if (memcmp(out[0], out[t], (size_t)bytes[0]))
                fail_msg("precision %d: %d threads give other bits than one", precision, t + 1);
        }
        for (int t = 0; t < 3; t++) free(out[t]);
    }
}

static inline int64_t op_append(unsigned char *out, int64_t at, const Operand *operand) {
    memcpy(out + at, operand->data, (size_t)operand->bytes);
    return at + operand->bytes;
}

// Appends the operands, up to a NULL; returns the bytes of all.
static inline int64_t op_append_all(unsigned char *out, const Operand *const *operands) {
    int64_t at = 0;
    for (; *operands != NULL; operands++) at = op_append(out, at, *operands);
    return at;
}
#define op_outputs(out, ...) op_append_all(out, (const Operand *const[]){__VA_ARGS__, NULL})
