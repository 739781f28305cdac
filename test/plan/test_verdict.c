// The verdict compares the schedules that fit, and `auto` follows it. For a configuration that fits nowhere, a plan
// names the fewest ranks on which the model fits.
#include "models.h"
#include "plan/plan_report.h"
#include "plan/space.h"
#include "made_plan.h"
#include "schedules.h"
#include "unit.h"

#include <math.h>
#include <string.h>

// A configuration with its planner and its verdict; overrides are separated by spaces.
typedef struct Case {
    Config config;
    Planner planner;
    Verdict verdict;
} Case;

static Case *forecast_case(const char *path, const char *overrides) {
    Case *at = calloc(1, sizeof *at);
    at->config = loaded(path, overrides);
    at->config.hardware.profile[0] = '\0';
    const Model *model = model_of(&at->config);
    assert_succeeds(planner_create(&at->planner, &at->config, model, NULL, &unit_error));
    assert_succeeds(verdict_make(&at->verdict, &at->planner, &unit_error));
    return at;
}

static void drop(Case *at) {
    planner_free(&at->planner);
    free(at);
}
UNIT_END(Case, drop)
#define AutoCase UNIT_ENDS(drop) Case

static void expect(const char *path, const char *overrides, bool use, const char *says) {
    AutoCase *at = forecast_case(path, overrides);
    if (at->verdict.use_bpipe != use || strstr(at->verdict.reason, says) == NULL)
        fail_msg("%s: %s\n%s", overrides, at->verdict.use_bpipe ? "used" : "not used", at->verdict.reason);
}

// ---- the four results of the re-evaluation --------------------------------------------------------------------------

TEST(gpt3_with_recomputed_attention_gains_by_a_third) {
    AutoCase *at = forecast_case(GPT, "schedule.micro_batch=2 attention.mode=recompute attention.softmax=megatron");
    const Verdict *v = &at->verdict;
    assert_true(v->use_bpipe && v->gains);
    assert_int_equal(v->largest[PLAN_PLAIN], 1);
    assert_int_equal(v->largest[PLAN_BPIPE], 2);
    assert_true(!v->plain.fits && v->bpipe.fits);
    assert_true(fabs(v->required_gain - 142.0 / 135 + 1) < 1e-12);
    assert_true(v->stage_gain > 0.25 && v->stage_gain < 0.50);
    double faster = v->best.time.step / v->bpipe.time.step;
    assert_true(faster > 1.2 && faster < 1.45); // the paper: 1.35
    assert_non_null(strstr(v->reason, "Yes: with 1F1B micro-batch 2 fits only with BPipe"));
    assert_non_null(strstr(v->reason, "has to gain 5.2 %"));
}

TEST(gpt3_with_flash_attention_gains_nothing) {
    AutoCase *at = forecast_case(GPT, "schedule.micro_batch=2");
    assert_false(at->verdict.use_bpipe);
    assert_true(fabs(at->verdict.best.time.step / at->verdict.bpipe.time.step - 1) < 0.02);
    assert_non_null(strstr(at->verdict.reason, "Cannot be told apart: with 1F1B micro-batch 2 fits only with BPipe"));
    assert_null(strstr(at->verdict.reason, "No:"));
}

TEST(llama_gets_slower_where_only_bpipe_makes_micro_batch_4_fit) {
    AutoCase *at = forecast_case(LLAMA, "schedule.micro_batch=4 hardware.reserve_gib=5");
    const Verdict *v = &at->verdict;
    assert_false(v->use_bpipe);
    assert_int_equal(v->largest[PLAN_PLAIN], 2);
    assert_true(fabs(v->required_gain - 156.0 / 142 + 1) < 1e-12);
    assert_true(v->stage_gain < v->required_gain && v->bpipe.time.step > v->best.time.step);
    assert_non_null(strstr(v->reason, "No: with 1F1B micro-batch 4 fits only with BPipe"));
}

TEST(the_reserve_decides_whether_llama_needs_bpipe_at_all) {
    Case *at = forecast_case(LLAMA, "schedule.micro_batch=4");
    double plain, bpipe;
    assert_true(verdict_reserves(&at->verdict, &at->planner, &plain, &bpipe));
    drop(at);
    assert_true(plain > 3 && plain < 6 && bpipe > plain + 10);
    char less[96], more[96], none[96];
    snprintf(less, sizeof less, "schedule.micro_batch=4 hardware.reserve_gib=%.4f", plain - 0.001);
    snprintf(more, sizeof more, "schedule.micro_batch=4 hardware.reserve_gib=%.4f", plain + 0.001);
    snprintf(none, sizeof none, "schedule.micro_batch=4 hardware.reserve_gib=%.4f", bpipe + 0.001);
    expect(LLAMA, less, false, "micro-batch 4 fits without BPipe");
    expect(LLAMA, more, false, "micro-batch 4 fits only with BPipe");
    expect(LLAMA, none, false, "micro-batch 4 does not fit even with BPipe");
}

