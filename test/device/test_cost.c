// Predicted costs of operations on GPUs, compared with the published tables that their constants were fitted to
// (test/plan/kernels, each with its source; studies/kernel_tables.py).
#include "device/cost.h"

#include "base/units.h"
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Cost cost_with(const char *word, int deterministic, double share) {
    static Config config;
    memset(&config, 0, sizeof config);
    for (int i = 1; gpu_words[i] != NULL; i++)
        if (strcmp(gpu_words[i], word) == 0) config.hardware.gpu = i;
    const Gpu *gpu = gpu_row(config.hardware.gpu);
    assert_non_null(gpu);
    config.hardware.tensor_gb_s = gpu->link_gb_s;
    config.attention.deterministic = deterministic;
    config.hardware.run_share = share;
    Cost cost;
    cost_of_gpu(&cost, &config, gpu->bf16 * 1e12);
    return cost;
}

static Cost cost_of(const char *word) { return cost_with(word, DETERMINISTIC_OFF, 1); }

typedef struct Table {
    FILE *file;
    char line[512], *cell[16]; // of the current row
} Table;

// Reads the next row; false at the end, which closes the table.
static bool next_row(Table *t) {
    do {
        if (fgets(t->line, sizeof t->line, t->file) == NULL) return fclose(t->file), false;
    } while (t->line[0] == '#');
    t->line[strcspn(t->line, "\r\n")] = '\0';
    int count = 0;
    for (char *at = t->line; at != NULL && count < 16; count++) {
        t->cell[count] = at;
        at = strchr(at, ',');
        if (at != NULL) *at++ = '\0';
    }
    return true;
}

// Opens a table, after its header row.
static Table table(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "test/plan/kernels/%s.csv", name);
    Table t = {.file = fopen(path, "r")};
    if (t.file == NULL) fail_msg("%s cannot be opened", path);
    assert_true(next_row(&t));
    return t;
}

// The table has burst rates. At the power limit a device keeps about the same fraction of each of them, the level.
TEST(products_of_all_shapes_are_within_8_percent_of_the_table_at_one_level) {
    static const char *const words[] = {"a100-80g", "h100", "h200", "b200", "gb200", "b300"};
    for (int g = 0; g < 6; g++) {
        Cost cost = cost_of(words[g]);
        Table t = table("products");
        double level = 0, error = 0, ratio[64];
        int count = 0;
        while (next_row(&t)) {
            double m = atof(t.cell[0]), n = atof(t.cell[1]), k = atof(t.cell[2]), measured = atof(t.cell[3 + g]) * 1e12;
            if (measured == 0) continue;
            ratio[count] = 2 * m * n * k / cost_product(&cost, 1, (int64_t)m, (int64_t)n, (int64_t)k) / measured;
            level += ratio[count++];
        }
        level /= count;
        for (int i = 0; i < count; i++) error += fabs(ratio[i] / level - 1) / count;
        assert_true(count > 20 && error < 0.08);
        assert_true(level > 0.87 && level < 0.96); // sustained rates are below bursts, but not far below
    }
}

TEST(products_of_8_bits_gain_only_where_they_are_large) {
    Cost cost = cost_of("h100");
    assert_float_equal(cost_product(&cost, 1, 4096, 2048, 8192) / cost_product_fp8(&cost, 4096, 2048, 8192), 1.5, 1e-9);
    assert_float_equal(cost_product(&cost, 1, 4096, 1024, 8192) / cost_product_fp8(&cost, 4096, 1024, 8192), 1, 1e-9);
}

TEST(adding_to_fp32_takes_a_part_of_a_pass_and_meets_the_measured_weight_gradients) {
    Cost cost = cost_of("h200");
    assert_float_equal(cost_adding(&cost, 1e8) / cost_pass(&cost, 8e8), 0.42, 1e-9);
    Table t = table("measured");
    double error = 0;
    int count = 0;
    while (next_row(&t)) {
        double rows = atof(t.cell[0]), in = atof(t.cell[1]), out = atof(t.cell[2]), flops = 2 * rows * in * out;
        double seconds =
            cost_product(&cost, 1, (int64_t)out, (int64_t)in, (int64_t)rows) + cost_adding(&cost, in * out);
        error += fabs(flops / seconds / (atof(t.cell[5]) * 1e12) - 1);
        count++;
    }
    assert_true(count == 12 && error / count < 0.06);
}

