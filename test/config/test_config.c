// Configuration: what is accepted and what it means.
#include "config_file.h"
#include "schedules.h"
#include "unit.h"

#include <string.h>

TEST(values_reach_their_fields) {
    static Config c;
    config_file_load_well(
        &c,
        "\xEF\xBB\xBFmodel: {family: gpt, hidden: 64, layers: 7, heads: 8, ffn: 96, vocab: 257, seq_len: 32, "
        "norm_eps: 1e-6}\r\n"
        "data:\r\n  train: data/a b.bin\r\n  val: 'it''s'\r\n  val_every: 0\r\n"
        "parallel: {pipeline: 2, tensor: 2, sequence: Yes, placement: adjacent, layers: [3, 4]}\r\n"
        "schedule: {bpipe: on, slots: 3, micro_batch: 2, evict_to: host}\r\n"
        "train: {lr: 3E-4, beta1: .5, seed: 9007199254740992, precision: \"bf16\", global_batch: 8, "
        "skip_bad_steps: 3, skip_outlier_z: 6.5}\r\n"
        "hardware: {device: cpu, peak_tflops: 0.25, share_gpu: on}\r\nlog:\r\n",
        NULL);
    assert_int_equal(c.model.family, family_find("gpt"));
    assert_int_equal(c.model.kv_heads, 8);
    assert_true(c.model.norm_eps == 1e-6);
    assert_string_equal(c.data.train[0].path, "data/a b.bin");
    assert_string_equal(c.data.val, "it's");
    assert_true(c.parallel.sequence);
    assert_int_equal(c.parallel.placement, PLACEMENT_ADJACENT);
    assert_int_equal(c.parallel.layers_per_stage[0], 3);
    assert_int_equal(c.parallel.layers_per_stage[1], 4);
    assert_int_equal(c.schedule.slots, 3);
    assert_int_equal(c.schedule.bpipe, BPIPE_ON);
    assert_int_equal(c.schedule.evict_to, EVICT_TO_HOST);
    assert_true(c.train.lr == 3e-4 && c.train.beta1 == 0.5);
    assert_int_equal(c.train.seed, INT64_C(9007199254740992));
    assert_int_equal(c.train.precision, PRECISION_BF16);
    assert_true(c.train.skip_bad_steps == 3 && c.train.skip_outlier_z == 6.5);
    assert_int_equal(c.hardware.device, DEVICE_CPU);
    assert_true(c.hardware.peak_tflops == 0.25 && c.hardware.share_gpu);
    assert_int_equal(config_microbatches(&c), 4);
    assert_int_equal(config_world(&c), 4);
    assert_int_equal(config_padded_vocab(&c), 512);
}

TEST(overrides_win_in_the_order_given_and_are_named_as_the_place) {
    static Config c;
    Error err;
    char where[600], line[300];
    const char *overrides[] = {
        "train.steps=7",           "train.steps=9",        "data.train=*.bin",     "data.val=",
        "log.metrics=\"a=b # c\"", "checkpoint.dir=x # y", "parallel.layers=auto", "train.lr=1e-5",
        "log.metrics='a=b'"};
    assert_int_equal(config_file_load(&c, BASE "train: {steps: 5,\n lr: 3}\n", overrides, 9, &err), 0);
    assert_int_equal(c.train.steps, 9);
    assert_true(c.train.lr == 1e-5);
    assert_string_equal(c.data.train[0].path, "*.bin");
    assert_string_equal(c.data.val, "");
    assert_string_equal(c.log.metrics, "a=b");
    assert_string_equal(c.checkpoint.dir, "x # y");
    config_where(&c, "train.steps", where, sizeof where);
    assert_string_equal(where, "-o train.steps");
    config_where(&c, "model.hidden", where, sizeof where);
    snprintf(line, sizeof line, "%s:1", config_file_path);
    assert_string_equal(where, line);
    config_where(&c, "train.seed", where, sizeof where);
    assert_string_equal(where, config_file_path);
    assert_int_equal(config_error(&c, "train.steps", &err, "is %d", 9), -1);
    assert_string_equal(err.text, "-o train.steps: is 9");
}

