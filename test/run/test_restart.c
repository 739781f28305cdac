// Rules that allow or refuse a restart of the ranks. Complete runs: test_restarts.py.
#include "launch/launch.h"

#include "checkpoint/checkpoint_files.h"
#include "scratch_folder.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool allowed_(Restarts *restarts, int rank, int64_t step, const char *action) {
    char why[256];
    JobEnd end = {.lost = true, .rank = rank, .step = step};
    snprintf(end.action, sizeof end.action, "%s", action);
    return restart_allowed(restarts, &end, why);
}

TEST(a_loss_after_new_steps_costs_one_restart) {
    Restarts restarts = {.left = 2};
    assert_true(allowed_(&restarts, 1, 10, "step 10 F0"));
    assert_true(allowed_(&restarts, 1, 20, "step 20 F0"));
    assert_int_equal(restarts.left, 0);
    assert_false(allowed_(&restarts, 1, 30, "step 30 F0"));
}

TEST(a_loss_without_a_new_step_counts_double) {
    Restarts restarts = {.left = 4};
    assert_true(allowed_(&restarts, 1, 10, "step 10 F0"));
    assert_true(allowed_(&restarts, 2, 10, "step 10 B0"));
    assert_int_equal(restarts.left, 1);
    assert_false(allowed_(&restarts, 0, 9, "step 9 F0"));
}

TEST(the_same_action_twice_in_a_row_stops_it) {
    Restarts restarts = {.left = 100};
    assert_true(allowed_(&restarts, 1, 10, "step 10 F3"));
    assert_false(allowed_(&restarts, 1, 10, "step 10 F3"));
    Restarts others = {.left = 100};
    assert_true(allowed_(&others, 1, 10, "step 10 F3"));
    assert_true(allowed_(&others, 2, 10, "step 10 F3")); // another rank
}

static void save_(const char *dir, int64_t step, int64_t sequence) {
    char path[CHECKPOINT_PATH];
    Manifest manifest = {.step = step, .run = 7, .sequence = sequence};
    assert_int_equal(checkpoint_path(path, dir, step, false, NULL), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(manifest_write(&manifest, path, NULL), 0);
}

TEST(the_newest_checkpoint_of_the_run_is_the_one_with_the_highest_number) {
    const char *dir = test_folder;
    CheckpointName newest;
    assert_int_equal(checkpoint_newest(dir, &newest, NULL), 0);
    assert_true(newest.step == -1 && newest.sequence == 0);
    save_(dir, 10, 3);
    assert_int_equal(checkpoint_newest(dir, &newest, NULL), 0);
    assert_int_equal(newest.sequence, 3);
    save_(dir, 7, 5); // as if the run had resumed from an earlier step
    save_(dir, 9, 4);
    assert_int_equal(checkpoint_newest(dir, &newest, NULL), 0);
    assert_int_equal(newest.step, 7);
}

TESTS_BETWEEN(test_folder_create, test_folder_remove)
