// Bytes of other programs, compared with sums by hand.
#include "plan/foreign.h"
#include "config/family.h"
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A model of GPT or LLaMA of four layers on one stage, with two sequences of 32 tokens in a microbatch.
static Config of(const char *family, int program, int64_t tensor) {
    return (Config){.program = program,
                    .model = {.family = family_find(family),
                              .hidden = 64,
                              .layers = 4,
                              .heads = 4,
                              .kv_heads = 4,
                              .head_dim = 16,
                              .ffn = 256,
                              .vocab = 512,
                              .seq_len = 32},
                    .parallel = {.pipeline = 1, .tensor = tensor, .data = 2, .context = 1, .sequence = true},
                    .schedule = {.micro_batch = 2}};
}

static const StageShape whole = {
    .shape.attention.mode = ATTENTION_FLASH, .stages = 1, .chunks = 1, .layers = 4, .chunk = {{.layers = 4}}};

static double bundle_of(const Config *config, const StageShape *at) {
    return (double)foreign_bundle(config, at) / foreign_programs[config->program - 1].error;
}

// Korthikanti et al., table 2: 34 s b h + 5 a s s b. Without dropout, two masks of s b h are not kept, and of the
// scores only the output of softmax.
TEST(a_layer_of_gpt_keeps_34_bytes_a_value_less_the_masks_of_dropout) {
    double values = 2 * 32 * 64;
    Config config = of("gpt", 1, 1);
    assert_true(fabs(bundle_of(&config, &whole) - 4 * 32 * values) < 2);
    config = of("gpt", 1, 4);
    assert_true(fabs(bundle_of(&config, &whole) - 4 * 8 * values) < 2);
    config.parallel.sequence = false; // norms are whole on every rank
    assert_true(fabs(bundle_of(&config, &whole) - 4 * (24.0 / 4 + 8) * values) < 2);
    StageShape stored = whole;
    stored.shape.attention.mode = ATTENTION_NONE;
    double scores = bundle_of(&config, &stored) - bundle_of(&config, &whole);
    assert_true(fabs(scores - 4 * 2 * (4.0 / 4) * 32 * 32 * 2) < 2);
}

TEST(a_recomputed_layer_keeps_its_input_alone) {
    Config config = of("llama", 1, 1);
    StageShape again = whole;
    again.recomputed = 4;
    assert_true(fabs(bundle_of(&config, &again) - 4 * 2 * 2 * 32 * 64) < 2);
}

// Megatron-LM keeps the rows of the experts of a token and what a gated MLP keeps of each, and all queries, keys and
// values of latent attention. This trainer recomputes these, and its rows of experts are not counted.
TEST(experts_and_latent_attention_keep_what_this_trainer_computes_again) {
    Config config = of("llama", 1, 2);
    StageShape mixed = {.stages = 1,
                        .chunks = 1,
                        .layers = 4,
                        .bundle_bytes = 1000,
                        .chunk = {{.layers = 4, .dense = 1, .bytes = 1000}}};
    config.model.experts = 8, config.model.experts_per_token = 3, config.model.expert_ffn = 48;
    double routed = 2 * 32 * 3 * (6 * 48 + 2 * 64) / 2.0, latent = 2 * 32 * 2 * 4 * (2 * 16 + 12) / 2.0;
    assert_true(fabs(bundle_of(&config, &mixed) - (1000 + 3 * routed)) < 2);
    StageShape kept = mixed; // more rows than the program keeps: three layers' are not counted
    kept.layer_bundle = 1000000, kept.chunk[0].bytes = kept.bundle_bytes = 3 * kept.layer_bundle + 1000;
    assert_true(fabs(bundle_of(&config, &kept) - (1000 + 3 * routed)) < 2);
    mixed.chunk[0].recomputed = mixed.recomputed = 2; // the dense layer and one with experts
    assert_true(fabs(bundle_of(&config, &mixed) - (1000 + 2 * routed)) < 2);
    config.model.kv_lora = 8, config.model.v_dim = 12;
    assert_true(fabs(bundle_of(&config, &mixed) - (1000 + 2 * (routed + latent))) < 2);
    config.schedule.pointwise_of_stage[0] = RECOMPUTE_POINTWISE; // moe_act: 4 bytes of 6
    assert_true(fabs(bundle_of(&config, &mixed) - (1000 + 2 * (routed + latent - 2 * 32 * 3 * 2 * 48 / 2.0))) < 2);
    config.schedule.pointwise_of_stage[0] = RECOMPUTE_NONE;
    MemoryBytes memory = {0};
    foreign_bytes(&memory, &config, &mixed, 1000000); // one recomputed layer at work
    double work = (double)memory.bytes[MEMORY_WORKSPACE] / foreign_programs[0].error;
    assert_true(fabs(work - (routed + latent)) < 2);
}

