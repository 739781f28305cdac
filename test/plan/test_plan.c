// The plan: bytes and parameters, compared with figures computed by hand. Runs allocate these bytes: test_plan_cli.py
// and test_layouts.py. Whether a machine can run a plan: test_fits.c.
#include "backend/attention_scratch.h"
#include "models.h"
#include "base/grid.h"
#include "made_plan.h"
#include "plan/emulate.h"
#include "ranks/topology.h"
#include "schedules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t GIB = INT64_C(1) << 30;

// ---- where groups of ranks are --------------------------------------------------------------------------------------

// Returns the group of a rank, as run_create.c makes them: a different number for every group of a kind.
static int group_of(const ParallelConfig *parallel, RankGroup kind, int rank) {
    Coordinates at = topology_coordinates(parallel, rank);
    int t = (int)parallel->tensor, c = (int)parallel->context, e = (int)parallel->expert, p = (int)parallel->pipeline;
    int column = at.replica * t + at.tensor, of_stage = c * (int)parallel->data * t;
    const int groups[] = {at.replica * p + at.stage, (at.replica / c * p + at.stage) * t + at.tensor,
                          at.stage * t + at.tensor, at.stage * of_stage + column / e, at.stage * of_stage + column % e};
    return groups[kind];
}

TEST(groups_are_planned_on_the_nodes_of_their_ranks) {
    static const char *const layouts[] = {
        "tensor=1 pipeline=4 context=1 data=8 expert=8", "tensor=2 pipeline=2 context=2 data=4 expert=4",
        "tensor=8 pipeline=2 context=1 data=2 expert=4", "tensor=1 pipeline=2 context=1 data=8 expert=4",
        "tensor=4 pipeline=1 context=4 data=2 expert=8", "tensor=2 pipeline=3 context=1 data=8 expert=2",
        "tensor=1 pipeline=8 context=2 data=2 expert=2", "tensor=8 pipeline=1 context=2 data=4 expert=1",
        "tensor=1 pipeline=2 context=3 data=1 expert=3", "tensor=3 pipeline=5 context=1 data=4 expert=3",
        "tensor=1 pipeline=3 context=1 data=5 expert=5", "tensor=3 pipeline=1 context=1 data=5 expert=1",
    };
    enum { LAYOUTS = sizeof layouts / sizeof *layouts, RANKS = 64, NODES = RANKS / 4 };
    for (int i = 0; i < 6 * LAYOUTS; i++) {
        int size = i % 2 == 0 ? 8 : 4; // GPUs of a node
        Config config = {.hardware.gpus_per_node = size, .parallel.placement = i / 2 % 3, .model.experts = 8};
        Hardware hardware = {0};
        ParallelConfig *parallel = &config.parallel;
        int64_t *const keys[] = {&parallel->tensor, &parallel->pipeline, &parallel->context, &parallel->data,
                                 &parallel->expert};
        const char *text = layouts[i / 6];
        for (int k = 0; k < 5; k++) {
            text = strchr(text, '=') + 1;
            *keys[k] = atoi(text);
        }
        int world = (int)config_world(&config);
        assert_true(world <= RANKS);
        StagePlace *places = hardware_places(&hardware, &config);
        for (int at = 0; at < RANK_GROUPS * (int)parallel->pipeline; at++) {
            int kind = at % RANK_GROUPS, stage = at / RANK_GROUPS;
            int on[2 * RANKS][NODES] = {{0}}, of[2 * RANKS] = {0}, own[2 * RANKS] = {0};
            int near = 0, most = 0, crowd = 0, groups = 0, parts = 0;
            for (int r = 0; r < world; r++) {
                int g = group_of(parallel, kind, r);
                on[g][r / size]++, of[g]++, own[g] = topology_coordinates(parallel, r).stage == stage;
            }
            for (int node = 0; node * size < world; node++) {
                int leaving = 0, others = 0;
                for (int g = 0; g < 2 * RANKS; g++) {
                    groups += node == 0 && own[g], parts += own[g] && on[g][node] > 0;
                    if (on[g][node] == 0 || on[g][node] == of[g]) continue;
                    if (own[g]) near = on[g][node] > near ? on[g][node] : near;
                    leaving += own[g], others += !own[g];
                }
                most = leaving > most ? leaving : most;
                if (leaving > 0 && leaving + others > crowd) crowd = leaving + others;
            }
            const GroupPlace *place = &places[stage].of[kind];
            assert_int_equal(place->near, near);
            assert_int_equal(place->leaving, most);
            assert_int_equal(place->crowd, crowd);
            assert_int_equal(place->nodes, (parts + groups - 1) / groups);
        }
        free(places);
    }
}

