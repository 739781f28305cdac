// The paper's formula, and times that can be computed by hand: counted stage times, Megatron-LM's
// softmax rule, and a long schedule with a time that follows from a shorter one.
#include "models.h"
#include "base/alloc.h"
#include "plan/counted.h"
#include "plan/plan_time.h"
#include "backend/attention_scratch.h"
#include "plan/planner.h"
#include "made_plan.h"
#include "ranks/topology.h"
#include "schedules.h"

#include <math.h>
#include <string.h>

static void near(double value, double expected, double relative) {
    if (fabs(value - expected) <= relative * fabs(expected)) return;
    fail_msg("%.17g where %.17g is expected", value, expected);
}

// ---- the formula ----------------------------------------------------------------------------------------------------

TEST(a_larger_micro_batch_has_to_gain_what_the_paper_says) {
    near(estimate_required_gain(128, 1, 2, 8), 142.0 / 135 - 1, 1e-12);
    near(estimate_required_gain(128, 2, 4, 8), 156.0 / 142 - 1, 1e-12);
    near(estimate_required_gain(128, 1, 4, 8), 156.0 / 135 - 1, 1e-12);
    assert_true(fabs(estimate_required_gain(128, 1, 2, 8) - 0.052) < 5e-4);
    assert_true(fabs(estimate_required_gain(128, 2, 4, 8) - 0.099) < 5e-4);
    assert_true(fabs(estimate_required_gain(128, 1, 4, 8) - 0.156) < 5e-4);
    near(1 + estimate_required_gain(128, 4, 1, 8), 1 / (156.0 / 135), 1e-12); // the inverse
    assert_true(estimate_required_gain(64, 1, 64, 1) == 0);                   // one stage is never idle
}

TEST(mfu_of_a_pipeline_is_that_of_a_stage_times_the_time_it_works) {
    near(estimate_mfu(0.5, 128, 2, 8), 0.5 * 64 / 71, 1e-12); // m / (m + p - 1)
    near(estimate_mfu(0.5, 128, 2, 1), 0.5, 1e-12);
}

// ---- the softmax rule -----------------------------------------------------------------------------------------------

static bool fused(int64_t heads, int64_t batch, int64_t seq, int softmax, int64_t element) {
    AttentionShape shape = {.batch = batch, .heads = heads, .seq = seq, .softmax = softmax};
    return attention_softmax_fuses(&shape, element);
}

TEST(megatron_fuses_where_batch_times_heads_is_a_multiple_of_4) {
    assert_false(fused(26, 1, 2048, SOFTMAX_MEGATRON, 2)); // GPT-3 96B over 4 tensor ranks
    assert_true(fused(26, 2, 2048, SOFTMAX_MEGATRON, 2));
    assert_true(fused(16, 1, 2048, SOFTMAX_MEGATRON, 2)); // LLaMA 65B
    assert_false(fused(16, 1, 2048, SOFTMAX_MEGATRON, 4));
    assert_false(fused(16, 1, 16, SOFTMAX_MEGATRON, 2));
    assert_false(fused(16, 1, 4100, SOFTMAX_MEGATRON, 2));
    assert_false(fused(16, 1, 2050, SOFTMAX_MEGATRON, 2));
    assert_true(fused(26, 1, 2048, SOFTMAX_FUSED, 2));
    assert_false(fused(26, 2, 2048, SOFTMAX_UNFUSED, 2));
}

// ---- times ----------------------------------------------------------------------------------------------------------

typedef struct Asked {
    Config config;
    Planner planner;
} Asked;

static void ask(Asked *asked, const char *path, const char *overrides) {
    asked->config = loaded(path, overrides);
    strcpy(asked->config.hardware.profile, "");
    const Model *model = model_of(&asked->config);
    assert_succeeds(planner_create(&asked->planner, &asked->config, model, NULL, &unit_error));
}

// The keys that these tests vary.
typedef struct Variant {
    int64_t micro_batch;
    bool bpipe;
    int attention;
} Variant;

static Config varied(const Asked *asked, Variant variant) {
    Config config = asked->config;
    config.schedule.micro_batch = variant.micro_batch;
    config.schedule.bpipe = variant.bpipe ? BPIPE_ON : BPIPE_OFF;
    config_set_attention(&config, variant.attention);
    return config;
}

static Forecast forecast(Asked *asked, Variant variant) {
    Config config = varied(asked, variant);
    Forecast forecast;
    assert_succeeds(planner_forecast_config(&asked->planner, &config, true, &forecast, &unit_error));
    return forecast;
}