TEST(data_is_one_glob_or_a_blend_of_several) {
    static Config c;
    config_file_load_well(&c, BASE, NULL);
    assert_int_equal(c.data.train_sources, 1);
    assert_string_equal(c.data.train[0].path, "x.bin");
    assert_true(c.data.train[0].weight == 1.0);
    config_file_load_well(&c, MODEL "data:\n  train:\n    - {path: a b*.bin, weight: 0.7}\n    - path: 'it''s'\n",
                          NULL);
    assert_int_equal(c.data.train_sources, 2);
    assert_string_equal(c.data.train[0].path, "a b*.bin");
    assert_string_equal(c.data.train[1].path, "it's");
    assert_true(c.data.train[0].weight == 0.7 && c.data.train[1].weight == 1.0);
    config_file_load_well(&c, BASE, "data.train=[{path: \"*.bin\", weight: 2}, {weight: 3, path: y.bin}]");
    assert_int_equal(c.data.train_sources, 2);
    assert_string_equal(c.data.train[0].path, "*.bin");
    assert_true(c.data.train[1].weight == 3.0);
    config_file_load_well(&c, MODEL "data: {train: [{path: a, weight: 1}, {path: b, weight: 2}]}\n",
                          "data.train=[ab]*.bin");
    assert_int_equal(c.data.train_sources, 1);
    assert_string_equal(c.data.train[0].path, "[ab]*.bin");
    assert_true(c.data.train[1].path[0] == '\0'); // the override replaces the complete list
    config_file_load_well(&c, MODEL "data: {train: [{path: a, weight: 0.25}]}\n", NULL);
    assert_true(c.data.train[0].weight == 1.0); // a single source gets weight 1, whatever its given weight
}

TEST(true_and_false_are_words_of_on_and_off) {
    static Config c;
    config_file_load_well(&c, BASE "schedule: {bpipe: true, split_backward: No}\nparallel: {pipeline: 8}\n",
                          "model.tie_embeddings=off");
    assert_int_equal(c.schedule.bpipe, BPIPE_ON);
    assert_int_equal(c.schedule.split_backward, SPLIT_OFF);
    assert_string_equal(config_word("model.tie_embeddings", c.model.tie_embeddings), "false");
}

TEST(an_override_never_needs_a_second_one_to_turn_bpipe_off) {
    static Config c;
    config_file_load_well(&c, BASE "schedule: {bpipe: on, slots: 5}\nparallel: {pipeline: 8}\n", "schedule.bpipe=off");
    config_file_load_well(&c, BASE "schedule: {bpipe: off, slots: 1}\nparallel: {pipeline: 8}\n", NULL);
    config_file_load_well(&c, BASE "schedule: {bpipe: on, slots: 1}\nparallel: {pipeline: 8}\n", "parallel.pipeline=1");
    config_file_load_well(&c, BASE "schedule: {bpipe: on, name: gpipe, evict_to: host}\nparallel: {pipeline: 8}\n",
                          NULL);
    config_file_load_well(&c, BASE "parallel: {sequence: true}\n", NULL);
    config_file_load_well(&c, BASE "train: {warmup_steps: 2000, steps: 10}\n", NULL);
}

TEST(integers_have_exponents_and_suffixes) {
    static const struct {
        const char *written;
        int64_t tokens;
    } rows[] = {{"1e12", 1000000000000},
                {"1T", 1000000000000},
                {"300B", 300000000000},
                {"8k", 8000},
                {"1.5K", 1500},
                {"0.3m", 300000},
                {"1500.0e-2", 15},
                {"2.50e1", 25},
                {"1e3k", 1000000},
                {"9007199254740992", 9007199254740992},
                {"9007199254.740992M", 9007199254740992}};
    static Config c;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char override[64];
        snprintf(override, sizeof override, "train.tokens=%s", rows[i].written);
        config_file_load_well(&c, BASE, override);
        assert_int_equal(c.train.tokens, rows[i].tokens);
    }
    config_file_load_well(&c, MODEL "data: {train: x, val_every: 0.0, hellaswag_every: 0k}\n", NULL);
}

