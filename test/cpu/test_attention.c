// Attention in its three modes against a float64 reference. test_models.py compares models with autograd.
#include "cpu/cpu.h"
#include "op_check.h"

typedef struct Sizes {
    int64_t batch, seq, heads, kv_heads, head_dim;
    int64_t document; // mean length; 0: every sequence is one document; FULL: a query sees all keys
} Sizes;

enum { FULL = -1 };

// All shapes, with blocks, chunks and vectors cut at odd places.
static const Sizes SIZES[] = {
    {1, 1, 1, 1, 1, 0},      {2, 1, 2, 1, 8, 0},       {1, 2, 1, 1, 6, 0},       {2, 17, 4, 2, 6, 0},
    {3, 64, 2, 2, 16, 0},    {1, 65, 3, 1, 40, 0},     {2, 100, 4, 4, 33, 0},    {1, 257, 2, 1, 7, 0},
    {1, 320, 6, 2, 64, 0},   {1, 530, 1, 1, 96, 0},    {2, 128, 2, 2, 80, 0},    {2, 17, 4, 2, 6, 1},
    {2, 300, 2, 1, 24, 40},  {1, 900, 1, 1, 8, 300},   {3, 530, 2, 2, 33, 7},    {2, 17, 4, 2, 6, FULL},
    {1, 65, 3, 1, 40, FULL}, {1, 530, 1, 1, 96, FULL}, {3, 128, 2, 2, 33, FULL},
};

static AttentionShape shape_of(const Sizes *s, int mode) {
    AttentionShape shape = {.batch = s->batch, .seq = s->seq, .heads = s->heads, .kv_heads = s->kv_heads};
    shape.head_dim = s->head_dim;
    shape.mode = mode;
    shape.full = s->document == FULL;
    return shape;
}

static int64_t qkv_count(const Sizes *s) { return s->batch * s->seq * (s->heads + 2 * s->kv_heads) * s->head_dim; }
static int64_t out_count(const Sizes *s) { return s->batch * s->seq * s->heads * s->head_dim; }

// --- float64: one head of one sequence at a time, as the definition reads

typedef struct Reference {
    const Sizes *s;
    const int32_t *places;
    double *qkv, *dout, *out, *dqkv, *p, *lse; // p (batch, heads, seq, seq), lse (batch, heads, seq)
} Reference;

// Element index of dimension 0 of a head's row: part 0 query, 1 key, 2 value.
static int64_t at(const Sizes *s, int part, int64_t b, int64_t head, int64_t position) {
    int64_t kv = head / (s->heads / s->kv_heads);
    int64_t column = part == 0 ? head : s->heads + (part - 1) * s->kv_heads + kv;
    return ((position * s->batch + b) * (s->heads + 2 * s->kv_heads) + column) * s->head_dim;
}