static Forecast forecast_of(const char *path, const char *overrides, Variant variant) {
    static Asked asked;
    ask(&asked, path, overrides);
    Forecast result = forecast(&asked, variant);
    planner_free(&asked.planner);
    return result;
}

// Returns the times of LLaMA 65B with 1F1B, micro-batches of one sequence and flash attention.
static PlanTime time_of(const char *overrides) {
    return forecast_of(LLAMA, overrides, (Variant){1, false, ATTENTION_FLASH}).time;
}

// Without the head, and with messages and collectives that take no time, the step time equals the formula.
TEST(step_time_without_messages_is_the_formula) {
    PlanTime one = time_of("hardware.network_gb_s=1e9 hardware.pair_gb_s=1e9 hardware.latency_us=0 model.vocab=1");
    near(one.pipeline, (128 + 7) * one.slowest, 2e-3);
    assert_true(fabs(one.bubble - 7.0 / 135) < 0.004); // the first and the last stage do a little more work
    near(one.mfu, one.estimate * one.pipeline / one.step, 2e-3);
}

static void expect_alike(const char *overrides, bool bpipe) {
    static Asked asked;
    ask(&asked, LLAMA, overrides);
    Variant variant = {1, bpipe, ATTENTION_FLASH};
    Forecast shortened = forecast(&asked, variant);
    Config config = varied(&asked, variant);
    if (planner_split_open(&config)) config.schedule.split_backward = shortened.split_gain > 0 ? SPLIT_ON : SPLIT_OFF;
    AutoSchedule *whole = assert_made(plan_schedule(&config, &unit_error));
    PlanTime time;
    TimeSource source = planner_source(&asked.planner);
    assert_int_equal(whole->microbatches, 1040);
    Plan plan = plan_make(&llama_model, &config, whole, asked.planner.be);
    assert_succeeds(plan_time(&time, &config, whole, &plan, &source, INFINITY, &unit_error));
    near(shortened.time.step, time.step, 1e-3);
    near(shortened.time.bubble, time.bubble, 1e-2);
    near(shortened.time.exposed, time.exposed, 1e-2);
    assert_int_equal(shortened.peak_bytes, memory_total(&plan.stage[plan_fullest(&plan)].memory));
    plan_free(&plan);
    planner_free(&asked.planner);
}

TEST(a_long_schedule_takes_what_a_short_one_says) {
    // Too many for a complete simulation: the planner extrapolates from a shorter schedule.
    expect_alike("parallel.pipeline=16 train.global_batch=1040", false);
    // Messages take about as long as compute, so the first stages run ahead for some 150 microbatches.
    expect_alike("parallel.pipeline=30 parallel.tensor=1 train.global_batch=1040 hardware.gpus_per_node=3 "
                 "hardware.network_gb_s=1",
                 false);
    expect_alike("parallel.pipeline=30 parallel.tensor=1 train.global_batch=1040 hardware.gpus_per_node=3 "
                 "hardware.network_gb_s=1 hardware.pair_gb_s=5",
                 false);
    expect_alike("parallel.pipeline=16 train.global_batch=1040", true);
    expect_alike("parallel.pipeline=16 train.global_batch=1040 hardware.pair_gb_s=6 schedule.slots=11", true);
    expect_alike("parallel.pipeline=16 train.global_batch=1040 parallel.placement=linear", true);
}

// Returns the spec's schedule, evicting to a target with the fewest slots; evict_to -1: without evictions. NULL: none.
static Schedule *make(const ScheduleKind *kind, ScheduleSpec spec, int microbatches, int evict_to) {
    spec.microbatches = microbatches;
    if (evict_to < 0) return schedule_make(kind, &spec, NULL);
    AutoSchedule *plain = schedule_make(kind, &spec, NULL);
    if (plain == NULL) return NULL;
    EvictTarget target = (EvictTarget)evict_to;
    return bpipe_balance(plain, bpipe_least_slots(plain, target), target, bpipe_load_ahead(plain, target), NULL);
}

