// A supervisor reads complete entries from its rank's page, at any moment.
#include "ranks/status_page.h"
#include "base/clock.h"
#include "unit.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

TEST(a_page_says_what_a_rank_does) {
    char longer[300];
    RankStatus status;
    StatusPage *page = status_page_create(false);
    status_page_read(page, &status);
    assert_int_equal(status.stage, -1);
    assert_false(status.ready || status.ending != ENDING_NONE);
    assert_string_equal(status.action, "");
    status_page_set_stage(page, 0), status_page_set_ready(page), status_page_set_step(page, 12);
    status_page_set_action(page, "step 12 F3"), status_page_set_wait(page, "F3 from stage 1", 1);
    status_page_read(page, &status);
    assert_true(status.stage == 0 && status.ready && status.step == 12 && status.wait_stage == 1);
    assert_string_equal(status.action, "step 12 F3");
    assert_string_equal(status.wait, "F3 from stage 1");
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    status_page_set_action(page, longer);
    status_page_read(page, &status);
    assert_int_equal(strlen(status.action), sizeof status.action - 1);
}

TEST(the_first_report_counts) {
    RankStatus status;
    StatusPage *page = status_page_create(true), *alone = status_page_create(false);
    Error why = {0}, later = {0};
    error_set(&why, 2, "why"), error_set(&later, 1, "later");
    int64_t made = clock_wall_ns();
    clock_sleep(0.02);
    assert_true(status_page_report(page, &why) && status_page_report(page, &later));
    assert_false(status_page_report(alone, &later) || status_page_report(NULL, &later));
    status_page_leave(page, 3);
    status_page_read(page, &status);
    assert_true(status.ending == ENDING_LEFT && status.code == 2);
    // The time of the error, not of its report.
    assert_true(status.when > 0 && status.when < made + 20 * 1000 * 1000);
    assert_string_equal(status.text, "why");
    status_page_leave(NULL, 3);
    status_page_set_action(NULL, "F0"), status_page_set_stage(NULL, 1), status_page_set_ready(NULL);
}

static bool is_whole_(const StatusPage *page) {
    RankStatus status;
    status_page_read(page, &status);
    size_t length = strlen(status.action);
    if (length == 0) return true; // nothing written yet
    return length == (status.action[0] == 'a' ? 90u : 45u) &&
           strspn(status.action, status.action[0] == 'a' ? "a" : "b") == length;
}

// A process alternates between two actions until it is killed. At any moment the page has one of them completely.
TEST(an_action_is_whole_whenever_it_is_read) {
    char a[91] = "", b[46] = "";
    StatusPage *page = status_page_create(false);
    memset(a, 'a', sizeof a - 1), memset(b, 'b', sizeof b - 1);
    for (int round = 0; round < 10; round++) {
        pid_t child = fork();
        while (child == 0) status_page_set_action(page, a), status_page_set_action(page, b);
        bool whole = true;
        for (clock_t end = clock() + CLOCKS_PER_SEC / 20; whole && clock() < end;)
            for (int reads = 0; reads < 64; reads++) whole = whole && is_whole_(page);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        assert_true(whole && is_whole_(page));
    }
}