TEST(attention_is_within_5_percent_of_its_tables) {
    static const char *const words[][2] = {
        {"a100", "a100-80g"}, {"h200_trainer", "h200"}, {"gb200", "gb200"}, {"gb300", "gb300"}};
    for (int g = 0; g < 4; g++) {
        bool ours = strcmp(words[g][0], "h200_trainer") == 0;
        Cost cost = cost_with(words[g][1], ours ? DETERMINISTIC_ON : DETERMINISTIC_OFF, 1);
        Table t = table("attention");
        double error = 0;
        int count = 0;
        while (next_row(&t)) {
            if (strcmp(t.cell[0], words[g][0]) != 0) continue;
            double heads = atof(t.cell[1]), s = atof(t.cell[2]), flops = heads * s * s / 2 * 128;
            double forward = cost_flash(&cost, heads, (int64_t)s, 128, 128, false);
            double backward = cost_flash(&cost, heads, (int64_t)s, 128, 128, true);
            double rates[] = {4 * flops / forward, 10 * flops / backward, 14 * flops / (forward + backward)};
            static const int columns[] = {3, 4, 6}; // fwd, bwd, both
            for (int i = 0; i < 3; i++) {
                double measured = atof(t.cell[columns[i]]) * 1e12;
                if (measured == 0) continue;
                error += fabs(rates[i] / measured - 1);
                count++;
            }
        }
        assert_true(count >= 6 && error / count < 0.05);
    }
}

TEST(fewer_heads_fill_a_device_less) {
    Cost cost = cost_of("a100-80g");
    // Measured for 4 and for 32 heads, sequences of 4,096: 0.257 and 0.566 of the peak in the forward.
    double few = cost_flash(&cost, 4, 4096, 128, 128, false) / 4,
           many = cost_flash(&cost, 32, 4096, 128, 128, false) / 32;
    assert_true(fabs(few / many / (0.566 / 0.257) - 1) < 0.05);
}

TEST(collectives_are_those_of_the_table_and_longer_ones_never_take_less_time) {
    static const char *const words[][2] = {
        {"a100_sxm", "a100-80g"}, {"h100_sxm", "h100"}, {"h200_sxm", "h200"}, {"b200_sxm", "b200"}, {"gb200", "gb200"}};
    static const char *const kinds[] = {"all_gather", "reduce_scatter", "all_reduce", "alltoall"};
    static const double sizes[] = {1, 4, 16, 32, 64, 128, 256, 512};
    Table t = table("collectives");
    int rows = 0;
    while (next_row(&t)) {
        int g = 0, kind = 0, ranks = atoi(t.cell[2]);
        while (strcmp(words[g][0], t.cell[0]) != 0) g++;
        while (strcmp(kinds[kind], t.cell[1]) != 0) kind++;
        Cost cost = cost_of(words[g][1]);
        double before = 0;
        for (int i = 0; i < 8; i++)
            assert_true(fabs(cost_collective_rate(&cost, kind, sizes[i] * MIB, ranks) / atof(t.cell[3 + i]) / 1e9 - 1) <
                        1e-6);
        for (double bytes = 1e4; bytes < 1e10; bytes *= 1.1) {
            double seconds = cost_collective(&cost, kind, bytes, ranks);
            assert_true(seconds >= before && seconds >= cost.latency);
            before = seconds;
        }
        rows++;
    }
    assert_true(rows > 54);
}

// Every expert has equally many rows. `n` and `k` are those of the forward.
TEST(grouped_products_meet_the_table) {
    Table t = table("experts");
    double ratio[2] = {0};
    int count[2] = {0};
    while (next_row(&t)) {
        Cost cost = cost_of(t.cell[0]);
        int64_t experts = atoi(t.cell[1]), rows = experts * atoi(t.cell[2]), n = atoi(t.cell[3]), k = atoi(t.cell[4]);
        for (int pass = 0; pass < 3; pass++) {
            bool input = pass == 1, gradient = pass == 2;
            double seconds =
                cost_experts(&cost, rows, experts, input ? k : n, input ? n : k, gradient ? 8 : 2, gradient);
            double flops = 2 * (double)rows * (double)n * (double)k, share = flops / seconds / cost.flops;
            double one = atof(t.cell[5 + pass]) / share;
            int g = strcmp(t.cell[0], "b200") == 0;
            assert_true(one > 0.7 && one < 1.5);
            ratio[g] += one;
            count[g]++;
        }
    }
    assert_true(count[0] > 5 && count[1] > 30);
    for (int g = 0; g < 2; g++) assert_true(ratio[g] / count[g] > 0.95 && ratio[g] / count[g] < 1.25);
}

TEST(a_small_kernel_takes_the_time_of_a_launch) {
    Cost cost = cost_of("h100");
    assert_float_equal(cost_kernel(&cost, 1e9), cost_pass(&cost, 1e9), 1e-12);
    assert_true(cost_kernel(&cost, 1e3) > 2e-6 && cost_kernel(&cost, 1e3) < 3e-6);
    assert_true(cost_kernel(&cost, 0) == 0);
}