static void expect_same_slots(const ScheduleKind *kind, ScheduleSpec spec, int evict_to) {
    int enough = planner_enough_for_slots(kind, spec.stages), longer = 2 * plan_enough_microbatches(spec.stages);
    int unit = kind->in_flight != NULL ? 1 : spec.stages * spec.group;
    AutoSchedule *few = make(kind, spec, (enough + unit - 1) / unit * unit, evict_to),
                 *many = make(kind, spec, (longer + unit - 1) / unit * unit, evict_to);
    assert_int_equal(few == NULL, many == NULL);
    for (int s = 0; few != NULL && s < spec.stages; s++) {
        assert_int_equal(few->stage[s].own_slots, many->stage[s].own_slots);
        assert_int_equal(few->stage[s].lent_slots, many->stage[s].lent_slots);
        spec.microbatches = longer;
        if (kind->in_flight != NULL && evict_to < 0)
            assert_int_equal(kind->in_flight(&spec, s), many->stage[s].own_slots);
    }
}

TEST(slots_of_a_long_schedule_are_those_of_a_short_one) {
    for (int p = 1; p <= 10; p++)
        for (int k = 0; k < schedule_kind_count; k++) {
            const ScheduleKind *kind = &schedule_kinds[k];
            for (int evict_to = -1; evict_to <= EVICT_TO_HOST; evict_to++) {
                if (kind->keeps_all && evict_to != EVICT_TO_HOST) continue;
                if (evict_to == EVICT_TO_PEER && (!kind->pairs || p == 1)) continue;
                for (int way = 0; way < 4; way++) {
                    ScheduleSpec spec = {.stages = p,
                                         .chunks = kind->most_chunks > kind->chunks && way >= 2 ? 4 : kind->chunks,
                                         .group = kind->grouped && way % 2 == 1 ? (p + 1) / 2 : p,
                                         .delay = p - 1,
                                         .split = way % 2 == 1};
                    expect_same_slots(kind, spec, evict_to);
                }
            }
        }
}

// Transfers longer than F + B must lengthen the step; here the pairs communicate over a slow network.
TEST(slow_transfers_show_in_the_step) {
    Variant plain = {4, false, ATTENTION_FLASH}, bpipe = {4, true, ATTENTION_FLASH};
    double quick = forecast_of(LLAMA, "", bpipe).time.step - forecast_of(LLAMA, "", plain).time.step;
    Forecast slow = forecast_of(LLAMA, "parallel.placement=linear hardware.network_gb_s=3", bpipe);
    assert_true(fabs(quick) < 0.01 * slow.time.step);
    assert_true(slow.time.exposed > 0.1 * slow.time.step);
    assert_true(slow.time.step >
                1.1 * forecast_of(LLAMA, "parallel.placement=linear hardware.network_gb_s=3", plain).time.step);
}

TEST(data_ranks_add_sums_and_gather_weights_behind_the_first_forward) {
    PlanTime one = time_of(""), both = time_of("parallel.data=2 train.global_batch=256");
    assert_true(one.reduction == 0 && both.reduction > 0);
    // The sums leave 92 of 108 multiprocessors to the last backward of each of the 8 stages.
    double longer = both.pipeline / one.pipeline - 1;
    assert_true(longer > 0 && longer < 8.0 / (128 + 7) * 16 / 92);
    // The 2.09e9 elements of stage 0 or 7: each data rank updates half of the states, and sends half of the weights
    // over an eighth of the node's network bandwidth. The last of ten layers waits for all weights. Meanwhile the
    // others' forwards run, about three tenths of the work on a microbatch. Other stages wait for their input anyway.
    double elements = 10 * ((809517056.0 - 2 * 8192) / 4 + 2 * 8192) + 32256 / 4 * 8192.0;
    near(both.optimizer, one.optimizer / 2 + elements * 2 / 2 / (25e9 / 8) - 0.3 * one.slowest, 2e-2);
    // Over NVLink the weights of a layer arrive before the layer above has ended.
    PlanTime near_ = time_of("parallel.data=2 parallel.pipeline=1 parallel.tensor=4 train.global_batch=256"),
             alone = time_of("parallel.pipeline=1 parallel.tensor=4");
    double gather = 8 * elements * 2 / 2 / 240e9, late = near_.optimizer - alone.optimizer / 2;
    assert_true(late > 0 && late < 0.3 * gather);
}

// Sixteen replicas of the model on two nodes: a ring of sums leaves each node only once, so it gets the node's full
// network bandwidth.
TEST(copies_that_share_a_node_leave_it_once) {
#define SIXTEEN "parallel.pipeline=1 parallel.tensor=1 parallel.data=16 parallel.sequence=false hardware.latency_us=0"
    double more = time_of(SIXTEEN " hardware.network_gb_s=12.5").optimizer - time_of(SIXTEEN).optimizer;
    near(more, 2 * 65285660672.0 * 15 / 16 * (1 / 12.5e9 - 1 / 25e9), 1e-2);
}