// Restates the rule of parallel.layers: auto independently of the code. Layers are spread as evenly as possible.
// Surplus layers go first to stages with neither embedding nor head, and never to the last stage.
TEST(auto_spreads_any_number_of_layers) {
    static Config c;
    config_file_load_well(&c, BASE, NULL);
    c.train.global_batch = 64;
    for (int64_t p = 1; p <= 64; p++)
        for (int64_t layers = p; layers <= 200; layers++) {
            c.model.layers = layers;
            c.parallel.pipeline = p;
            assert_succeeds(config_check(&c, &unit_error));
            int64_t sum = 0, least = layers / p, rest = layers % p, middle = 0;
            for (int64_t s = 0; s < p; s++) {
                int64_t mine = c.parallel.layers_per_stage[s];
                assert_true(mine == least || mine == least + 1);
                if (s > 0 && s < p - 1) middle += mine - least;
                sum += mine;
            }
            assert_int_equal(sum, layers);
            assert_int_equal(middle, p > 2 ? (rest < p - 2 ? rest : p - 2) : 0);
            assert_int_equal(c.parallel.layers_per_stage[p - 1], least);
        }
}

static size_t field_size(KeyType type) {
    switch (type) {
    case KEY_INT: return sizeof(int64_t);
    case KEY_NUMBER: return sizeof(double);
    case KEY_BOOL: return sizeof(bool);
    case KEY_WORD: return sizeof(int);
    case KEY_TEXT: return CONFIG_TEXT;
    case KEY_LIST: break;
    }
    return 0;
}

TEST(every_row_of_the_schema_is_whole) {
    static Config c;
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        Error err = {0};
        assert_int_equal(key->size,
                         key->type == KEY_LIST ? (size_t)key->list->most * key->list->entry : field_size(key->type));
        assert_int_equal(key->type == KEY_LIST, key->list != NULL);
        assert_true(strlen(key->meaning) >= 10 && strlen(key->meaning) <= 90);
        assert_true(key->min <= key->max);
        bool words = key->type == KEY_WORD || (key->type == KEY_LIST && key->list->parts[0].type == KEY_WORD);
        assert_true(words ? key->words != NULL : key->words == NULL || key->type == KEY_INT);
        if (key->def != NULL && config_set_default(&c, key, &err) != 0) fail_msg("%s: %s", key->name, err.text);
        for (int j = 0; j < i; j++) {
            const ConfigKey *other = &config_keys[j];
            assert_string_not_equal(key->name, other->name);
            assert_true(key->offset >= other->offset + other->size || other->offset >= key->offset + key->size);
        }
    }
}

TEST(required_are_the_model_and_the_data_and_nothing_else) {
    static const char *const required[] = {"model.family", "model.hidden", "model.layers",  "model.heads",
                                           "model.ffn",    "model.vocab",  "model.seq_len", "data.train"};
    int found = 0;
    for (int i = 0; i < config_key_count; i++) found += config_keys[i].def == NULL;
    assert_int_equal(found, 8);
    for (int i = 0; i < 8; i++) assert_null(config_find(required[i])->def);
}

static char *json_of(const Config *config) { return unit_written(config_write_json(config, file)); }

// Clears fields that may differ in equivalent configurations: the keys' places, and whether layers were listed.
static void forget_places(Config *config) {
    memset(config->place, 0, sizeof config->place);
    config->parallel.layers_given = 0;
}

