// What the watchdog finds and says, with a clock of our own. Whole jobs: test_faults.py.
#include "ranks/watchdog.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

static const Patience patience = {10, 600};

// One rank says something; each time that it is alive, and where `moves`, that it got something done.
static void says_(Watchdog *dog, int rank, double now, bool moves, const char *action, const char *wait,
                  int wait_stage) {
    static RankStatus pages[8];
    RankStatus *page = &pages[rank];
    page->stage = rank;
    page->progress += moves;
    page->wait_stage = wait_stage;
    snprintf(page->action, sizeof page->action, "%.95s", action);
    snprintf(page->wait, sizeof page->wait, "%.63s", wait);
    watchdog_hear(dog, rank, page, now);
}

static Found look_every_second_(Watchdog *dog, double *now, double until, int *rank, int speakers, bool moves) {
    for (; *now < until; *now += 1.0) {
        for (int i = 0; i < speakers; i++) says_(dog, i, *now, moves, "step 3 F1", "", -1);
        Found found = watchdog_look(dog, *now, rank);
        if (found != FOUND_WELL) return found;
    }
    return FOUND_WELL;
}

TEST(a_rank_that_falls_silent_is_found_after_its_timeout) {
    double now = 0;
    int rank;
    Watchdog *dog = watchdog_create(3, patience, now);
    assert_int_equal(look_every_second_(dog, &now, 20, &rank, 3, true), FOUND_WELL);
    assert_int_equal(look_every_second_(dog, &now, 29, &rank, 2, true), FOUND_WELL);
    assert_int_equal(look_every_second_(dog, &now, 60, &rank, 2, true), FOUND_SILENT);
    assert_int_equal(rank, 2);
    assert_true(now > 29 && now < 32);
    watchdog_free(dog);
}

TEST(a_rank_that_was_never_heard_is_not_missed) {
    double now = 0;
    int rank;
    Watchdog *dog = watchdog_create(3, patience, now);
    assert_int_equal(look_every_second_(dog, &now, 50, &rank, 2, true), FOUND_WELL);
    watchdog_free(dog);
}

TEST(a_rank_that_left_is_not_missed) {
    double now = 0;
    int rank;
    Watchdog *dog = watchdog_create(3, patience, now);
    look_every_second_(dog, &now, 5, &rank, 3, true);
    watchdog_excuse(dog, 2);
    assert_int_equal(look_every_second_(dog, &now, 60, &rank, 2, true), FOUND_WELL);
    watchdog_free(dog);
}

TEST(a_long_action_is_not_silence_and_a_standstill_is_found_later) {
    double now = 0;
    int rank;
    Watchdog *dog = watchdog_create(3, patience, now);
    assert_int_equal(look_every_second_(dog, &now, 599, &rank, 3, false), FOUND_WELL);
    assert_int_equal(look_every_second_(dog, &now, 700, &rank, 3, false), FOUND_STUCK);
    assert_true(now < 605);
    watchdog_free(dog);
}

TEST(progress_of_one_rank_is_progress_of_all) {
    double now = 0;
    int rank;
    Watchdog *dog = watchdog_create(3, patience, now);
    for (; now < 2000; now += 1) {
        for (int i = 0; i < 3; i++) says_(dog, i, now, i == 1 && (int)now % 500 == 0, "saving", "", -1);
        assert_int_equal(watchdog_look(dog, now, &rank), FOUND_WELL);
    }
    watchdog_free(dog);
}

TEST(a_timeout_of_zero_never_ends) {
    double now = 0;
    int rank;
    Watchdog *dog = watchdog_create(2, (Patience){0, 0}, now);
    look_every_second_(dog, &now, 5, &rank, 2, true);
    assert_int_equal(look_every_second_(dog, &now, 5000, &rank, 0, false), FOUND_WELL);
    watchdog_free(dog);
}

// A machine that slept, or a watchdog under a debugger: all ranks seem silent at once.
TEST(after_a_pause_of_its_own_the_timeout_starts_again) {
    double now = 0;
    int rank;
    Watchdog *dog = watchdog_create(3, patience, now);
    look_every_second_(dog, &now, 20, &rank, 3, true);
    now += 3600;
    assert_int_equal(watchdog_look(dog, now, &rank), FOUND_WELL);
    double awake = now;
    assert_int_equal(look_every_second_(dog, &now, awake + 9, &rank, 2, false), FOUND_WELL);
    assert_int_equal(look_every_second_(dog, &now, awake + 60, &rank, 2, false), FOUND_SILENT);
    watchdog_free(dog);
}

TEST(short_timeouts_are_checked_often_enough) {
    assert_true(watchdog_interval(patience) == 1.0);
    assert_true(watchdog_interval((Patience){0.5, 600}) <= 0.125);
    assert_true(watchdog_interval((Patience){0, 2}) <= 0.5);
    assert_true(watchdog_interval((Patience){0, 0}) == 1.0);
}

TEST(every_stage_says_what_it_waits_for) {
    char text[WATCHDOG_TEXT];
    int rank;
    double now = 0;
    Watchdog *dog = watchdog_create(5, patience, now);
    for (; now < 15; now += 1) {
        says_(dog, 0, now, false, "step 12 B13", "B13 from stage 1", 1);
        says_(dog, 1, now, false, "step 12 B14", "B14 from stage 3", 3);
        says_(dog, 2, now, false, "step 12 optimizer", "a sum over all ranks", -1);
        if (now < 1) says_(dog, 3, now, false, "step 12 F21", "", -1);
        if (watchdog_look(dog, now, &rank) == FOUND_SILENT) break;
    }
    assert_int_equal(rank, 3);
    static const char *const lines[] = {
        "stage 0 waits for B13 from stage 1, which is at step 12 B14",
        "stage 1 waits for B14 from stage 3, which was last at step 12 F21",
        "stage 2 is at step 12 optimizer and waits for a sum over all ranks",
        "stage 3 was last heard of 11 s ago, at step 12 F21",
        "rank 4 is at start-up", // it never said which stage it is
    };
    for (int i = 0; i < 5; i++) {
        assert_true(watchdog_line(dog, i, now, text));
        assert_string_equal(text, lines[i]);
    }
    assert_false(watchdog_line(dog, 5, now, text));
    watchdog_reason(dog, FOUND_SILENT, rank, now, text);
    assert_string_equal(
        text, "rank 3 (stage 3) has said nothing for 11 s (train.peer_timeout_s): it is stopped or cut off, last at "
              "step 12 F21");
    watchdog_free(dog);
}

TEST(the_longest_words_fit) {
    char text[WATCHDOG_TEXT], longest[200];
    int rank;
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    Watchdog *dog = watchdog_create(2, patience, 0);
    for (int i = 0; i < 2; i++) says_(dog, i, 0, true, longest, longest, 1 - i);
    for (double now = 1; now < 20 && watchdog_look(dog, now, &rank) == FOUND_WELL; now++) {}
    for (int i = 0; i < 2; i++) assert_true(watchdog_line(dog, i, 20, text) && strlen(text) < WATCHDOG_TEXT);
    watchdog_reason(dog, FOUND_SILENT, 0, 20, text);
    assert_non_null(strstr(text, "stopped or cut off"));
    watchdog_free(dog);
}
