// The CPU as a device: memory by category, a loan of it, the time of events, and rounding to bf16. Loans between
// processes: ranks_pushed.c.
#include "op_check.h"
#include "backend/products.h"
#include "base/clock.h"

TEST(memory_is_zeroed_aligned_and_counted_by_category) {
    AutoOp op = op_start(PRECISION_FP32, 2);
    Backend *b = op.backend;
    static const int64_t sizes[] = {1, 255, 4096, 5 << 20};
    void *memory[4];
    int64_t held = 0;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 4; i++) {
            memory[i] = b->allocate(b, i % 2 ? MEMORY_WEIGHTS : MEMORY_HEAD, sizes[i], "a test", NULL);
            assert_non_null(memory[i]);
            assert_int_equal((uintptr_t)memory[i] % MEMORY_ALIGN, 0);
            for (int64_t j = 0; j < sizes[i]; j++) assert_int_equal(((char *)memory[i])[j], 0);
            memset(memory[i], 0x5a, (size_t)sizes[i]); // dirty memory that is released must be zeroed before reuse
            held += sizes[i];
            assert_int_equal(memory_total(&b->held), held);
        }
        assert_int_equal(b->held.bytes[MEMORY_WEIGHTS], 255 + (5 << 20));
        for (int i = 3; i >= 0; i--) {
            b->release(b, i % 2 ? MEMORY_WEIGHTS : MEMORY_HEAD, memory[i], sizes[i]);
            held -= sizes[i];
        }
        assert_int_equal(memory_total(&b->held), 0);
        assert_int_equal(b->peak.bytes[MEMORY_HEAD], 1 + 4096);
        assert_int_equal(memory_total(&b->peak), 1 + 255 + 4096 + (5 << 20));
    }
}

TEST(no_memory_names_what_was_wanted_and_what_holds_the_rest) {
    AutoOp op = op_start(PRECISION_FP32, 1);
    Backend *b = op.backend;
    int64_t some = 256 << 20;
    void *weights = b->allocate(b, MEMORY_WEIGHTS, some, "weights", NULL);
    assert_non_null(weights);
    static const int64_t wanted[] = {(int64_t)1 << 50, INT64_MAX, -1};
    for (int i = 0; i < 3; i++) {
        assert_refused(b->allocate(b, MEMORY_OWN_SLOTS, wanted[i], "activations of 8 microbatches", &unit_error),
                       EXIT_FAILED, "activations of 8 microbatches");
        assert_contains(unit_error.text, "weights 256.0 MiB");
        assert_contains(unit_error.text, "slots");
        assert_int_equal(memory_total(&b->held), some);
    }
    b->release(b, MEMORY_WEIGHTS, weights, some);
}

TEST(one_piece_that_was_allocated_for_it_is_lent_until_it_is_gone) {
    enum { BYTES = 3 << 20 };
    AutoOp op = op_start(PRECISION_FP32, 1);
    Backend *b = op.backend;
    Loan loan;
    void *own = assert_made(b->allocate(b, MEMORY_OWN_SLOTS, BYTES, "own", &unit_error));
    unsigned char *lent = assert_made(b->allocate(b, MEMORY_LENT_SLOTS, BYTES, "lent", &unit_error));
    void *second = assert_made(b->allocate(b, MEMORY_LENT_SLOTS, BYTES, "lent", &unit_error));
    for (int i = 0; i < BYTES; i++) assert_int_equal(lent[i], 0);
    assert_refused(b->lend(b, own, BYTES, &loan, &unit_error), EXIT_FAILED, "not allocated to be lent");
    assert_refused(b->lend(b, second, BYTES, &loan, &unit_error), EXIT_FAILED, "not allocated to be lent");
    assert_succeeds(b->lend(b, lent, BYTES, &loan, &unit_error));
    assert_refused(b->borrow(b, &loan, 2 * BYTES, &unit_error), EXIT_FAILED, "cannot be mapped"); // more than there is
    b->release(b, MEMORY_LENT_SLOTS, second, BYTES);
    b->release(b, MEMORY_LENT_SLOTS, lent, BYTES);
    b->release(b, MEMORY_OWN_SLOTS, own, BYTES);
    assert_refused(b->borrow(b, &loan, BYTES, &unit_error), EXIT_FAILED, "cannot be mapped");
}