TEST(json_reads_back_as_the_same_configuration) {
    static const char *const texts[] = {
        BASE,
        BASE
        "train: {lr: 0.1234567890123456789, eps: 1e-300, beta2: 0.3, global_batch: 24, seed: 9007199254740991}\n"
        "parallel: {pipeline: 3, tensor: 4, data: 2, sequence: true}\nschedule: {bpipe: on, slots: 4}\n"
        "log: {metrics: \"quote \\\" back \\\\ slash \xC3\xA9 end\"}\nhardware: {memory_gib: 79.6, peak_tflops: 312}\n",
        BASE "train: {batch_ramp: [[3, 16], [40, 24]], global_batch: 8}\n",
        BASE "train: {batch_ramp: [[0, 16], [1k, 8]]}\n",
        MODEL "data: {train: [{path: \"a \\\"b\", weight: 0.1}, {path: '*', weight: 12345.6789}, {path: c}]}\n",
    };
    static Config first, second;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        config_file_load_well(&first, texts[i], NULL);
        char *json = json_of(&first);
        assert_null(strchr(json, '\n'));
        config_file_load_well(&second, json, NULL);
        free(json);
        forget_places(&first);
        forget_places(&second);
        assert_memory_equal(&first, &second, sizeof first);
    }
    config_file_load_well(&first, texts[1], NULL);
    AutoText *json = json_of(&first);
    assert_non_null(strstr(json, "\"kv_heads\":8,"));
    assert_non_null(strstr(json, "\"layers\":[3,3,2]"));
    assert_non_null(strstr(json, "\"memory_gib\":79.6,"));
    assert_non_null(strstr(json, "\"rope_attention\":1,\"rope_mscale\":0,\"causal\":true,\"tie_embeddings\":false}"));
}

TEST(steps_are_the_fewest_that_take_the_tokens) {
    static const struct {
        const char *train;
        int64_t steps;
    } rows[] = {
        {"global_batch: 4, tokens: 1", 1},
        {"global_batch: 4, tokens: 100000", 0},
        {"batch_ramp: [[3, 8], [5, 16]], global_batch: 4, tokens: 1000000", 0},
        {"batch_ramp: [[0, 16], [5, 8]], tokens: 1000000", 0},
    };
    static Config c;
    char text[512];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(text, sizeof text, "%strain: {steps: auto, %s}\n", BASE, rows[i].train);
        config_file_load_well(&c, text, NULL);
        int64_t steps = c.train.steps, each = c.model.seq_len;
        assert_true(rows[i].steps == 0 || steps == rows[i].steps);
        assert_true(config_samples(&c, 0, steps) * each >= c.train.tokens);
        assert_true(config_samples(&c, 0, steps - 1) * each < c.train.tokens);
    }
}

// Gradients of two layers and a shard of each layer's take less than those of all layers.
TEST(auto_shards_gradients_where_that_takes_less_memory) {
    static const int rows[][3] = {{4, 2, false}, {5, 2, true}, {3, 3, false}, {3, 4, true}};
    static Config c;
    config_file_load_well(&c, BASE "parallel: {shard_gradients: auto}\n", NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        c.model.layers = rows[i][0];
        c.parallel.data = c.train.global_batch = rows[i][1];
        assert_int_equal(config_shards_gradients(&c), rows[i][2]);
    }
}

// docs/configuration.md states the default values; test_faces.py compares it with the program.
TEST(a_default_that_is_said_changes_nothing) {
    static Config unsaid, said;
    config_file_load_well(&unsaid, BASE, NULL);
    AutoText *json = json_of(&unsaid);
    forget_places(&unsaid);
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        char text[600];
        snprintf(text, sizeof text, "\"%s\":", config_short_name(key));
        if (strstr(json, text) == NULL) fail_msg("%s is not in JSON", key->name);
        if (key->def == NULL) continue;
        snprintf(text, sizeof text, "%s=%s", key->name, key->def);
        config_file_load_well(&said, BASE, text);
        forget_places(&said);
        if (memcmp(&said, &unsaid, sizeof said) != 0) fail_msg("%s is not the default", text);
    }
}

TESTS_BETWEEN(config_file_create, config_file_remove)