// Three stages of two ranks on nodes of eight: in the second copy of the pipeline, two stages are on different nodes.
TEST(the_copy_that_crosses_nodes_sets_the_pace) {
#define THREE "parallel.pipeline=3 parallel.tensor=2 parallel.placement=linear hardware.network_gb_s=0.1 "
    PlanTime near_ = time_of(THREE "train.global_batch=32"),
             across = time_of(THREE "train.global_batch=64 parallel.data=2");
    assert_true(across.pipeline > 1.1 * near_.pipeline);
}

TEST(unfused_softmax_is_what_makes_gpt3_slow_at_micro_batch_1) {
    Variant one = {1, false, ATTENTION_RECOMPUTE}, two = {2, false, ATTENTION_RECOMPUTE};
    static const char *const rows[][2] = {
        {GPT, "attention.softmax=megatron"}, {GPT, ""}, {LLAMA, "attention.softmax=megatron"}};
    static const double least[] = {1.2, 1, 1}, most[] = {INFINITY, 1.052, 1.06};
    for (int i = 0; i < COUNT(rows); i++) {
        double gain = forecast_of(rows[i][0], rows[i][1], two).time.stage_mfu /
                      forecast_of(rows[i][0], rows[i][1], one).time.stage_mfu;
        assert_true(gain > least[i] && gain < most[i]);
    }
}

// Returns the seconds of 128 microbatches, each with that many consecutive collectives of 32 MiB.
static double tensor_seconds(double collectives, int64_t t, double rate, double latencies) {
    double one = 2048 * 8192 * 2.0 * (double)(t - 1) / (double)t / rate + 1e-5 * latencies;
    return 128 * collectives * one;
}

// The rates of a gather and a scatter of 32 MiB among four A100, as measured.
static const double GATHER = 143e9, SCATTER = 152e9;

// The last stage has ten layers, with six gathers and four sums each, and the head with one of each. The gather of the
// head's statistics is small.
TEST(tensor_ranks_on_several_nodes_share_one_ring) {
    near(time_of("parallel.overlap=off parallel.collectives=nccl").tensor,
         tensor_seconds(61, 4, GATHER, 0) + tensor_seconds(41, 4, SCATTER, 0), 1e-3);
    near(time_of("parallel.overlap=off parallel.tensor=16").tensor, tensor_seconds(102, 16, 25e9, 1), 1e-3);
    near(time_of("parallel.overlap=off hardware.gpus_per_node=6").tensor, tensor_seconds(102, 4, 25e9, 1), 1e-3);
    near(time_of("parallel.overlap=off parallel.tensor=16 hardware.tensor_gb_s=10").tensor,
         tensor_seconds(102, 16, 10e9, 1), 1e-3);
}

// The share of an A100's multiprocessors that a collective takes from the products that run meanwhile.
static const double KEPT = COMPUTE_CTAS / 108.0;

// In full remain the four collectives of each layer's forward and the head's gather. The others only take
// multiprocessors from the products that run meanwhile, and nothing from passes over memory. On slow links the
// collectives of the backward take longer than these products.
TEST(overlap_hides_the_collectives_of_a_backward) {
    double tensor = time_of("parallel.overlap=on parallel.collectives=nccl").tensor;
    assert_true(tensor > tensor_seconds(41, 4, SCATTER, 0));
    assert_true(tensor < tensor_seconds(41 + 61 * KEPT, 4, GATHER, 0));
    double slow = time_of("parallel.overlap=on parallel.collectives=nccl hardware.tensor_gb_s=10").tensor;
    assert_true(slow > 1.3 * tensor_seconds(41, 4, 10e9, 1));
    assert_true(slow < tensor_seconds(102, 4, 10e9, 1));
}