// ---- figures of the big models --------------------------------------------------------------------------------------

TEST(flops_per_token_count_attention_in_full_and_causally) {
    Config llama = loaded(LLAMA, ""), gpt = loaded(GPT, "");
    assert_true(fabs(model_flops_per_token(&llama, true) - 406.239e9) < 0.5e6);
    assert_true(fabs(model_flops_per_token(&llama, false) - 398.186e9) < 0.5e6);
    assert_true(fabs(model_flops_per_token(&gpt, true) - 596.855e9) < 0.5e6);
    assert_true(fabs(model_flops_per_token(&gpt, false) - 587.040e9) < 0.5e6);
}

// Computed by hand from the sizes: a token's products are those of the active parameters without norms and embedding.
TEST(a_mixture_computes_a_token_with_its_active_parameters) {
    Config mixtral = loaded("configs/mistral_7b.yaml", "model.vocab=32000 model.experts=8 model.experts_per_token=2");
    Config qwen = loaded("configs/qwen3_8b.yaml", "model.hidden=2048 model.layers=48 model.kv_heads=4 model.ffn=6144 "
                                                  "model.experts=128 model.experts_per_token=8 model.expert_ffn=768");
    Config *both[] = {&mixtral, &qwen};
    const int64_t total[] = {INT64_C(46702792704), INT64_C(30532122624)};
    const int64_t active[] = {INT64_C(12879925248), INT64_C(3353032704)};
    for (int i = 0; i < 2; i++) {
        const ModelConfig *m = &both[i]->model;
        TensorTable table = model_table(&llama_model, m);
        assert_int_equal(table_parameters(&table, 0, table.count), total[i]);
        assert_int_equal(config_active_parameters(m, total[i]), active[i]);
        int64_t norms = m->layers * (2 * m->hidden + (m->qk_norm ? 2 * m->head_dim : 0)) + m->hidden;
        double attention = 12.0 * (double)(m->layers * m->heads * m->head_dim * m->seq_len);
        double products = 6.0 * (double)(active[i] - norms - m->vocab * m->hidden);
        assert_true(fabs(model_flops_per_token(both[i], true) / (products + attention) - 1) < 1e-12);
        table_free(&table);
    }
}

TEST(parameters_of_the_stages_add_up_to_the_model) {
    AutoMade llama = made(LLAMA, ""), gpt = made(GPT, "");
    const int64_t layer = INT64_C(809517056); // 4 h h + 3 h f + 2 h
    assert_int_equal(llama.plan.parameters, INT64_C(65285660672));
    assert_int_equal(llama.plan.stage[3].parameters, 10 * layer);
    assert_int_equal(llama.plan.stage[0].parameters, 10 * layer + 32000 * 8192);
    assert_int_equal(llama.plan.stage[7].parameters, 10 * layer + 32000 * 8192 + 8192);
    assert_int_equal(gpt.plan.parameters, INT64_C(96235077120));
    // The tied head counts on the stage of the embedding, so the last stage only adds its final norm.
    assert_int_equal(gpt.plan.stage[7].parameters - gpt.plan.stage[3].parameters, 2 * 9984);
}

