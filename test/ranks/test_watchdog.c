// Findings and messages of the watchdog, with a simulated clock. Complete jobs: test_faults.py.
#include "ranks/watchdog.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

static const Patience patience = {10, 600};

// Reports a heartbeat of one rank; with `moves`, the rank has also made progress.
static void says_(Watchdog *to, int from, double when, bool moves, const char *action, const char *wait,
                  int wait_stage) {
    static RankStatus pages[8];
    RankStatus *page = &pages[from];
    page->stage = from;
    page->progress += moves;
    page->wait_stage = wait_stage;
    snprintf(page->action, sizeof page->action, "%.95s", action);
    snprintf(page->wait, sizeof page->wait, "%.63s", wait);
    watchdog_hear(to, from, page, when);
}

// A watchdog of 3 ranks, the simulated time in seconds, and the rank that the watchdog found.
static Watchdog *dog;
static double now;
static int rank;

static int open_(void **state) {
    (void)state;
    dog = watchdog_create(3, patience, now = 0);
    return 0;
}

static int close_(void **state) {
    (void)state;
    watchdog_free(dog);
    return 0;
}

#define WATCH(name) TEST_BETWEEN(name, open_, close_)

// Looks every second until `until`, while the first `speakers` ranks send heartbeats. Returns the first finding.
static Found look_every_second_(double until, int speakers, bool moves) {
    for (; now < until; now += 1.0) {
        for (int i = 0; i < speakers; i++) says_(dog, i, now, moves, "step 3 F1", "", -1);
        Found found = watchdog_look(dog, now, &rank);
        if (found != FOUND_WELL) return found;
    }
    return FOUND_WELL;
}

WATCH(a_rank_that_falls_silent_is_found_after_its_timeout) {
    assert_int_equal(look_every_second_(20, 3, true), FOUND_WELL);
    assert_int_equal(look_every_second_(29, 2, true), FOUND_WELL);
    assert_int_equal(look_every_second_(60, 2, true), FOUND_SILENT);
    assert_int_equal(rank, 2);
    assert_true(now > 29 && now < 32);
}

WATCH(a_rank_that_was_never_heard_is_not_missed) { assert_int_equal(look_every_second_(50, 2, true), FOUND_WELL); }

WATCH(a_rank_that_left_is_not_missed) {
    look_every_second_(5, 3, true);
    watchdog_excuse(dog, 2);
    assert_int_equal(look_every_second_(60, 2, true), FOUND_WELL);
}

WATCH(a_long_action_is_not_silence_and_a_standstill_is_found_later) {
    assert_int_equal(look_every_second_(599, 3, false), FOUND_WELL);
    assert_int_equal(look_every_second_(700, 3, false), FOUND_STUCK);
    assert_true(now < 605);
}

WATCH(progress_of_one_rank_is_progress_of_all) {
    for (; now < 2000; now += 1) {
        for (int i = 0; i < 3; i++) says_(dog, i, now, i == 1 && (int)now % 500 == 0, "saving", "", -1);
        assert_int_equal(watchdog_look(dog, now, &rank), FOUND_WELL);
    }
}

WATCH(a_timeout_of_zero_never_ends) {
    watchdog_free(dog);
    dog = watchdog_create(2, (Patience){0, 0}, now);
    look_every_second_(5, 2, true);
    assert_int_equal(look_every_second_(5000, 0, false), FOUND_WELL);
}

// After a suspend, or in a debugger, all ranks seem silent at once.
WATCH(after_a_pause_of_its_own_the_timeout_starts_again) {
    look_every_second_(20, 3, true);
    now += 3600;
    assert_int_equal(watchdog_look(dog, now, &rank), FOUND_WELL);
    double awake = now;
    assert_int_equal(look_every_second_(awake + 9, 2, false), FOUND_WELL);
    assert_int_equal(look_every_second_(awake + 60, 2, false), FOUND_SILENT);
}

TEST(short_timeouts_are_checked_often_enough) {
    assert_true(watchdog_interval(patience) == 1.0);
    assert_true(watchdog_interval((Patience){0.5, 600}) <= 0.125);
    assert_true(watchdog_interval((Patience){0, 2}) <= 0.5);
    assert_true(watchdog_interval((Patience){0, 0}) == 1.0);
}

WATCH(every_stage_says_what_it_waits_for) {
    char text[WATCHDOG_TEXT];
    watchdog_free(dog);
    dog = watchdog_create(5, patience, now);
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
        "stage 3 was last heard from 11 s ago, at step 12 F21",
        "rank 4 is at start-up", // its stage is unknown
    };
    for (int i = 0; i < 5; i++) {
        assert_true(watchdog_line(dog, i, now, text));
        assert_string_equal(text, lines[i]);
    }
    assert_false(watchdog_line(dog, 5, now, text));
    watchdog_reason(dog, FOUND_SILENT, rank, now, text);
    assert_string_equal(
        text,
        "rank 3 (stage 3) has sent no heartbeat for 11 s (train.peer_timeout_s): it is stopped or cut off, last at "
        "step 12 F21");
}

WATCH(the_longest_words_fit) {
    char text[WATCHDOG_TEXT], longest[200];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    for (int i = 0; i < 2; i++) says_(dog, i, 0, true, longest, longest, 1 - i);
    for (now = 1; now < 20 && watchdog_look(dog, now, &rank) == FOUND_WELL; now++) {}
    for (int i = 0; i < 2; i++) assert_true(watchdog_line(dog, i, 20, text) && strlen(text) < WATCHDOG_TEXT);
    watchdog_reason(dog, FOUND_SILENT, 0, 20, text);
    assert_non_null(strstr(text, "stopped or cut off"));
}