// Megatron-LM's distributed optimizer: 6 + 12 / d bytes a parameter. Its last stage keeps logits in fp32.
TEST(states_and_logits_are_those_of_the_program) {
    Config config = of("llama", 1, 1);
    StageShape last = whole;
    MemoryBytes memory = {0};
    double error = foreign_programs[0].error, logits = 2 * 32 * 512, matrix = 2 * 512 * 64;
    last.last = true;
    foreign_bytes(&memory, &config, &last, 1000000);
    double head = 4 * logits + fmax(2 * logits, matrix - 2 * logits);
    assert_true(fabs((double)memory_total(&memory) - error * (1e6 * (6 + 12 / 2.0) + head)) < 4);
    config.program = 2; // FSDP in one stage: 16-bit weights are whole, gradients only of two layers
    memset(&memory, 0, sizeof memory);
    foreign_bytes(&memory, &config, &last, 1000000);
    double states = memory.bytes[MEMORY_WEIGHTS] + memory.bytes[MEMORY_OPTIMIZER] + memory.bytes[MEMORY_GRADIENTS];
    assert_true(fabs(states / foreign_programs[1].error - 1e6 * (2 + 16 / 2.0 + 2 * 6 / 4.0)) < 4);
}

// All copies share what foreign_bytes counts. ZeRO-3 keeps 16-bit weights and gradients of two layers.
TEST(sharded_states_are_16_or_18_bytes_a_parameter_over_the_ranks_that_share_them) {
    for (int program = 1; program <= 2; program++) {
        Config config = of("llama", program, 1);
        MemoryBytes memory = {0};
        double error = foreign_programs[program - 1].error, all = program == 1 ? 18 : 16;
        foreign_bytes(&memory, &config, &whole, 1000000);
        int64_t states = memory.bytes[MEMORY_WEIGHTS] + memory.bytes[MEMORY_OPTIMIZER] + memory.bytes[MEMORY_GRADIENTS];
        assert_true(llabs(states - foreign_states(&config, &whole, 1000000, 2, false)) < 4);
        assert_true(fabs((double)foreign_states(&config, &whole, 1000000, 8, true) / error -
                         1e6 * (all / 8 + 2 * 6 / 4.0)) < 4);
    }
}

// Megatron-LM recomputes norms, torchtitan also the activation.
TEST(selective_recomputation_keeps_no_output_of_a_norm) {
    for (int program = 1; program <= 2; program++) {
        Config config = of("llama", program, 1);
        double all = bundle_of(&config, &whole), rows = 4 * 2 * 32;
        config.schedule.pointwise_of_stage[0] = RECOMPUTE_POINTWISE;
        double less = rows * (4 * 64 + (program == 1 ? 0 : 4 * 256));
        assert_true(fabs(all - less - bundle_of(&config, &whole)) < 4);
    }
}

TEST(an_unknown_program_and_what_a_program_lacks_are_refused) {
    Config config;
    memset(&config, 0, sizeof config);
    config_set_attention(&config, ATTENTION_FLASH);
    assert_succeeds(foreign_take(&config, "nanotron", false, &unit_error));
    assert_string_equal(foreign_programs[config.program - 1].word, "nanotron");
    assert_refused(foreign_take(&config, "deepspeed", false, &unit_error), EXIT_USAGE,
                   "use megatron, torchtitan or nanotron");
    config.model.experts = 8, config.schedule.pointwise_of_stage[0] = RECOMPUTE_EXPERTS;
    assert_succeeds(foreign_take(&config, "megatron", false, &unit_error));
    assert_refused(foreign_take(&config, "torchtitan", false, &unit_error), EXIT_USAGE,
                   "schedule.recompute: torchtitan does not support this");
}