TEST(states_take_18_bytes_a_parameter_in_bf16_and_16_in_fp32) {
    for (int full = 0; full < 2; full++) {
        AutoMade all = made(LLAMA, full ? "train.precision=fp32" : "");
        const int64_t *middle = all.plan.stage[3].memory.bytes, *first = all.plan.stage[0].memory.bytes,
                      *last = all.plan.stage[7].memory.bytes;
        // On one of four tensor ranks; norms are not split; the vocabulary is padded to 32256.
        int64_t elements = 10 * ((INT64_C(809517056) - 2 * 8192) / 4 + 2 * 8192), embedding = 32256 / 4 * 8192;
        assert_int_equal(middle[MEMORY_WEIGHTS], elements * (full ? 4 : 2));
        assert_int_equal(middle[MEMORY_GRADIENTS], elements * 4);
        assert_int_equal(middle[MEMORY_MASTERS], full ? 0 : elements * 4);
        assert_int_equal(middle[MEMORY_OPTIMIZER], elements * 8);
        // The extra memory of the end stages has its own category: the embedding on the first, and the final norm and
        // the output matrix on the last.
        int64_t each = full ? 16 : 18;
        for (int c = MEMORY_WEIGHTS; c < MEMORY_EMBEDDING; c++)
            assert_true(first[c] == middle[c] && last[c] == middle[c]);
        assert_int_equal(middle[MEMORY_EMBEDDING], 0);
        assert_int_equal(first[MEMORY_EMBEDDING], embedding * each);
        assert_int_equal(last[MEMORY_EMBEDDING], (embedding + 8192) * each);
        const StateBytes *states = &all.plan.stage[0].states;
        assert_int_equal(states->moments, (elements + embedding) * 8);
        assert_int_equal(states_total(states), (elements + embedding) * each);
        AutoMade cut = made(LLAMA, full ? "parallel.data=4 train.precision=fp32" : "parallel.data=4");
        for (int c = MEMORY_WEIGHTS; c < MEMORY_EMBEDDING; c++) // data ranks share moments and masters
            assert_int_equal(cut.plan.stage[3].memory.bytes[c], middle[c] / (c < MEMORY_MASTERS ? 1 : 4));
    }
}

// The matrix of a tied head: a copy with all its states on a separate last stage; only a second gradient on the
// embedding's stage.
TEST(a_tied_head_carries_the_embedding_again) {
    AutoMade all = made(GPT, ""), alone = made(GPT, "parallel.pipeline=1");
    int64_t matrix = INT64_C(51200) / 4 * 9984, positions = INT64_C(2048) * 9984, norm = 2 * 9984;
    assert_int_equal(all.plan.stage[0].memory.bytes[MEMORY_EMBEDDING], (matrix + positions) * 18);
    assert_int_equal(all.plan.stage[7].memory.bytes[MEMORY_EMBEDDING], (matrix + norm) * 18);
    assert_int_equal(alone.plan.stage[0].memory.bytes[MEMORY_EMBEDDING], (matrix + positions + norm) * 18 + matrix * 4);
}

// ---- activations ----------------------------------------------------------------------------------------------------

TEST(llama_bundle_is_12h_4kv_6f_and_the_statistics_of_flash) {
    AutoMade all = made(LLAMA, "schedule.micro_batch=4 schedule.bpipe=on");
    // 2048 * 4 rows over 4 tensor ranks: 2048; (12 + 4) h + 6 f = 263168; flash 4 a s b / t.
    const int64_t layer = INT64_C(2048) * 263168 + INT64_C(4) * 64 * 2048, message = INT64_C(2048) * 8192 * 2;
    // Tensor ranks map partial sums, two gathered operands and received rows, each of all rows, and a page of flags.
    const int64_t mapped = INT64_C(4) * 4 * message + COMM_FLAGS * 4;
    const PlanStage *stage = all.plan.stage;
    for (int s = 0; s < 8; s++) {
        bool ends =
            s == 0 || s == 7; // the last stage keeps its output's gradient, and its partner's slots are as large
        assert_int_equal(stage[s].at.bundle_bytes, 10 * layer + (s == 7 ? message : 0));
        assert_int_equal(stage[s].slot_bytes, 10 * layer + (ends ? message : 0));
        assert_true(stage[s].own_slots + stage[s].lent_slots <= 5);
        assert_int_equal(stage[s].memory.bytes[MEMORY_OWN_SLOTS], stage[s].own_slots * stage[s].slot_bytes);
        assert_int_equal(stage[s].memory.bytes[MEMORY_LENT_SLOTS], stage[s].lent_slots * stage[s].slot_bytes);
        // Per neighbour two directions of two buffers.
        assert_int_equal(stage[s].memory.bytes[MEMORY_MESSAGES], (ends ? 4 : 8) * message + mapped);
    }
    assert_int_equal(stage[0].own_slots, 5);
    assert_int_equal(stage[7].own_slots, 1);
    assert_int_equal(stage[0].host_slots, 0);
}