static int64_t out_at(const Sizes *s, int64_t b, int64_t head, int64_t position) {
    return ((position * s->batch + b) * s->heads + head) * s->head_dim;
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static int64_t first_key(const Reference *r, int64_t b, int64_t i) {
    return r->places == NULL ? 0 : i - r->places[i * r->s->batch + b];
}

static int64_t end_key(const Reference *r, int64_t i) { return r->s->document == FULL ? r->s->seq : i + 1; }

static void reference_row(const Reference *r, int64_t b, int64_t head, int64_t i) {
    const Sizes *s = r->s;
    double *p = r->p + ((b * s->heads + head) * s->seq + i) * s->seq, most = -INFINITY, sum = 0;
    double *out = r->out + out_at(s, b, head, i);
    int64_t from = first_key(r, b, i), end = end_key(r, i);
    for (int64_t j = from; j < end; j++) {
        p[j] = dot(r->qkv + at(s, 0, b, head, i), r->qkv + at(s, 1, b, head, j), s->head_dim);
        p[j] /= sqrt((double)s->head_dim);
        most = fmax(most, p[j]);
    }
    for (int64_t j = from; j < end; j++) sum += exp(p[j] - most);
    for (int64_t j = 0; j < s->seq; j++) p[j] = j >= from && j < end ? exp(p[j] - most) / sum : 0.0;
    for (int64_t d = 0; d < s->head_dim; d++) out[d] = 0;
    for (int64_t j = from; j < end; j++)
        for (int64_t d = 0; d < s->head_dim; d++) out[d] += p[j] * r->qkv[at(s, 2, b, head, j) + d];
    r->lse[(b * s->heads + head) * s->seq + i] = most + log(sum);
}

static void reference_forward(const Reference *r) {
    for (int64_t b = 0; b < r->s->batch; b++)
        for (int64_t h = 0; h < r->s->heads; h++)
            for (int64_t i = 0; i < r->s->seq; i++) reference_row(r, b, h, i);
}

static void reference_backward_row(const Reference *r, int64_t b, int64_t head, int64_t i) {
    const Sizes *s = r->s;
    const double *p = r->p + ((b * s->heads + head) * s->seq + i) * s->seq, *dout = r->dout + out_at(s, b, head, i);
    int64_t q = at(s, 0, b, head, i), from = first_key(r, b, i), end = end_key(r, i);
    double delta = 0, scale = 1 / sqrt((double)s->head_dim);
    for (int64_t j = from; j < end; j++) delta += p[j] * dot(dout, r->qkv + at(s, 2, b, head, j), s->head_dim);
    for (int64_t j = from; j < end; j++) {
        int64_t k = at(s, 1, b, head, j), v = at(s, 2, b, head, j);
        double ds = p[j] * (dot(dout, r->qkv + v, s->head_dim) - delta) * scale;
        for (int64_t d = 0; d < s->head_dim; d++) {
            r->dqkv[q + d] += ds * r->qkv[k + d];
            r->dqkv[k + d] += ds * r->qkv[q + d];
            r->dqkv[v + d] += p[j] * dout[d];
        }
    }
}

static void reference_backward(const Reference *r) {
    for (int64_t i = 0; i < qkv_count(r->s); i++) r->dqkv[i] = 0;
    for (int64_t b = 0; b < r->s->batch; b++)
        for (int64_t h = 0; h < r->s->heads; h++)
            for (int64_t i = 0; i < r->s->seq; i++) reference_backward_row(r, b, h, i);
}

static Reference reference_make(Op *op, const Sizes *s, double *qkv, double *dout) {
    int64_t rows = s->batch * s->heads * s->seq;
    const int32_t *places = op_places(op, s->seq, s->batch, s->document);
    Reference r = {s, places, qkv, dout, op_hold(op, out_count(s) * 8), op_hold(op, qkv_count(s) * 8), NULL, NULL};
    r.p = op_hold(op, rows * s->seq * 8), r.lse = op_hold(op, rows * 8);
    return r;
}

// --- the operations

typedef struct Attention {
    Operand qkv, dout, out, dqkv, saved; // saved: probabilities or fp32 statistics, empty for recompute
    unsigned char *scratch;
    int64_t scratch_bytes;
} Attention;

enum { GUARD = 64 };

static Operand saved_for(Op *op, const AttentionShape *s) {
    int64_t rows = s->batch * s->heads * s->seq;
    if (s->mode == ATTENTION_RECOMPUTE) return (Operand){0};
    return s->mode == ATTENTION_NONE ? op_output(op, rows * s->seq) : op_blank(op, rows, sizeof(float));
}

static Attention run_attention(Op *op, const Sizes *sizes, int mode, double spread) {
    AttentionShape shape = shape_of(sizes, mode);
    Backend *backend = op->backend;
    shape.places = op_places(op, sizes->seq, sizes->batch, sizes->document);
    Attention a = {.qkv = op_operand(op, qkv_count(sizes), 1, 0, spread),
                   .dout = op_operand(op, out_count(sizes), 2, 0, 1),
                   .out = op_output(op, out_count(sizes)),
                   .dqkv = op_output(op, qkv_count(sizes)),
                   .saved = saved_for(op, &shape),
                   .scratch_bytes = backend->attention_scratch(backend, &shape)};
    a.scratch = op_poison(op, a.scratch_bytes + GUARD);
    backend->attention_forward(backend, a.out.data, a.saved.data, a.scratch, a.qkv.data, &shape);
    memset(a.scratch, 0xff, (size_t)a.scratch_bytes); // nothing may be kept there until the backward
    backend->attention_backward(backend, a.dqkv.data, a.scratch, a.dout.data, a.out.data, a.saved.data, a.qkv.data,
                                &shape);
    for (int i = 0; i < GUARD; i++) assert_int_equal(a.scratch[a.scratch_bytes + i], 0xff);
    return a;
}

static void check_attention(int precision, const Sizes *s, int mode, double spread) {
    AutoOp op = op_start(precision, 2);
    Attention a = run_attention(&op, s, mode, spread);
    Reference r = reference_make(&op, s, a.qkv.value, a.dout.value);
    reference_forward(&r);
    double bound = precision == PRECISION_BF16 ? 0x1p-7 : 1e-5 * fmax(1, spread * spread);
    op_near("out", op_read(&op, &a.out), r.out, a.out.count, bound, spread);
    if (mode == ATTENTION_NONE) op_near("p", op_read(&op, &a.saved), r.p, a.saved.count, bound, 0.1);
    if (mode == ATTENTION_FLASH) op_near("lse", op_read(&op, &a.saved), r.lse, a.saved.count, 1e-5, 1.0);
    reference_backward(&r);
    double length = sqrt((double)s->seq);
    op_near("dqkv", op_read(&op, &a.dqkv), r.dqkv, a.dqkv.count, bound, fmax(1, spread) * length);
}

TEST(every_mode_agrees_with_float64) {
    EACH_CASE (precision, each, SIZES)
        for (int mode = ATTENTION_NONE; mode <= ATTENTION_FLASH; mode++) check_attention(precision, each, mode, 1.0);
}

// Scores of some hundreds: exp overflows unless the maximum is subtracted, even if it grows from chunk to chunk.
TEST(large_scores_do_not_overflow) {
    for (int mode = ATTENTION_NONE; mode <= ATTENTION_FLASH; mode++)
        check_attention(PRECISION_FP32, &(Sizes){1, 600, 1, 1, 16, 0}, mode, 12.0);
}

// --- causality: a later position changes nothing before it, to the bit

TEST(later_positions_change_nothing_before_them) {
    Sizes s = {2, 300, 2, 1, 24, 0};
    int64_t cut = 271, width = (s.heads + 2 * s.kv_heads) * s.head_dim, out_width = s.heads * s.head_dim;
    for (int mode = ATTENTION_NONE; mode <= ATTENTION_FLASH; mode++) {
        AutoOp op = op_start(PRECISION_FP32, 2);
        AttentionShape shape = shape_of(&s, mode);
        Attention a = run_attention(&op, &s, mode, 1.0);
        float *qkv = a.qkv.data, *again = op_poison(&op, a.out.bytes);
        for (int64_t i = cut * s.batch * width; i < a.qkv.count; i++) qkv[i] = -3 * qkv[i] + 1;
        op.backend->attention_forward(op.backend, again, a.saved.data, a.scratch, qkv, &shape);
        assert_memory_equal(again, a.out.data, (size_t)(cut * s.batch * out_width * 4));
    }
}

// --- documents: one per sequence has the bits of no documents

TEST(one_document_has_the_bits_of_none) {
    const Sizes off = {1, 700, 4, 2, 24, 0}, on = {1, 700, 4, 2, 24, 1 << 30};
    for (int mode = ATTENTION_NONE; mode <= ATTENTION_FLASH; mode++) {
        AutoOp op = op_start(PRECISION_FP32, 2);
        Attention none = run_attention(&op, &off, mode, 1.0), one = run_attention(&op, &on, mode, 1.0);
        assert_memory_equal(one.out.data, none.out.data, (size_t)none.out.bytes);
        assert_memory_equal(one.dqkv.data, none.dqkv.data, (size_t)none.dqkv.bytes);
    }
}

static int64_t run(Op *op, const void *shape, unsigned char *out) {
    int64_t at = 0;
    for (int mode = ATTENTION_NONE; mode <= ATTENTION_FLASH; mode++) {
        Attention a = run_attention(op, shape, mode, 1.0);
        at = op_append(out, at, &a.out);
        at = op_append(out, at, &a.dqkv);
        if (a.saved.bytes > 0) at = op_append(out, at, &a.saved);
    }
    return at;
}

TEST(bits_do_not_depend_on_threads) {
    static const Sizes shapes[] = {
        {1, 1, 1, 1, 6, 0}, {2, 100, 6, 3, 40, 0}, {1, 513, 2, 1, 64, 0}, {3, 70, 1, 1, 96, 0}, {2, 300, 4, 2, 16, 60}};
    EACH_ROW (each, shapes) op_same_for_any_threads(run, each, 16 << 20);
}

TEST(scratch_grows_linearly_in_the_sequence) {
    AutoOp op = op_start(PRECISION_FP32, 3);
    for (int mode = ATTENTION_NONE; mode <= ATTENTION_FLASH; mode++) {
        AttentionShape one = shape_of(&(Sizes){1, 1024, 8, 8, 64, 0}, mode), two = one;
        two.seq *= 2;
        int64_t small = op.backend->attention_scratch(op.backend, &one);
        assert_true(op.backend->attention_scratch(op.backend, &two) <= 2 * small + 4096);
    }
}
