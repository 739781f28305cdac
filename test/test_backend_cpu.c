// The CPU as a device: memory by category, copies, events, and rounding to bf16.
#include "op_check.h"

static void memory_is_zeroed_aligned_and_counted_by_category(void **state) {
    (void)state;
    Op op = op_start(PRECISION_FP32, 2);
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
            memset(memory[i], 0x5a, (size_t)sizes[i]); // what comes back dirty must not come out again
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
    op_end(&op);
}

static void no_memory_names_what_was_wanted_and_what_holds_the_rest(void **state) {
    (void)state;
    Op op = op_start(PRECISION_FP32, 1);
    Backend *b = op.backend;
    int64_t some = 256 << 20;
    void *weights = b->allocate(b, MEMORY_WEIGHTS, some, "weights", NULL);
    assert_non_null(weights);
    static const int64_t wanted[] = {(int64_t)1 << 50, INT64_MAX, -1};
    for (int i = 0; i < 3; i++) {
        Error err = {0};
        assert_null(b->allocate(b, MEMORY_OWN_SLOTS, wanted[i], "activations of 8 microbatches", &err));
        assert_int_equal(err.code, EXIT_FAILED);
        assert_non_null(strstr(err.text, "activations of 8 microbatches"));
        assert_non_null(strstr(err.text, "weights 0.25 GiB"));
        assert_non_null(strstr(err.text, "slots"));
        assert_int_equal(memory_total(&b->held), some);
    }
    b->release(b, MEMORY_WEIGHTS, weights, some);
    op_end(&op);
}

static void copies_arrive_and_events_tell_the_time(void **state) {
    (void)state;
    Op op = op_start(PRECISION_FP32, 2);
    Backend *b = op.backend;
    enum { BYTES = 3 << 20 };
    unsigned char *from = op_hold(&op, BYTES), *to = op_poison(&op, BYTES), *back = op_poison(&op, BYTES);
    for (int i = 0; i < BYTES; i++) from[i] = (unsigned char)(i * 7);
    Event *event = b->event_create(b);
    double before = clock_seconds();
    b->upload(b, to, from, BYTES);
    b->copy(b, STREAM_EVICT, back, to, BYTES);
    b->event_record(b, event, STREAM_EVICT);
    double after = clock_seconds();
    assert_int_equal(b->synchronize(b, NULL), 0);
    assert_true(b->event_done(b, event));
    assert_true(b->event_seconds(b, event) >= before && b->event_seconds(b, event) <= after);
    b->event_destroy(b, event);
    assert_memory_equal(back, from, BYTES);
    b->download(b, to, from, BYTES);
    b->zero(b, back, BYTES);
    for (int i = 0; i < BYTES; i++) assert_true(to[i] == from[i] && back[i] == 0);
    op_end(&op);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    static const uint32_t bits[][2] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
        {0x3f807fff, 0x3f80}, {0xbf818000, 0xbf82}, {0x7f800000, 0x7f80}, {0x7f7fffff, 0x7f80},
        {0x80000000, 0x8000}, {0x7f800001, 0x7fc0}, {0xffc12345, 0xffc1}, {0x00000001, 0x0000},
    };
    enum { N = sizeof bits / sizeof *bits };
    Op op = op_start(PRECISION_BF16, 1);
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
    op_end(&op);
}

static void what_the_device_says_of_itself(void **state) {
    (void)state;
    Op op = op_start(PRECISION_BF16, 1);
    assert_int_equal(op.backend->element, 2);
    assert_true(op.backend->memory_size > 0);
    assert_non_null(strstr(op.backend->device, ", 1 thread"));
    op_end(&op);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed_aligned_and_counted_by_category),
        cmocka_unit_test(no_memory_names_what_was_wanted_and_what_holds_the_rest),
        cmocka_unit_test(copies_arrive_and_events_tell_the_time),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(what_the_device_says_of_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