TEST(gpt_bundle_is_32_s_b_h_over_t) {
    AutoMade all = made(GPT, "schedule.micro_batch=2 attention.mode=recompute"),
             quadratic = made(GPT, "schedule.micro_batch=2 attention.mode=none");
    const int64_t layer = INT64_C(32) * 2048 * 2 * 9984 / 4;
    assert_int_equal(all.plan.stage[2].slot_bytes, 10 * layer);
    assert_int_equal(quadratic.plan.stage[2].slot_bytes, 10 * (layer + INT64_C(2) * 104 * 2048 * 2048 * 2 / 4));
    // 1F1B: p - s microbatches in flight. Slots are not enlarged for a partner that lends no memory.
    for (int s = 0; s < 8; s++) {
        assert_int_equal(all.plan.stage[s].own_slots, 8 - s);
        assert_int_equal(all.plan.stage[s].lent_slots, 0);
        assert_int_equal(all.plan.stage[s].slot_bytes, all.plan.stage[s].at.bundle_bytes);
    }
}

TEST(logits_and_tokens_lie_on_the_stages_that_use_them) {
    AutoMade all = made(LLAMA, "schedule.micro_batch=4");
    const int64_t message = INT64_C(2048) * 8192 * 2, rows = 8192;
    // Norm, two stream gradients, logits of 32256 / 4 columns; per row three statistics of this and of all four ranks.
    int64_t head = 3 * message + rows * (32256 / 4) * 2 + rows * 3 * 4 * (1 + 4);
    for (int s = 0; s < 8; s++) {
        const int64_t *bytes = all.plan.stage[s].memory.bytes;
        assert_int_equal(bytes[MEMORY_HEAD], s == 7 ? head : 0);
        assert_int_equal(bytes[MEMORY_DATA], (s == 0 ? 1 : s == 7 ? 2 : 0) * 32 * rows * 4);
    }
}

// Receive buffers for pieces of 16 MiB: three tensor ranks send a quarter of a piece each; the other data rank sends a
// half, four pieces at a time; the other end of the pipeline sends a half.
TEST(sums_that_ranks_make_themselves_take_workspace) {
    const int64_t mib = 1 << 20, tensor = 12 * mib, data = 4 * 8 * mib, tied = 8 * mib;
    Backend cpu = {.own_sums = true};
    AutoMade none = made(LLAMA, "parallel.collectives=nccl parallel.data=2"),
             llama = made_for(cpu, LLAMA, "parallel.collectives=nccl parallel.data=2");
    AutoMade without = made(GPT, "parallel.collectives=nccl"), gpt = made_for(cpu, GPT, "parallel.collectives=nccl");
    for (int s = 0; s < 8; s++) {
        int64_t edges = none.plan.stage[s].memory.bytes[MEMORY_MESSAGES];
        assert_int_equal(llama.plan.stage[s].memory.bytes[MEMORY_MESSAGES], edges + tensor + data);
        edges = without.plan.stage[s].memory.bytes[MEMORY_MESSAGES];
        bool end = s == 0 || s == 7;
        assert_int_equal(gpt.plan.stage[s].memory.bytes[MEMORY_MESSAGES], edges + tensor + (end ? tied : 0));
    }
}

