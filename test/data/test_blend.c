// Several sources supply samples in proportion to their weights at every moment, each in its own order.
#include "data/blend.h"
#include "scratch_folder.h"
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

UNIT_END(Blend, blend_close)
#define AutoBlend UNIT_ENDS(blend_close) Blend

enum { SEQ_LEN = 4 };

// ---- turns ----------------------------------------------------------------------------------------------------------

static BlendOrder order_of(const double *weights, int count) {
    static DataSource sources[CONFIG_MAX_SOURCES];
    BlendOrder order;
    for (int i = 0; i < count; i++) sources[i].weight = weights[i];
    blend_order_create(&order, sources, count);
    return order;
}

static void expect_shares(const double *weights, int sources, int64_t period, const int64_t *shares) {
    BlendOrder order = order_of(weights, sources);
    assert_int_equal(order.period, period);
    for (int i = 0; i < sources; i++) assert_int_equal(order.share[i], shares[i]);
    blend_order_destroy(&order);
}

TEST(decimal_weights_are_exact_and_have_the_shortest_period) {
    expect_shares((double[]){3.5}, 1, 1, (int64_t[]){1});
    expect_shares((double[]){0.7, 0.3}, 2, 10, (int64_t[]){7, 3});
    expect_shares((double[]){0.1, 0.2, 0.3}, 3, 6, (int64_t[]){1, 2, 3});
    expect_shares((double[]){0.1234, 0.8766}, 2, 5000, (int64_t[]){617, 4383});
    expect_shares((double[]){60, 40}, 2, 5, (int64_t[]){3, 2});
    expect_shares((double[]){1, 1, 1}, 3, 3, (int64_t[]){1, 1, 1});
    expect_shares((double[]){1e-6, 0.999999}, 2, 1000000, (int64_t[]){1, 999999});
    expect_shares((double[]){2e8, 1e9}, 2, 6, (int64_t[]){1, 5});
}

TEST(other_weights_are_rounded_to_a_millionth) {
    const double weights[] = {3.14159265358979, 2.71828182845905, 1.41421356237310, 1e-5};
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += weights[i];
    BlendOrder order = order_of(weights, 4);
    assert_int_equal(order.period, BLEND_ORDER_MOST);
    DataConfig config = {.train_sources = 4};
    for (int i = 0; i < 4; i++) config.train[i].weight = weights[i];
    assert_int_equal(blend_order_bytes(&config), 4 * BLEND_ORDER_MOST);
    for (int i = 0; i < 4; i++)
        assert_true(fabs((double)order.share[i] / (double)order.period - weights[i] / sum) <= 1e-6);
    blend_order_destroy(&order);
}

// Checks in integers, after every k turns: |count - k * share / period| < 1 for each source, and `before` is the count.
static void check_order(const double *weights, int sources) {
    BlendOrder order = order_of(weights, sources);
    int64_t count[CONFIG_MAX_SOURCES] = {0};
    int64_t end = order.period * 2 + 3;
    if (end > 300000) end = order.period;
    for (int64_t k = 0; k < end; k++) {
        int64_t before;
        int source = blend_order_source(&order, k, &before);
        assert_in_range(source, 0, sources - 1);
        assert_int_equal(before, count[source]++);
        for (int i = 0; i < sources; i++) {
            int64_t error = count[i] * order.period - (k + 1) * order.share[i];
            if (error <= -order.period || error >= order.period)
                fail_msg("source %d of %d had %lld of %lld turns", i, sources, (long long)count[i], (long long)k + 1);
        }
    }
    int64_t before;
    for (int i = 0; i < sources; i++) assert_true(end > order.period || count[i] == order.share[i]);
    int64_t far = order.period * 4000000000 + order.period / 2, near;
    int source = blend_order_source(&order, far, &before);
    assert_int_equal(source, blend_order_source(&order, order.period / 2, &near));
    assert_true(before == near + 4000000000 * order.share[source]);
    blend_order_destroy(&order);
}

TEST(no_source_is_ever_a_whole_turn_off) {
    check_order((double[]){1}, 1);
    check_order((double[]){0.5, 0.5}, 2);
    check_order((double[]){0.7, 0.3}, 2);
    check_order((double[]){0.999, 0.001}, 2);
    check_order((double[]){1, 2, 3, 4, 5, 6, 7}, 7);
    // Always taking the source that lags most, without looking ahead, would be too late for one of these sources.
    check_order((double[]){0.375, 0.375, 0.25}, 3);
    check_order((double[]){50, 10, 10, 10, 10, 10}, 6);
    check_order((double[]){M_PI, M_E, M_SQRT2, 0.01}, 4);
    uint64_t random = 1;
    for (int trial = 0; trial < 300; trial++) {
        double weights[CONFIG_MAX_SOURCES];
        int sources = 1 + trial % CONFIG_MAX_SOURCES;
        for (int i = 0; i < sources; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            // From nearly equal weights to ratios of a thousand.
            weights[i] = 1 + (double)(random >> 40) / (1 << 24) * (trial % 3 == 0 ? 1000 : trial % 3 == 1 ? 8 : 60);
            weights[i] = floor(weights[i]);
        }
        check_order(weights, sources);
    }
}

