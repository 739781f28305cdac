// A run starts only if the config.json of its checkpoints can describe the trained model.
#include "checkpoint/hf_config.h"
#include "config_file.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LLAMA "family: llama, hidden: 64, layers: 8, heads: 8, ffn: 96, vocab: 257, seq_len: 32"

TEST(every_model_that_can_be_trained_can_be_described) {
    static const char *const models[] = {
        LLAMA,
        LLAMA ", kv_heads: 2, head_dim: 12, tie_embeddings: true, norm_eps: 1.0e-6, rope_theta: 500000",
        LLAMA ", qkv_bias: true, kv_heads: 4",
        LLAMA ", qk_norm: true, head_dim: 16",
        LLAMA ", rope_scaling: linear, rope_factor: 2.5",
        LLAMA ", rope_scaling: llama3, rope_factor: 8, rope_original: 16, rope_low_freq: 2, rope_high_freq: 5",
        LLAMA ", rope_scaling: yarn, rope_factor: 4, rope_original: 16, rope_beta_fast: 30, rope_attention: 1.2",
        LLAMA ", experts: 8, experts_per_token: 2",
        LLAMA ", experts: 8, experts_per_token: 2, expert_ffn: 32, qk_norm: true, head_dim: 16",
        LLAMA ", experts: 8, experts_per_token: 2, expert_ffn: 32, qk_norm: true, router_normalize: false",
        "family: gpt, hidden: 64, layers: 8, heads: 8, ffn: 100, vocab: 257, seq_len: 32, tie_embeddings: false",
    };
    static Config config;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char text[400];
        snprintf(text, sizeof text, "model: {%s}\n" DATA, models[i]);
        config_file_load_well(&config, text, NULL);
        assert_succeeds(hf_config_check(&config, &unit_error));
    }
}

static bool writes(const char *model, const char *words) {
    static Config config;
    char text[400];
    snprintf(text, sizeof text, "model: {" LLAMA ", %s}\n" DATA, model);
    config_file_load_well(&config, text, NULL);
    AutoText *written = unit_written(hf_config_write(&config, -1, file));
    bool found = strstr(written, words) != NULL;
    return found;
}

TEST(yarns_two_lengths_are_written_where_they_give_the_factor) {
    static const char both[] = "rope_scaling: yarn, rope_factor: 2, rope_original: 16";
    static const char one[] = "rope_scaling: yarn, rope_factor: 4, rope_original: 16";
    assert_true(writes(both, "\"max_position_embeddings\": 32") &&
                writes(both, "\"original_max_position_embeddings\": 16"));
    assert_true(writes(one, "\"max_position_embeddings\": 16"));
    assert_false(writes(one, "original_max_position_embeddings"));
}

TEST(a_model_that_would_read_back_as_another_is_refused) {
    static Config config;
    config_file_load_well(&config, BASE, NULL);
    config.model.qkv_bias = config.model.qk_norm = true; // no architecture combines these, so config_load refuses it
    assert_refused(hf_config_check(&config, &unit_error), EXIT_USAGE,
                   "a checkpoint's config.json cannot express this model: model.q");
    assert_contains(unit_error.text, "or leave checkpoint.dir empty");
}

TEST(what_config_json_lacks_is_refused) {
    static const char *const rows[][2] = {
        {"rope_share: 0.5", "model.rope_share: a checkpoint's config.json cannot express this"},
        {"experts: 8, experts_per_token: 2, expert_ffn: 32", "model.expert_ffn is 96 there and 32 here"},
        {"experts: 8, experts_per_token: 2, router_normalize: false", "model.router_normalize: a checkpoint's"},
        {"experts: 8, experts_per_token: 2, expert_ffn: 32, router: sigmoid, shared_ffn: 48",
         "model.shared_ffn: a checkpoint's config.json has only multiples of model.expert_ffn; use a multiple of 32"},
    };
    static Config config;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[400];
        snprintf(text, sizeof text, "model: {" LLAMA ", %s}\n" DATA, rows[i][0]);
        config_file_load_well(&config, text, NULL);
        assert_refused(hf_config_check(&config, &unit_error), EXIT_USAGE, rows[i][1]);
    }
}

TESTS_BETWEEN(config_file_create, config_file_remove)

TEST(the_tokenizer_of_bytes_has_blanks_after_its_commas) {
    static Config config;
    HfTokenizer tokenizer;
    config_file_load_well(&config, "model: {" LLAMA "}\n" DATA, NULL);
    assert_succeeds(hf_tokenizer_load(&tokenizer, &config, &unit_error));
    assert_int_equal(tokenizer.end, 256);
    assert_contains(tokenizer.file[0].text, "\"vocab\": {\"\u0100\": 0, \"\u0101\": 1, ");
    assert_contains(tokenizer.file[0].text, ", \"a\": 97, \"b\": 98, ");
    hf_tokenizer_free(&tokenizer);
}