// The operand and the result of every message pass through host memory, and the host does the sums. With overlap, a
// gather and a sum can be in flight at the same time.
TEST(ranks_that_share_a_gpu_need_host_memory) {
    AutoMade with = made(LLAMA, "hardware.share_gpu=true checkpoint.every=0 parallel.overlap=off"),
             overlap = made(LLAMA, "hardware.share_gpu=true checkpoint.every=0 parallel.overlap=on"),
             strips = made(LLAMA, "hardware.share_gpu=true checkpoint.every=0 parallel.overlap=4");
    AutoMade without = made(LLAMA, "checkpoint.every=0 parallel.collectives=nccl");
    int64_t block = INT64_C(2048) * 8192 / 4 * 2, passing = (4 + 1) * block, sums = passing + (12 << 20);
    for (int s = 0; s < 8; s++) {
        const PlanStage *stage = &without.plan.stage[s];
        int64_t batch =
            INT64_C(2048) * 4 * (s == 7 ? 2 + 128 : 2); // a microbatch's tokens and targets, a step's losses
        assert_int_equal(stage->buffer_bytes, batch);
        assert_int_equal(with.plan.stage[s].buffer_bytes, batch + sums + stage->memory.bytes[MEMORY_MESSAGES]);
        assert_int_equal(overlap.plan.stage[s].buffer_bytes, with.plan.stage[s].buffer_bytes + passing);
        assert_int_equal(strips.plan.stage[s].buffer_bytes, with.plan.stage[s].buffer_bytes + 3 * sums);
    }
}

// The plan counts the device's own memory, and rounds lent memory up to pages.
TEST(what_a_device_adds_is_counted) {
    Backend gpu = {.own_bytes = 64 << 20, .lent_page = 2 << 20};
    AutoMade plain = made(LLAMA, "schedule.bpipe=on"), all = made_for(gpu, LLAMA, "schedule.bpipe=on");
    for (int s = 0; s < 8; s++) {
        const int64_t *bytes = plain.plan.stage[s].memory.bytes, *more = all.plan.stage[s].memory.bytes;
        int64_t lent = more[MEMORY_LENT_SLOTS], asked = bytes[MEMORY_LENT_SLOTS];
        assert_int_equal(more[MEMORY_WORKSPACE], bytes[MEMORY_WORKSPACE] + (64 << 20));
        assert_true(lent >= asked && lent - asked < 2 << 20 && lent % (2 << 20) == 0 && (s < 5 || asked > 0));
    }
}

TEST(slots_are_the_larger_of_uneven_pairs) {
    AutoMade all = made(LLAMA, "parallel.layers=[20,10,10,10,10,10,5,5] schedule.bpipe=on");
    const PlanStage *stage = all.plan.stage;
    assert_int_equal(stage[0].slot_bytes, 20 * stage[0].at.layer_bundle);
    assert_int_equal(stage[7].slot_bytes, stage[0].slot_bytes);
    assert_int_equal(stage[6].slot_bytes, 10 * stage[0].at.layer_bundle);
}

// A recomputed layer keeps only its input in a slot. It is recomputed in the memory of one layer's bundle.
TEST(recomputed_layers_take_one_stream_of_a_slot) {
    AutoMade plain = made(LLAMA, ""), all = made(LLAMA, "schedule.recompute_layers=[10,4,0,0,0,0,0,0]");
    const PlanStage *with = all.plan.stage, *without = plain.plan.stage;
    const int64_t layer = without[0].at.layer_bundle, stream = without[0].at.message_bytes;
    assert_int_equal(with[0].slot_bytes, 10 * stream);
    assert_int_equal(with[1].slot_bytes, 4 * stream + 6 * layer);
    assert_int_equal(with[2].slot_bytes, without[2].slot_bytes);
    assert_int_equal(with[0].memory.bytes[MEMORY_WORKSPACE], without[0].memory.bytes[MEMORY_WORKSPACE] + layer);
}

TEST(what_a_chunk_has_no_layers_for_is_recomputed_in_another) {
    AutoMade all = made(LLAMA, "parallel.pipeline=2 schedule.name=interleaved schedule.bpipe=off "
                               "parallel.layers=[1,40,9,30] schedule.recompute_layers=[8,6]");
    const PlanStage *stage = all.plan.stage;
    assert_int_equal(stage[0].at.chunk[0].recomputed, 1);
    assert_int_equal(stage[0].at.chunk[1].recomputed, 7);
    assert_int_equal(stage[1].at.chunk[0].recomputed, 3);
    assert_int_equal(stage[1].at.recomputed, 6);
}

// ---- the schedule a configuration asks for --------------------------------------------------------------------------

