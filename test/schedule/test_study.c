// Schedules studied with given times: the sentence about a schedule, its lanes as text, and --times.
#include "schedule/study.h"

#include "schedules.h"

#include <string.h>

static const StudyTimes ones_ = {.forward = 1, .input = 1, .weight = 1};

static Schedule *proved_(Schedule *schedule) {
    assert_succeeds(schedule_check(schedule, &unit_error));
    return schedule;
}

TEST(times_are_read_and_wrong_ones_refused) {
    StudyTimes times;
    assert_succeeds(study_times_parse("F=2,message=0.5,transfer=3", &times, &unit_error));
    assert_true(times.forward == 2 && times.input == 1 && times.weight == 1 && times.message == 0.5);
    assert_true(times.transfer == 3);
    assert_succeeds(study_times_parse("B=3,F=1", &times, &unit_error));
    assert_true(times.forward == 1 && times.input == 1.5 && times.weight == 1.5);
    const char *wrong[] = {"F", "F=", "F=x", "F=-1", "F=nan", "F=1e999", "Q=1", "F=1;I=1", "F=0,I=0,W=0", "F=1 ,I=2",
                           // Sums of the first are infinite, of the second 0, and the others say two things.
                           "transfer=1e308", "F=5e-324,I=0,W=0", "F=1,F=2", "I=1,B=4", "B=4,W=1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_refused(study_times_parse(wrong[i], &times, &unit_error), EXIT_USAGE, "--times: ");
    }
}

// The share is (p-1)/(m+p-1) for all times, with BPipe as well as long as transfers take no time.
TEST(idle_time_of_1f1b_is_the_formula) {
    for (int p = 2; p <= 8; p++) {
        int m = 2 * p + 1;
        char said[256], expected[64];
        snprintf(expected, sizeof expected, "idle %.1f %% at F=I=W=1 (1F1B %.1f %%)", 100.0 * (p - 1) / (m + p - 1),
                 100.0 * (p - 1) / (m + p - 1));
        AutoSchedule *plain = proved_(assert_made(schedule_1f1b(p, m, &unit_error))),
                     *balanced = proved_(assert_made(bpipe_balance(plain, 0, 0, 1, &unit_error)));
        const Schedule *both[] = {plain, balanced};
        for (int i = 0; i < 2; i++) {
            AutoTimeline *timeline = assert_made(study_run(both[i], &ones_, &unit_error));
            study_say(both[i], timeline, &ones_, said, sizeof said);
            assert_non_null(strstr(said, expected));
        }
    }
}

// Chunks divide a stage's work and add no work: the actions on each stage sum to m (F + I + W).
TEST(chunks_share_the_times_of_a_stage) {
    for (int i = 0; i < schedule_kind_count; i++) {
        ScheduleSpec spec = {.stages = 4, .microbatches = 8};
        AutoSchedule *schedule = proved_(assert_made(schedule_make(&schedule_kinds[i], &spec, &unit_error)));
        StudyTimes times = {.forward = 1, .input = 2, .weight = 3, .message = 0.25};
        AutoTimeline *timeline = assert_made(study_run(schedule, &times, &unit_error));
        for (int s = 0; s < 4; s++) assert_true(timeline->stage[s].busy > 47.999 && timeline->stage[s].busy < 48.001);
    }
}

// A slot has the bundle of one chunk and one slice: the transfers of a microbatch's slots take the given time together.
TEST(chunks_and_slices_share_the_time_of_a_transfer) {
    static const ScheduleSpec specs[] = {{.stages = 4, .microbatches = 16},
                                         {.stages = 4, .microbatches = 16, .chunks = 4},
                                         {.stages = 4, .microbatches = 16, .chunks = 2, .slices = 2}};
    static const char *const names[] = {"1f1b", "interleaved", "interleaved"};
    for (int i = 0; i < 3; i++) {
        StudyTimes times = {.forward = 1, .input = 1, .weight = 1, .transfer = 0.5};
        AutoSchedule *plain =
            proved_(assert_made(schedule_make(&schedule_kinds[schedule_kind_index(names[i])], &specs[i], &unit_error)));
        AutoSchedule *balanced = proved_(assert_made(bpipe_balance(plain, 0, 0, 1, &unit_error)));
        AutoTimeline *timeline = assert_made(study_run(balanced, &times, &unit_error));
        double each = 0.5 / (balanced->chunks * balanced->slices);
        int moved = 0;
        for (int64_t k = 0; k < balanced->stage[0].count; k++) {
            if (balanced->stage[0].actions[k].kind != ACTION_EVICT) continue;
            ActionTime time = timeline->stage[0].times[k];
            assert_true(time.end - time.begin > each - 1e-9 && time.end - time.begin < each + 1e-9);
            moved++;
        }
        assert_true(moved > 0);
    }
}

static char *drawn_(const Schedule *schedule, int width) {
    AutoTimeline *timeline = assert_made(study_run(schedule, &ones_, &unit_error));
    char *text = unit_written(assert_int_equal(study_draw(schedule, timeline, width, false, file), 0));
    return text;
}

TEST(lanes_keep_to_the_width_and_show_each_action) {
    AutoSchedule *small = proved_(assert_made(schedule_1f1b(2, 2, &unit_error))),
                 *large = proved_(assert_made(schedule_1f1b(8, 200, &unit_error)));
    char *text = drawn_(small, 45);
    assert_string_equal(text, "stage 0  F0--F1--        B0------    B1------\n"
                              "stage 1      F0--B0------F1--B1------        \n");
    free(text);
    text = drawn_(large, 120);
    int lines = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++) {
        assert_true(strlen(line) <= 120);
        assert_non_null(strstr(line, " ... "));
    }
    assert_int_equal(lines, 8);
    free(text);
    for (int width = 120; width < 240; width++) { // the complete step, as soon as its labels fit
        AutoSchedule *fits = proved_(assert_made(schedule_1f1b(2, 8, &unit_error)));
        text = drawn_(fits, width);
        assert_null(strstr(text, " ... "));
        free(text);
    }
}
