// The masked objective: which tokens of a batch are chosen, and what becomes of them.
#include "engine/batch.h"
#include "scratch_folder.h"
#include "unit.h"

#include <math.h>
#include <string.h>

enum { LENGTH = 128, BATCH = 64, VOCAB = 1000, MASK = 999, END = 450, CHOSEN = 19, TOKENS = BATCH * LENGTH };

typedef struct Masked {
    int32_t tokens[TOKENS], targets[TOKENS], places[TOKENS]; // (sequence, position)
} Masked;

// A token encodes its place in the file, so that its neighbours determine the original token.
static uint32_t place_of(int64_t i, const void *context) {
    (void)context;
    return (uint32_t)(i % 900);
}

static Config made_config(void) {
    Config config = {.model = {.seq_len = LENGTH, .vocab = VOCAB},
                     .parallel = {.data = 1, .context = 1},
                     .train = {.global_batch = BATCH, .seed = 7, .objective = OBJECTIVE_MASKED},
                     .data = {.mask_token = MASK, .train_sources = 1, .train = {{.weight = 1.0}}}};
    snprintf(config.data.train[0].path, CONFIG_TEXT, "%s", test_path("train_000.bin"));
    return config;
}

// Loads a step with micro-batches of b.
static void load(Masked *to, Config *config, int64_t b, int64_t step) {
    Backend *be = assert_made(backend_cpu_create(PRECISION_FP32, 1, &unit_error));
    Stage stage = {.be = be, .config = config, .microbatches = BATCH / b, .most_microbatches = BATCH / b};
    Masked rows;
    int32_t host_places[TOKENS];
    stage.at.first = stage.at.last = true;
    stage.at.shape.batch = config->schedule.micro_batch = b;
    stage.at.shape.context_ranks = stage.at.shape.pieces = 1;
    stage.at.rows = stage.at.shape.rows = b * LENGTH;
    stage.tokens = rows.tokens, stage.targets = rows.targets;
    stage.places = rows.places, stage.host_places = host_places;
    Batch batch = {0};
    batch_create(&batch, &stage, 0);
    batch.end_of_text = END;
    Blend *blend = assert_made(blend_open("data.train", config->data.train, 1, LENGTH, VOCAB, BATCH, &unit_error));
    assert_succeeds(batch_train(&batch, blend, step, &unit_error));
    for (int64_t i = 0; i < TOKENS; i++) {
        int64_t sequence = i / (b * LENGTH) * b + i % b, at = sequence * LENGTH + i % (b * LENGTH) / b;
        to->tokens[at] = rows.tokens[i], to->targets[at] = rows.targets[i], to->places[at] = rows.places[i];
    }
    blend_close(blend);
    batch_destroy(&batch);
    be->destroy(be);
}

TEST(of_fifteen_percent_most_become_masks) {
    Config config = made_config();
    Masked one;
    int64_t masks = 0, same = 0, drawn = 0;
    load(&one, &config, 1, 1);
    for (int64_t s = 0; s < BATCH; s++) {
        int64_t chosen = 0;
        for (int64_t i = 0; i < LENGTH; i++) {
            int32_t token = one.tokens[s * LENGTH + i], target = one.targets[s * LENGTH + i];
            if (target < 0) continue;
            chosen++;
            masks += token == MASK, same += token == target, drawn += token != MASK && token != target;
            // An unchosen neighbour still has its own token, which is one less.
            if (i > 0 && one.targets[s * LENGTH + i - 1] < 0)
                assert_int_equal(target, (one.tokens[s * LENGTH + i - 1] + 1) % 900);
        }
        assert_int_equal(chosen, CHOSEN);
    }
    double all = BATCH * CHOSEN, bound = 4 * sqrt(all * 0.09);
    assert_true(fabs((double)masks - 0.8 * all) < 1.4 * bound);
    assert_true(fabs((double)same - 0.1 * all) < bound && fabs((double)drawn - 0.1 * all) < bound);
}

TEST(the_choice_depends_on_seed_step_and_place_alone) {
    Config config = made_config();
    Masked one, other;
    load(&one, &config, 1, 1);
    load(&other, &config, 4, 1);
    assert_memory_equal(&one, &other, sizeof one);
    load(&other, &config, 1, 2);
    assert_memory_not_equal(&one, &other, sizeof one);
    config.train.seed = 8;
    load(&other, &config, 1, 1);
    assert_memory_not_equal(&one, &other, sizeof one);
}

TEST(a_document_begins_at_its_first_token_even_if_that_is_masked) {
    Config config = made_config();
    Masked one;
    int64_t masked = 0;
    for (int64_t step = 1; step <= 20; step++) {
        load(&one, &config, 2, step);
        for (int64_t i = 0, place = 0; i < TOKENS; i++) {
            int32_t own = one.targets[i] < 0 ? one.tokens[i] : one.targets[i];
            place = i % LENGTH == 0 || own == END ? 0 : place + 1;
            assert_int_equal(one.places[i], place);
            masked += own == END && one.tokens[i] != END;
        }
    }
    assert_true(masked > 0);
}

static int create(void **state) {
    if (test_folder_create(state) != 0) return -1;
    test_shard_write("train_000.bin", (ShardHeader){SHARD_GPT2, 1, 2 * TOKENS + 1}, 2 * TOKENS + 1, place_of, NULL);
    return 0;
}

TESTS_BETWEEN(create, test_folder_remove)