static void expect_schedule(const char *name, int slots, bool evicts, const char *overrides) {
    Config config = loaded(LLAMA, overrides);
    Error err = {0};
    AutoSchedule *schedule = plan_schedule(&config, &err);
    if (schedule == NULL) fail_msg("%s: %s", overrides, err.text);
    assert_string_equal(schedule->name, name);
    assert_int_equal(schedule->slots, slots);
    assert_int_equal(schedule->microbatches, config_microbatches(&config));
    assert_int_equal(plan_evictions(schedule) > 0, evicts);
}

TEST(schedule_is_the_one_asked_for) {
    expect_schedule("1f1b", 8, false, "schedule.bpipe=off");
    expect_schedule("1f1b", 8, false, "schedule.bpipe=off schedule.slots=2"); // slots mean nothing without BPipe
    expect_schedule("gpipe", 128, false, "schedule.name=gpipe");
    expect_schedule("bpipe", 5, true, "schedule.bpipe=on");
    expect_schedule("bpipe", 6, true, "schedule.bpipe=on schedule.slots=6");
    expect_schedule("bpipe", 2, true, "schedule.bpipe=on schedule.evict_to=host");
    expect_schedule("bpipe", 3, true, "schedule.bpipe=on schedule.evict_to=host schedule.slots=3 schedule.name=gpipe");
    expect_schedule("bpipe", 2, true,
                    "schedule.bpipe=on schedule.evict_to=host schedule.name=gpipe parallel.pipeline=1");
    expect_schedule("bpipe", 1, false, "schedule.bpipe=on schedule.evict_to=host parallel.pipeline=1");
}

TEST(auto_is_on_where_it_evicts_anything) {
    expect_schedule("bpipe", 5, true, "schedule.bpipe=auto");
    expect_schedule("1f1b", 8, false, "schedule.bpipe=auto schedule.slots=8");
    expect_schedule("1f1b", 2, false, "schedule.bpipe=auto parallel.pipeline=2");
    expect_schedule("1f1b", 1, false, "schedule.bpipe=auto parallel.pipeline=1");
    expect_schedule("gpipe", 128, false, "schedule.bpipe=auto schedule.name=gpipe");
}

TEST(bundles_on_the_host_are_counted) {
    AutoMade all = made(LLAMA, "schedule.bpipe=on schedule.evict_to=host");
    for (int s = 0; s < 8; s++) {
        const PlanStage *stage = &all.plan.stage[s];
        assert_int_equal(stage->own_slots, s == 7 ? 1 : 2);
        assert_int_equal(stage->slot_bytes, stage->at.bundle_bytes);
        // 8 - s in flight: those without a slot are on the host, and one more during a swap.
        assert_true(stage->host_slots >= 8 - s - stage->own_slots && stage->host_slots <= 8 - s - stage->own_slots + 1);
    }
}

// ---- the table for people -------------------------------------------------------------------------------------------

static char *printed(const Made *all) {
    return unit_written(plan_print(&all->plan, &all->config, all->schedule, file));
}

TEST(table_says_model_world_and_every_stage) {
    AutoMade all = made(LLAMA, "schedule.bpipe=on schedule.micro_batch=4");
    AutoText *text = printed(&all);
    assert_non_null(strstr(text, "65,285,660,672 parameters"));
    assert_non_null(strstr(text, "32 ranks: pipeline 8 x tensor 4 x data 1"));
    assert_non_null(strstr(text, "bpipe, at most 5 slots a stage"));
    assert_non_null(strstr(text, "by stage, in GiB; own, lent: slots of activations\n"));
    assert_non_null(strstr(text, "\n    0     0-9     8,357 M      5 "));
    assert_non_null(strstr(text, "\n    7   70-79     8,357 M    1+4 "));
    size_t widest = 0;
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > widest) widest = strcspn(line, "\n");
    assert_true(widest <= 146); // no wider than a step line
}