// ---- blends ---------------------------------------------------------------------------------------------------------

static uint32_t numbered_(int64_t i, const void *token) {
    return i % SEQ_LEN == 0 ? (uint32_t)(i / SEQ_LEN) : *(const uint16_t *)token;
}

// Writes a shard of `samples` samples. Every token is `token`, except that each sample begins with its number.
static void write_source(const char *name, int64_t samples, uint16_t token) {
    int64_t count = samples * SEQ_LEN + 1;
    test_shard_write(name, (ShardHeader){SHARD_GPT2, 1, count}, count, numbered_, &token);
}

static DataSource source_of(const char *name, double weight) {
    DataSource source;
    memset(&source, 0, sizeof source);
    snprintf(source.path, sizeof source.path, "%s", test_path(name));
    source.weight = weight;
    return source;
}

static Blend *open_blend(const DataSource *sources, int count) {
    return assert_made(blend_open("data.train", sources, count, SEQ_LEN, 30000, 8, &unit_error));
}

TEST(one_source_is_the_data_set_alone) {
    write_source("alone.bin", 37, 20000);
    DataSource source = source_of("alone.bin", 1);
    AutoBlend *blend = open_blend(&source, 1);
    for (int64_t position = 0; position < 200; position++) {
        int64_t sample;
        assert_int_equal(blend_sample(blend, 1337, position, &sample), 0);
        assert_int_equal(sample, permute_index(position % 37, 37, 1337, (uint64_t)(position / 37)));
    }
}

TEST(tokens_come_from_the_source_and_the_sample_that_were_named) {
    write_source("many.bin", 500, 20000);
    write_source("few.bin", 9, 20001);
    const DataSource sources[] = {source_of("many.bin", 0.7), source_of("few.bin", 0.3)};
    AutoBlend *blend = open_blend(sources, 2);
    int64_t given[2] = {0}, seen[9] = {0};
    for (int64_t position = 0; position < 1000; position++) {
        int64_t sample;
        int32_t inputs[SEQ_LEN], targets[SEQ_LEN];
        int source = blend_sample(blend, 7, position, &sample);
        assert_int_equal(blend_fetch(blend, 7, position, inputs, targets, 1, NULL), 0);
        assert_int_equal(inputs[0], sample);
        assert_int_equal(inputs[1], 20000 + source);
        assert_int_equal(targets[0], 20000 + source);
        given[source]++;
        if (source == 1) seen[sample]++;
    }
    assert_int_equal(given[0], 700);
    assert_int_equal(given[1], 300);
    // The small source repeats in complete permutations: 300 = 33 * 9 + 3.
    for (int i = 0; i < 9; i++) assert_in_range(seen[i], 33, 34);
}

TEST(every_pass_over_a_small_source_has_an_order_of_its_own) {
    write_source("big.bin", 500, 20000);
    write_source("small.bin", 20, 20001);
    const DataSource sources[] = {source_of("big.bin", 1), source_of("small.bin", 1)};
    AutoBlend *blend = open_blend(sources, 2);
    int64_t orders[5][20], taken = 0;
    for (int64_t position = 0; taken < 100; position++) {
        int64_t sample;
        if (blend_sample(blend, 7, position, &sample) == 1) orders[taken / 20][taken % 20] = sample, taken++;
    }
    for (int pass = 0; pass < 5; pass++) {
        int seen[20] = {0};
        for (int i = 0; i < 20; i++) assert_int_equal(seen[orders[pass][i]]++, 0);
        for (int other = 0; other < pass; other++)
            assert_memory_not_equal(orders[pass], orders[other], sizeof orders[0]);
    }
}

// With the same order, two data sets of equal size would show samples of the same index together.
TEST(sources_of_one_size_have_different_orders) {
    write_source("a.bin", 100, 20000);
    write_source("b.bin", 100, 20001);
    const DataSource sources[] = {source_of("a.bin", 1), source_of("b.bin", 1)};
    AutoBlend *blend = open_blend(sources, 2);
    int64_t order[2][100], taken[2] = {0}, equal = 0;
    for (int64_t position = 0; position < 200; position++) {
        int64_t sample;
        int source = blend_sample(blend, 7, position, &sample);
        order[source][taken[source]++] = sample;
    }
    for (int i = 0; i < 100; i++) equal += order[0][i] == order[1][i];
    assert_true(equal < 10);
}

TEST(a_source_that_cannot_be_opened_is_named) {
    write_source("there.bin", 100, 20000);
    const DataSource sources[] = {source_of("there.bin", 1), source_of("absent_*.bin", 1)};
    assert_refused(blend_open("data.train", sources, 2, SEQ_LEN, 30000, 8, &unit_error), EXIT_USAGE, "absent_*.bin");
    assert_memory_equal(unit_error.text, "data.train: ", 12);
}

TESTS_BETWEEN(test_folder_create, test_folder_remove)