TEST(one_expert_is_a_product_like_any_other) {
    Cost cost = cost_of("h100");
    double product = cost_product(&cost, 1, 8190, 4096, 2048);
    assert_float_equal(cost_experts(&cost, 8190, 1, 4096, 2048, 2, false), product, 1e-12);
    product = cost_product(&cost, 1, 4096, 2048, 8192) + cost_adding(&cost, 4096 * 2048);
    assert_float_equal(cost_experts(&cost, 8190, 1, 4096, 2048, 8, true), product, 1e-12);
    assert_true(cost_experts(&cost, 8190, 2, 4096, 2048, 2, false) >
                cost_experts(&cost, 8190, 1, 4096, 2048, 2, false));
}

TEST(an_exchange_takes_as_long_as_its_slower_part) {
    Cost cost = cost_of("h100");
    cost.latency = 1e-5;
    double inside = cost_exchange(&cost, 7e7, 8, 0, 0);
    assert_float_equal(inside, cost_collective(&cost, COST_EXCHANGE, 8e7, 8), 1e-12);
    assert_float_equal(cost_exchange(&cost, 7e7, 8, 1e3, 50e9), inside, 1e-12);
    assert_float_equal(cost_exchange(&cost, 7e7, 8, 4e9, 50e9), 0.1 + 1e-5, 1e-9);
    assert_float_equal(cost_exchange(&cost, 0, 1, 4e9, 50e9), 0.1 + 1e-5, 1e-9);
    assert_true(cost_exchange(&cost, 0, 1, 0, 50e9) == 0);
}

TEST(all_reduces_between_nodes_are_within_a_third_of_the_table) {
    static const double sizes[] = {1, 4, 8, 16, 64, 256, 1024, 16384};
    Table t = table("between");
    while (next_row(&t)) {
        Cost cost = {.latency = 1e-6 * atof(t.cell[1])};
        for (int i = 0; i < 8; i++) {
            double bytes = sizes[i] * MIB, rate = 1e9 * atof(t.cell[2 + i]);
            if (rate == 0) continue;
            double seconds = cost_collective_between(&cost, COST_ALL_REDUCE, bytes, 32, 4, 1e9 * atof(t.cell[9]));
            assert_true(fabs(seconds / (2 * bytes * 31 / 32 / rate) - 1) < 0.33);
        }
    }
}

TEST(sums_over_more_nodes_are_slower) {
    Cost cost = {.latency = 1e-5};
    double bytes = 36 * MIB, before = 0;
    for (int nodes = 2; nodes <= 64; nodes *= 2) {
        double seconds = cost_collective_between(&cost, COST_REDUCE_SCATTER, bytes, 8 * nodes, nodes, 380e9);
        assert_true(seconds > before && seconds < 5e-6 * nodes + bytes / 380e9);
        before = seconds;
    }
}

TEST(messages_between_gpus_of_a_node_are_within_a_fifth_of_the_table) {
    static const double sizes[] = {1, 4, 16, 64}, h100[] = {105, 221, 314, 348}, a100[] = {62, 168, 258, 228};
    for (int i = 1; i < 4; i++) {
        double bytes = sizes[i] * MIB;
        Cost cost = {.latency = 1e-5};
        assert_true(fabs(bytes / cost_message(&cost, bytes, 360e9) / (h100[i] * 1e9) - 1) < 0.2);
        assert_true(fabs(bytes / cost_message(&cost, bytes, 240e9) / (a100[i] * 1e9) - 1) < 0.2);
    }
}

TEST(rows_of_operands_that_are_not_16_bytes_wide_cost_a_third_of_the_rate) {
    Cost cost = cost_of("h100");
    double ratio = cost_product(&cost, 1, 8192, 10922, 4096) / cost_product(&cost, 1, 8192, 10944, 4096);
    assert_true(ratio > 1.4 && ratio < 1.5);
}

TEST(runs_reach_their_share_of_every_rate) {
    Cost all = cost_of("h100"), half = cost_with("h100", DETERMINISTIC_OFF, 0.5);
    assert_true(half.efficiency == 0.5 * all.efficiency && half.memory_rate == 0.5 * all.memory_rate);
    assert_true(half.flash_forward.share == 0.5 * all.flash_forward.share);
    assert_true(half.flash_backward.share == 0.5 * all.flash_backward.share);
}

TEST(a_gpu_without_tables_is_said_to_be_planned_by_its_data_sheet) {
    assert_true(cost_of("mi300x").data_sheet && cost_of("rtx-4090").data_sheet);
    assert_false(cost_of("h100").data_sheet || cost_of("a100-40g").data_sheet);
    Cost h800 = cost_of("h800"), h100 = cost_of("h100");
    assert_true(h800.efficiency == h100.efficiency && h800.collectives[0][0] == 0); // the H800 has other links
    // At its best measured product rate, an MI300X is not faster than an H200.
    Cost mi300x = cost_of("mi300x"), h200 = cost_of("h200");
    assert_true(mi300x.flops * mi300x.efficiency < h200.flops * h200.efficiency);
}