TEST(grid_aligns_numbers_right_and_words_left) {
    char number[32];
    Grid grid = {.columns = 3};
    const char *cells[] = {"what", "n", "note", "1F", "1B", "x", "1F1B", "-", "yy", "2F", "10.5", "", "left over"};
    for (int i = 0; i < COUNT(cells); i++) grid_cell(&grid, "%s", cells[i]);
    char *text = unit_written(grid_print(&grid, file)), *narrow;
    grid.width = 16;
    grid_fit(&grid, 1); // it is as wide: stays
    grid.width = 12;
    grid_fit(&grid, 1);
    narrow = unit_written(grid_print(&grid, file));
    assert_string_equal(narrow, "what  note\n1F    x\n1F1B  yy\n2F    \n");
    grid_free(&grid);
    free(narrow);
    assert_string_equal(text, "what     n  note\n"
                              "1F      1B  x\n"
                              "1F1B     -  yy\n"
                              "2F    10.5  \n");
    free(text);
    assert_string_equal(grid_count(-1234567, number), "-1,234,567");
    assert_string_equal(grid_count(999, number), "999");
    assert_string_equal(grid_bytes(GIB * 3 / 2, number), "1.50 GiB");
    assert_string_equal(grid_bytes(GIB / 2, number), "512.0 MiB");
}

// On Hopper a deterministic backward is cut by sequences, then by groups of heads; each call still has enough tiles.
TEST(flash_backwards_are_cut_where_they_store_scores) {
    static const int64_t cases[][7] = {{4, 2048, 16, 16, 4, 16, 16}, {8, 2048, 16, 16, 4, 16, 16},
                                       {8, 2048, 64, 8, 1, 64, 8},   {1, 32768, 16, 16, 1, 4, 4},
                                       {2, 32768, 16, 2, 1, 8, 1},   {4, 128, 2, 2, 4, 2, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t *c = cases[i];
        AttentionShape shape = {
            .batch = c[0], .seq = c[1], .heads = c[2], .kv_heads = c[3], .head_dim = 128, .mode = ATTENTION_FLASH};
        AttentionShape part = attention_flash_part(&shape, 90), whole = attention_flash_part(&shape, 100);
        assert_int_equal(part.batch, c[4]);
        assert_int_equal(part.heads, c[5]);
        assert_int_equal(part.kv_heads, c[6]);
        assert_int_equal(whole.batch * whole.heads, c[0] * c[2]);
        assert_true(attention_flash_workspace(&shape, 90) >= part.batch * part.heads * c[1] * c[1] * 2);
        assert_true(attention_flash_workspace(&shape, 90) < 2 * part.batch * part.heads * c[1] * (c[1] + 512) * 2);
    }
}

// Kinds of calls end at 64 queries, with room for documents of eight on average, in pieces of any length.
TEST(short_documents_of_a_piece_are_one_call_of_flash) {
    static const int64_t cases[][3] = {{8, 8, 1}, {40, 40, 5}, {64, 64, 8}, {128, 64, 16}, {8192, 64, FLASH_DOCUMENTS}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int range = 0; range < 2; range++) {
            AttentionShape shape = {.batch = 2, .seq = cases[i][0], .heads = 2, .kv_heads = 2, .documents = true};
            AttentionShape kind, last = {0};
            shape.first = range;
            for (int k = 0; attention_flash_kind(&shape, k, &kind); k++) {
                assert_true(k == 0 || last.first > 0 || kind.seq < last.seq);
                last = kind;
            }
            assert_int_equal(last.seq, cases[i][1]);
            assert_int_equal(last.batch, cases[i][2]);
            assert_int_equal(last.first, 0);
        }
}

TEST(an_emulated_stage_computes_the_rows_of_all_expert_ranks) {
    Backend *be = assert_made(backend_cpu_create(PRECISION_FP32, 1, &unit_error));
    AutoMade all = made_for(*be, "configs/moe_tiny.yaml", "train.precision=fp32");
    Hardware hardware = {.cpu = true};
    Emulation emulation;
    assert_succeeds(emulation_create(&emulation, &all.config, model_of(&all.config), all.schedule, all.plan.stage,
                                     &hardware, be, &unit_error));
    assert_int_equal(emulation.stage.pass.experts->size, 2);
    emulation_destroy(&emulation);
    be->destroy(be);
}
