// Days, GPU hours, price and energy of a training run, computed by hand.
#include "plan/budget.h"
#include "unit.h"

#include <math.h>
#include <string.h>

static void near(double value, double right) {
    if (fabs(value - right) > 1e-9 * fabs(right)) fail_msg("%.12g is not %.12g", value, right);
}

// 64 GPUs on 8 nodes, 4,096 tokens a step in half an hour.
static Config sixty_four(void) {
    HardwareConfig hardware = {
        .gpu_hour = 2.5, .gpu_watts = 700, .gpus_per_node = 8, .checkpoint_s = 20, .restart_s = 600};
    return (Config){.parallel = {.pipeline = 8, .tensor = 4, .data = 2, .context = 1},
                    .model = {.seq_len = 1024},
                    .train = {.global_batch = 4, .steps = 96},
                    .hardware = hardware};
}

static Budget budget;

// Makes the budget; returns its printed lines followed by its JSON.
static const char *told(const Config *config, double step_seconds, bool gpus) {
    static char text[4096];
    budget = budget_make(config, step_seconds, gpus, (GpuBand){0});
    FILE *file = fmemopen(text, sizeof text, "w");
    budget_print(&budget, config, &(Hardware){0}, true, file);
    budget_write_json(&budget, &(JsonOut){.file = file});
    fclose(file);
    return text;
}

TEST(steps_cost_their_gpu_hours) {
    Config config = sixty_four();
    budget = budget_make(&config, 1800, true, (GpuBand){0});
    near(budget.tokens, 96 * 4096);
    near(budget.step.gpu_hours, 32);
    near(budget.step.price, 80);
    near(budget.step.mwh, 0.0224);
    near(budget.whole.days, 2);
    near(budget.whole.gpu_hours, 3072);
    near(budget.whole.price, 7680);
    near(budget.billion.price, 80e9 / 4096);
}

TEST(tokens_given_replace_those_of_the_steps) {
    Config config = sixty_four();
    config.train.tokens = 2000000000;
    budget = budget_make(&config, 1800, true, (GpuBand){0});
    near(budget.whole.price, 2 * budget.billion.price);
    near(budget.whole.mwh, 2 * budget.billion.mwh);
    near(budget.whole.days, 2e9 / 4096 / 48);
}

TEST(unknown_values_are_null) {
    Config config = sixty_four();
    config.hardware.gpu_hour = config.hardware.gpu_watts = 0;
    assert_non_null(
        strstr(told(&config, 1800, true), "\"whole\":{\"days\":2,\"gpu_hours\":3072,\"price\":null,\"mwh\":null}"));
    budget = budget_make(&config, 1800, false, (GpuBand){0}); // on CPUs
    assert_true(budget.whole.gpu_hours == 0 && budget.whole.days > 0);
}

TEST(a_short_run_is_told_in_a_unit_of_which_it_takes_at_least_one) {
    Config config = sixty_four();
    assert_non_null(strstr(told(&config, 60, true), "with nothing lost 1.6 hours, "));
    assert_non_null(strstr(told(&config, 1, true), "with nothing lost 1.6 minutes, "));
    assert_non_null(strstr(told(&config, 0.1, true), "with nothing lost 9.6 seconds, "));
}

TEST(lines_hold_what_is_known) {
    Config config = sixty_four();
    char text[4096];
    strcpy(text, told(&config, 1800, true));
    *strchr(text, '{') = '\0'; // the lines alone
    assert_non_null(strstr(text, "run       393,216 tokens of train.steps: with nothing lost 2 days, 3,072 GPU hours"));
    assert_non_null(strstr(text, "price 7,680,"));
    assert_non_null(strstr(text, "(2.5 a"));
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) assert_true(strlen(line) <= 100);
}

// The checkpoint interval with the least slowdown, found by trying all of them in Daly's formula, and the days.
TEST(checkpoints_are_as_far_apart_as_failures_allow) {
    Config config = sixty_four();
    for (int i = 0; i < 4; i++) {
        config.hardware.mtbf_hours = 50 * pow(10, i);
        double mtbf = config.hardware.mtbf_hours * 3600 / 8, best = INFINITY, at = 0;
        for (int64_t every = 1; every < 20000; every++) {
            double tau = 10.0 * (double)every, slow = mtbf * exp(600 / mtbf) * (exp((tau + 20) / mtbf) - 1) / tau;
            if (slow < best) best = slow, at = (double)every;
        }
        config.checkpoint.every = (int64_t)at;
        budget = budget_make(&config, 10, true, (GpuBand){0});
        near(budget.goodput.mtbf, mtbf);
        assert_true(fabs(budget.goodput.every - at) <= 1 + 0.01 * at);
        assert_true(fabs(budget.goodput.share * best - 1) < 1e-4 && budget.goodput.own <= 1 / best + 1e-9);
        near(budget.goodput.own, 1 / best);
        near(budget.goodput.days, budget.whole.days / budget.goodput.share);
    }
}

TEST(goodput_is_told_where_failures_are_known) {
    Config config = sixty_four();
    for (int known = 0; known < 2; known++) {
        config.hardware.mtbf_hours = known * 1000;
        const char *text = told(&config, 10, true);
        assert_true((strstr(text, "failures  one in 125 hours; checkpoint.every 423 (70.5 minutes) is best") != NULL) ==
                    known);
        assert_true((strstr(text, "\"goodput\":{\"mtbf_hours\":125,\"every\":423,\"share\":0.9") != NULL) == known);
    }
}

TEST(hopeless_failures_have_no_days) {
    Config config = sixty_four();
    config.hardware.gpus_per_node = 1;
    config.hardware.mtbf_hours = 1e-6;
    config.hardware.checkpoint_s = 1000;
    const char *text = told(&config, 10, true);
    assert_non_null(strstr(text, "the training would never end"));
    assert_non_null(strstr(text, "\"share\":null,\"days\":null,\"own\":null"));
}