// With four chunks, a quarter of each forward collective overlaps no product. Auto gives each chunk at least 512 rows:
// two chunks here. Over slow links chunks are not slower than no chunks.
TEST(chunks_of_rows_hide_the_collectives_of_a_forward) {
    Variant variant = {4, false, ATTENTION_FLASH};
    double one = 4 * 2048 * 8192 * 2.0 * 3 / 4 / 1000e9; // of 4 sequences, in seconds
    const char *fast = "hardware.latency_us=0 parallel.overlap=4 hardware.tensor_gb_s=1000 schedule.split_backward=off "
                       "parallel.collectives=nccl";
    double tensor = forecast_of(LLAMA, fast, variant).time.tensor;
    assert_true(tensor > 32 * one * (10 + 1));
    assert_true(tensor < 1.05 * 32 * one * (10 * (1 + 3 * KEPT) + 1 + 61 * KEPT));
    assert_true(
        forecast_of(LLAMA, "hardware.latency_us=0 parallel.overlap=4 hardware.tensor_gb_s=10", variant).time.tensor <=
        forecast_of(LLAMA, "hardware.latency_us=0 parallel.overlap=on hardware.tensor_gb_s=10", variant).time.tensor);
    variant.micro_batch = 1;
    near(forecast_of(LLAMA, "model.seq_len=1024", variant).time.step,
         forecast_of(LLAMA, "model.seq_len=1024 parallel.overlap=2", variant).time.step, 1e-12);
}

// A chunk is counted with a few layers and extended to all: the plan is linear in the layers beyond the counted ones.
TEST(each_further_layer_takes_what_the_last_counted_one_takes) {
    static Asked asked;
    static const char *const ways[] = {"", "parallel.overlap=4 parallel.collectives=nccl",
                                       "schedule.recompute=pointwise", "parallel.sequence=false",
                                       "train.fp8=block hardware.gpu=h100"};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        ask(&asked, LLAMA, ways[w]);
        StageShape at;
        Schedule one = {.stages = 1, .chunks = 1, .slices = 1};
        CountSource source = {.hardware = &asked.planner.hardware,
                              .config = &asked.config,
                              .model = &llama_model,
                              .split = true,
                              .beside = true};
        stage_shape(&at, &asked.config, &one, asked.planner.be, 0, 0);
        ChunkTimes times[12];
        for (int layers = 0; layers < 12; layers++) { // up to 6 plain and 5 recomputed layers
            StageChunk chunk = {.layers = layers, .recomputed = layers / 2, .first = true, .last = true};
            counted_chunk_whole(&source, &at, &chunk, &times[layers]);
            ChunkTimes extended;
            counted_chunk(&source, &at, &chunk, &extended);
            for (int k = 0; k < COUNTS; k++)
                near(account_total(&extended.of[k]) + 1, account_total(&times[layers].of[k]) + 1, 1e-12);
        }
        planner_free(&asked.planner);
    }
}

TEST(a_cpu_has_one_softmax) {
    Variant stored = {1, false, ATTENTION_NONE};
    near(forecast_of(LLAMA, "hardware.device=cpu hardware.peak_tflops=1 attention.softmax=unfused", stored).time.step,
         forecast_of(LLAMA, "hardware.device=cpu hardware.peak_tflops=1 attention.softmax=fused", stored).time.step,
         1e-12);
}

TEST(gpipe_is_planned_with_all_its_microbatches) {
    Forecast whole =
        forecast_of(LLAMA, "schedule.name=gpipe train.global_batch=4096", (Variant){1, false, ATTENTION_FLASH});
    // Ten layers keep 10 (16 h + 6 f) s values of 16 bits, divided by 4 tensor ranks, and the statistics of attention:
    // bytes per microbatch.
    assert_true((double)whole.peak_bytes > 4096.0 * 10 * 2048 * (16 * 8192 + 6 * 22016.0) / 4);
    assert_false(whole.fits);
}

TEST(lists_too_long_to_be_held_are_refused_and_not_made) {
    Config config = loaded(LLAMA, "parallel.pipeline=64 train.global_batch=16777216");
    assert_refused(plan_schedule(&config, &unit_error), EXIT_USAGE,
                   "16777216 microbatches a step on 64 stages are more than a schedule can hold");
}

// ---- a profile ------------------------------------------------------------------------------------------------------

