// A single-rank run that saves in the background while it trains. `make tsan` runs it to check the data that the
// writer's threads share with the training.
#include "models.h"
#include "checkpoint/checkpoint_files.h"
#include "config_file.h"
#include "scratch_folder.h"
#include "model/model.h"
#include "run/run.h"
#include "unit.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static int create_both_(void **state) { return test_folder_create(state) != 0 ? -1 : config_file_create(state); }

static int remove_both_(void **state) { return test_folder_remove(state) != 0 ? -1 : config_file_remove(state); }

static uint32_t token_(int64_t i, const void *unused) {
    (void)unused;
    return (uint32_t)(i * 7 % 251);
}

// Trains up to `steps`; with `resume`, continues from the folder's checkpoints.
static void train(const Model *model, const char *family, int64_t steps, bool resume) {
    static Config config;
    char text[1200], saved[TEST_PATH];
    snprintf(saved, sizeof saved, "%s", test_path(family));
    snprintf(text, sizeof text,
             "model: {family: %s, hidden: 64, layers: 4, heads: 4, ffn: 128, vocab: 257, seq_len: 32}\n"
             "train: {steps: %" PRId64 ", global_batch: 4}\n"
             "data: {train: %s/train.bin}\n"
             "checkpoint: {dir: %s, every: 1, keep: 2}\n"
             "hardware: {device: cpu, peak_tflops: 1, reserve_gib: 0}\n",
             family, steps, test_folder, saved);
    config_file_load_well(&config, text, NULL);
    Error err = {0};
    Log log = {.program = "test", .rank = -1, .stage = -1, .level = LOG_QUIET};
    Options ask = {.resume = resume ? saved : NULL};
    World *world = world_join(NULL, NULL, &err);
    assert_non_null(world);
    static Run run;
    int status = run_create(&run, &config, model, &ask, world, NULL, &log, &err);
    if (status == 0) status = run_train(&run, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, 0);
    assert_int_equal(checkpoint_saved(run.checkpoint), steps);
    run_destroy(&run);
    world_leave(world, 0);
    char path[CHECKPOINT_PATH];
    assert_int_equal(checkpoint_path(path, saved, steps, false, &err), 0);
    assert_int_equal(checkpoint_verify(path, 0, 1, NULL, &err), 0);
}

// Discards step lines, since stdout carries the test results.
static void train_quietly(const Model *model, const char *family) {
    test_shard_write("train.bin", (ShardHeader){SHARD_GPT2, 1, 2000}, 2000, token_, NULL);
    fflush(stdout);
    int out = dup(STDOUT_FILENO), null = open("/dev/null", O_WRONLY);
    assert_true(dup2(null, STDOUT_FILENO) >= 0);
    train(model, family, 4, false);
    train(model, family, 6, true);
    fflush(stdout);
    assert_true(dup2(out, STDOUT_FILENO) >= 0);
    close(null);
    close(out);
}

TEST(llama_saves_every_step_while_it_trains) { train_quietly(&llama_model, "llama"); }

TEST(gpt_saves_every_step_while_it_trains) { train_quietly(&gpt_model, "gpt"); }

TESTS_BETWEEN(create_both_, remove_both_)