// Runs every operation that needs workspace, forward and backward, on a residual stream (rows, cols) with `shape`.
static void run_operations(Op *op, int64_t rows, int64_t cols, const AttentionShape *shape) {
    Backend *b = op->backend;
    int64_t bytes = rows * cols * b->element, tokens = shape->batch * shape->seq,
            width = (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
    enum { IN = 64, OUT = 100, TILES = 300 }; // a product's workspace does not depend on its size
    void *x = op_hold(op, bytes), *y = op_hold(op, bytes), *w = op_hold(op, (IN * OUT + cols) * b->element);
    float *dw = op_hold(op, (IN * OUT + cols) * 4), *db = op_hold(op, cols * 4);
    void *in = op_hold(op, TILES * IN * b->element), *to = op_hold(op, TILES * OUT * b->element);
    b->linear_forward(b, to, NULL, factor_plain(in), factor_plain(w), NULL, TILES, IN, OUT, EPILOGUE_NONE);
    b->linear_backward_input(b, in, NULL, factor_plain(to), factor_plain(w), TILES, IN, OUT, EPILOGUE_NONE);
    b->linear_backward_weight(b, dw, NULL, factor_plain(to), factor_plain(in), TILES, IN, OUT, true);
    b->norm_forward(b, factor_plain(y), NULL, x, NULL, w, w, rows, cols, 1e-5);
    b->norm_backward(b, x, dw, db, y, y, w, rows, cols, 1e-5);
    b->norm_backward(b, x, dw, NULL, y, y, w, rows, cols, 1e-5);
    void *qkv = op_hold(op, tokens * width * b->element), *dqkv = op_hold(op, tokens * width * b->element);
    void *out = op_hold(op, tokens * shape->heads * shape->head_dim * b->element);
    void *saved = op_hold(op, shape->batch * shape->heads * shape->seq * shape->seq * b->element + 4096);
    void *scratch = op_hold(op, b->attention_scratch(b, shape));
    b->attention_forward(b, out, saved, scratch, qkv, shape);
    b->attention_backward(b, dqkv, scratch, out, out, saved, qkv, shape);
}

TEST(operations_keep_to_the_workspace_that_is_counted_for_them) {
    // In these sizes, products, attention with wide heads, and norms of wide rows in turn need the most workspace.
    static const int64_t sizes[][3] = {{256, 64, 16}, {256, 128, 4096}, {2048, 2560, 16}};
    enum { THREADS = 3, GUARD = 4096 };
    for (int i = 0; i < 9 * 2; i++) {
        const int64_t *s = sizes[i % 3], rows = s[0], cols = s[1];
        AttentionShape shape = {.batch = 1, .seq = 64, .heads = 2, .kv_heads = 1, .mode = i / 3 % 3};
        shape.head_dim = s[2];
        AutoOp op = op_start(i < 9 ? PRECISION_FP32 : PRECISION_BF16, THREADS);
        Backend *b = op.backend;
        int64_t bytes = b->workspace_bytes(b, rows, cols, &shape);
        unsigned char *scratch = op_hold(&op, bytes + GUARD);
        memset(scratch + bytes, 0xa5, GUARD);
        b->use_workspace(b, scratch, rows, cols, &shape);
        run_operations(&op, rows, cols, &shape);
        assert_int_equal(memory_total(&b->peak), 0); // other allocations would be counted
        for (int j = 0; j < GUARD; j++) assert_int_equal(scratch[bytes + j], 0xa5);
        b->use_workspace(b, NULL, rows, cols, &shape);
        run_operations(&op, rows, cols, &shape);
        assert_true(b->held.bytes[MEMORY_WORKSPACE] > 0 && b->held.bytes[MEMORY_WORKSPACE] <= bytes);
    }
}

// With one thread, events that count its own time do not see a sleep; with two they stay on the common clock.
TEST(events_can_count_the_time_of_the_one_thread) {
    for (int threads = 1; threads <= 2; threads++) {
        AutoOp op = op_start(PRECISION_FP32, threads);
        Backend *b = op.backend;
        Event *before = b->event_create(b), *after = b->event_create(b);
        b->count_own_time(b);
        b->event_record(b, before, STREAM_COMPUTE);
        double start = clock_seconds();
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        b->event_record(b, after, STREAM_COMPUTE);
        double slept = b->event_seconds(b, after) - b->event_seconds(b, before);
        assert_true(clock_seconds() - start >= 0.05);
        assert_true(threads == 1 ? slept < 0.025 : slept >= 0.05);
        b->event_destroy(b, before);
        b->event_destroy(b, after);
    }
}

TEST(bf16_rounds_to_nearest_even) {
    static const uint32_t bits[][2] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
        {0x3f807fff, 0x3f80}, {0xbf818000, 0xbf82}, {0x7f800000, 0x7f80}, {0x7f7fffff, 0x7f80},
        {0x80000000, 0x8000}, {0x7f800001, 0x7fc0}, {0xffc12345, 0xffc1}, {0x00000001, 0x0000},
    };
    enum { N = sizeof bits / sizeof *bits };
    AutoOp op = op_start(PRECISION_BF16, 1);
    float in[N], out[N];
    uint16_t half[N];
    for (int i = 0; i < N; i++) memcpy(&in[i], &bits[i][0], 4);
    op.backend->from_float(op.backend, half, in, N);
    for (int i = 0; i < N; i++) assert_int_equal(half[i], bits[i][1]);
    op.backend->to_float(op.backend, out, half, N);
    for (int i = 0; i < N; i++) {
        uint32_t wide = (uint32_t)half[i] << 16;
        assert_memory_equal(&out[i], &wide, 4);
    }
}

TEST(kernels_that_were_chosen_for_another_device_or_library_are_not_used) {
    static const struct {
        const char *device;
        int64_t library;
        bool used;
    } rows[] = {{"ours", 7, true}, {"ours", 8, false}, {"other", 7, false}};
    ProductChoices chosen = {0};
    products_add(&chosen, &(ProductKernels){.key = {1}, .candidates = 1});
    AutoText *text = products_text(&chosen, "ours", 7);
    EACH_ROW (row, rows) {
        ProductChoices read;
        char note[512];
        assert_succeeds(
            products_read(&read, text, (int64_t)strlen(text), "x.json", row->device, row->library, note, &unit_error));
        assert_true((read.count == 1) == row->used && (note[0] == '\0') == row->used);
        products_free(&read);
    }
    products_free(&chosen);
}