// Stages of one layer between first and last, measured with recomputed attention and Megatron-LM's softmax on a GPU.
static double forward_by_profile(int heads, int64_t batch) {
    Profile profile = {.cpu = false, .precision = PRECISION_BF16};
    const double sizes[][2] = {{1, 10}, {2, 8}, {4, 16}};
    for (int i = 0; i < 3; i++) {
        ProfileStage stage = {.attention = ATTENTION_RECOMPUTE,
                              .softmax = SOFTMAX_MEGATRON,
                              .micro_batch = (int64_t)sizes[i][0],
                              .layers = 1,
                              .seconds = {sizes[i][1], 2 * sizes[i][1], 1.25 * sizes[i][1], sizes[i][1]}};
        xpush(profile.stages, profile.count, stage);
    }
    StageChunk at = {.layers = 1};
    AttentionShape attention = {.batch = batch,
                                .heads = heads,
                                .seq = 2048,
                                .head_dim = 96,
                                .mode = ATTENTION_RECOMPUTE,
                                .softmax = SOFTMAX_MEGATRON};
    double time[TIMED_ACTIONS];
    assert_true(profile_chunk_time(&profile, &attention, &at, time));
    near(time[TIMED_BACKWARD], 2 * time[TIMED_FORWARD], 1e-12);
    near(time[TIMED_INPUT], 1.25 * time[TIMED_FORWARD], 1e-12);
    near(time[TIMED_WEIGHT], time[TIMED_FORWARD], 1e-12);
    at.layers = 3;
    at.recomputed = 2;
    double forward = time[TIMED_FORWARD];
    assert_true(profile_chunk_time(&profile, &attention, &at, time));
    near(time[TIMED_INPUT], (3 * 1.25 + 2) * forward, 1e-12);
    near(time[TIMED_WEIGHT], 3 * forward, 1e-12);
    // Sizes measured only on the first stage are also used for a stage in the middle.
    for (int i = 0; i < 3; i++) profile.stages[i].first = true;
    assert_true(profile_chunk_time(&profile, &attention, &at, time));
    near(time[TIMED_WEIGHT], 3 * forward, 1e-12);
    at.last = true;
    assert_false(profile_chunk_time(&profile, &attention, &at, time));
    at.last = false;
    for (int i = 0; i < 3; i++) // as in an older profile
        profile.stages[i].seconds[TIMED_INPUT] = profile.stages[i].seconds[TIMED_WEIGHT] = 0;
    assert_true(profile_chunk_time(&profile, &attention, &at, time));
    assert_true(time[TIMED_INPUT] == 0 && time[TIMED_WEIGHT] == 0);
    profile_free(&profile);
    return forward;
}

TEST(a_size_that_was_not_measured_is_told_by_those_with_its_softmax) {
    near(forward_by_profile(16, 3), 12, 1e-12); // fused at all sizes: interpolates between 2 and 4
    near(forward_by_profile(26, 3), 30, 1e-12); // unfused, scaled from size 1
    near(forward_by_profile(26, 6), 24, 1e-12); // fused, scaled from sizes 2 and 4
    near(forward_by_profile(26, 1), 10, 1e-12);
}

// ---- multiprocessors for messages -----------------------------------------------------------------------------------

static bool pairs_are_apart(const Config *config) {
    const ParallelConfig *parallel = &config->parallel;
    int64_t node = config->hardware.gpus_per_node, ranks = parallel->tensor * parallel->context;
    bool apart = false;
    for (int r = 0; r < parallel->data; r++)
        for (int s = 0; s < parallel->pipeline; s++)
            for (int i = 0, partner = bpipe_partner((int)parallel->pipeline, s); partner >= 0 && i < ranks; i++) {
                int64_t here = topology_rank(parallel, (Coordinates){r, s, i}) / node;
                apart |= here != topology_rank(parallel, (Coordinates){r, partner, i}) / node;
            }
    return apart;
}

// With an unknown GPU only bundles decide. A layout in which some pairs are apart counts as one in which all are.
TEST(products_leave_multiprocessors_wherever_bundles_cross_nodes) {
    static Config config;
    static const int placements[] = {PLACEMENT_LINEAR, PLACEMENT_ADJACENT, PLACEMENT_STAGES};
    int seen[2][2] = {{0}};
    config = loaded(LLAMA, "schedule.bpipe=on");
    for (int of = 0; of < 3 * 2 * 9 * 4 * 4; of++) {
        ParallelConfig *parallel = &config.parallel;
        parallel->placement = placements[of % 3], config.hardware.gpus_per_node = of / 3 % 2 == 0 ? 4 : 8;
        parallel->pipeline = 1 + of / 6 % 9, parallel->tensor = 1 << of / 54 % 4, parallel->data = 1 + of / 216;
        bool moves = counted_moves(NULL, &config, &(StageShape){0}), apart = pairs_are_apart(&config);
        assert_true(moves || !apart);
        assert_true(!moves || parallel->pipeline > 1);
        seen[moves][apart]++;
    }
    assert_true(seen[1][1] > 100 && seen[0][0] > 100 && seen[1][0] < seen[1][1] / 4);
}