// With 26 heads per rank, Megatron-LM's fused softmax runs at micro-batches 2 and 4, but not at 3, the largest that
// fits without BPipe.
TEST(bpipe_has_to_beat_every_smaller_micro_batch_that_fits_without_it) {
    const char *both = "train.global_batch=96 attention.mode=recompute attention.softmax=megatron ";
    char needed[160], unneeded[160];
    snprintf(needed, sizeof needed, "%s schedule.micro_batch=4 hardware.memory_gib=98", both);
    snprintf(unneeded, sizeof unneeded, "%s schedule.micro_batch=2 hardware.memory_gib=98", both);
    Case *at = forecast_case(GPT, needed);
    const Verdict *v = &at->verdict;
    assert_int_equal(v->largest[PLAN_PLAIN], 3);
    assert_true(v->bpipe.time.step < v->best.time.step && v->fastest.possible);
    assert_int_equal(v->fastest.layout.micro_batch, 2);
    assert_true(v->fastest.time.step < v->bpipe.time.step);
    assert_false(v->use_bpipe);
    assert_non_null(strstr(v->reason, "No: with 1F1B micro-batch 4 fits only with BPipe"));
    assert_non_null(strstr(v->reason, "fastest without it is micro-batch 2, "));
    drop(at);
    expect(GPT, unneeded, false, "fastest without it is micro-batch 2, ");
    expect(GPT, unneeded, false, "not worth it.");
}

// ---- the other ways it can end --------------------------------------------------------------------------------------

TEST(bpipe_is_used_where_nothing_fits_without_it) {
    expect(LLAMA, "hardware.memory_gib=44 hardware.reserve_gib=1", true, "without it 1F1B fits at no micro-batch size");
}

// GPipe keeps all 128 microbatches, which fit into host memory, also with a single stage.
TEST(gpipe_is_relieved_by_host_memory) {
    const char *host = "schedule.name=gpipe schedule.evict_to=host hardware.memory_gib=%s parallel.pipeline=%s";
    const char *cases[][2] = {{"80", "8"}, {"400", "1"}};
    for (int i = 0; i < 2; i++) {
        char overrides[160];
        snprintf(overrides, sizeof overrides, host, cases[i][0], cases[i][1]);
        expect(LLAMA, overrides, true, "at no micro-batch size. Here it evicts to the host.");
    }
    expect(LLAMA, "schedule.evict_to=host hardware.memory_gib=4000", false, " fits. Here it evicts to the host.");
}

TEST(there_is_nothing_to_balance_with_few_stages_or_gpipe) {
    expect(LLAMA, "parallel.pipeline=1", false, "one stage");
    expect(LLAMA, "parallel.pipeline=2", false, "nothing to move");
    expect(LLAMA, "schedule.slots=8", false, "nothing to move");
    expect(LLAMA, "schedule.name=gpipe", false, "gpipe fills all stages alike");
    expect(LLAMA, "schedule.name=gpipe parallel.pipeline=1", false, "one stage");
    expect(LLAMA, "parallel.pipeline=1 schedule.evict_to=host", false, "1 stage, 1f1b and these slots");
}

TEST(slots_that_are_too_few_for_bpipe_do_not_stop_a_plan_without_it) {
    expect(LLAMA, "schedule.slots=2", false, "fits without BPipe");
}

TEST(slots_that_are_too_few_for_bpipe_are_not_an_error) {
    Forecast forecast;
    AutoCase *at = forecast_case(LLAMA, "schedule.slots=4");
    at->config.schedule.name = schedule_kind_index("zb-v");
    at->config.schedule.bpipe = BPIPE_ON;
    at->config.schedule.evict_to = EVICT_TO_HOST;
    assert_succeeds(planner_forecast_config(&at->planner, &at->config, false, &forecast, &unit_error));
    assert_false(forecast.possible);
    at->config.schedule.slots = config_min_slots(&at->config);
    assert_succeeds(planner_forecast_config(&at->planner, &at->config, false, &forecast, &unit_error));
    assert_true(forecast.possible);
}

TEST(without_a_speed_the_verdict_asks_for_one) {
    AutoCase *at = forecast_case(LLAMA, "schedule.micro_batch=4 hardware.reserve_gib=5 hardware.peak_tflops=auto");
    assert_false(at->verdict.use_bpipe || at->verdict.gains);
    assert_non_null(strstr(at->verdict.reason, "give hardware.peak_tflops or a profile to learn which is faster"));
}

TEST(memory_that_is_not_known_limits_nothing) {
    AutoCase *at = forecast_case(LLAMA, "hardware.memory_gib=auto schedule.micro_batch=16");
    assert_true(at->verdict.plain.fits);
    assert_int_equal(at->verdict.largest[PLAN_PLAIN], 16);
}

// Data ranks can shard gradients only if a step has one microbatch, here of 2 sequences.
TEST(the_largest_size_is_found_though_smaller_sizes_do_not_fit) {
    const char *shared = "parallel.pipeline=1 parallel.data=16 train.global_batch=32 hardware.memory_gib=100 "
                         "schedule.micro_batch=2 parallel.shard_gradients=%s";
    const char *words[] = {"off", "auto", "on"};
    for (int i = 0; i < 3; i++) {
        char overrides[160];
        snprintf(overrides, sizeof overrides, shared, words[i]);
        AutoCase *at = forecast_case(LLAMA, overrides);
        assert_int_equal(at->verdict.largest[PLAN_PLAIN], i == 0 ? 0 : 2);
    }
}

// ---- the smallest world ---------------------------------------------------------------------------------------------

// The model has more layers than a configuration may have stages: the search must not exceed that limit.
TEST(a_deep_model_has_a_smallest_world_too) {
    AutoCase *at =
        forecast_case(LLAMA, "model.layers=4096 model.hidden=512 model.ffn=2048 parallel.pipeline=2 parallel.tensor=1 "
                             "hardware.gpus_per_node=1 hardware.memory_gib=110 train.global_batch=4096");
    SmallestWorld world;
    SearchSpace space = space_make(at->planner.config, &at->planner, 2);
    assert_succeeds(space_smallest_world(&space, &world, &unit_error));
    assert_true(world.ranks > 2 && world.ranks < 64 && world.at.tensor == 1);
}
