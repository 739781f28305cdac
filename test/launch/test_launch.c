// The board, what is passed on of mpirun's words, and the folder of a launch. Whole launches: test_launch.py.
#include "ranks/status_page.h"
#include "launch/launch_folder.h"
#include "launch/launch_output.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

// --- the board

static char *status_page_path_(char *path, size_t size) {
    snprintf(path, size, "/dev/shm/test_launch_board_%d", (int)getpid());
    setenv(STATUS_PAGE_VARIABLE, path, 1);
    return path;
}

static void a_board_says_who_is_where(void **state) {
    (void)state;
    char path[64], longer[300];
    Error err = {0};
    StatusRank page;
    StatusPage *parent = status_page_create(status_page_path_(path, sizeof path), 3, &err);
    StatusPage *rank = status_page_attach(1);
    assert_non_null(parent);
    assert_non_null(rank);
    assert_int_equal(status_page_read(parent, 1, &page), 0);
    assert_int_equal(page.pid, getpid());
    assert_int_equal(page.stage, -1);
    assert_false(page.ready);
    assert_string_equal(page.action, "");
    status_page_set_stage(rank, 0);
    status_page_set_ready(rank);
    status_page_set_action(rank, "step 12 F3");
    status_page_read(parent, 1, &page);
    assert_int_equal(page.stage, 0);
    assert_true(page.ready);
    assert_string_equal(page.action, "step 12 F3");
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    status_page_set_action(rank, longer);
    status_page_read(parent, 1, &page);
    assert_int_equal(strlen(page.action), sizeof page.action - 1);
    status_page_read(parent, 0, &page);
    assert_int_equal(page.pid, 0);
    assert_int_equal(status_page_read(parent, 3, &page), -1);
    status_page_close(rank), status_page_close(parent), unlink(path);
}

static void reports_stand_in_their_order(void **state) {
    (void)state;
    char path[64];
    Error err = {0};
    StatusRank page;
    StatusPage *parent = status_page_create(status_page_path_(path, sizeof path), 3, &err);
    StatusPage *second = status_page_attach(2), *first = status_page_attach(1), *zero = status_page_attach(0);
    assert_true(status_page_report(second, 2, "why"));
    assert_true(status_page_report(first, 1, "later"));
    assert_true(status_page_report(second, 1, "a second report of the same rank changes nothing"));
    assert_int_equal(status_page_leave(second, 2), 0);
    assert_int_equal(status_page_leave(zero, 3), 0);
    status_page_read(parent, 2, &page);
    assert_int_equal(page.reported, 1);
    assert_int_equal(page.code, 2);
    assert_string_equal(page.text, "why");
    status_page_read(parent, 1, &page);
    assert_int_equal(page.reported, 2);
    status_page_read(parent, 0, &page);
    assert_int_equal(page.reported, 3);
    assert_int_equal(page.code, 3);
    assert_string_equal(page.text, "");
    status_page_close(zero), status_page_close(first), status_page_close(second), status_page_close(parent),
        unlink(path);
}

static void boards_are_new_files_and_may_be_absent(void **state) {
    (void)state;
    char path[64];
    Error err = {0};
    StatusPage *parent = status_page_create(status_page_path_(path, sizeof path), 2, &err);
    assert_null(status_page_create(path, 2, &err));
    assert_int_equal(err.code, EXIT_FAILED);
    assert_null(status_page_attach(2));
    status_page_close(parent), unlink(path);
    assert_null(status_page_attach(0));
    unsetenv(STATUS_PAGE_VARIABLE);
    assert_null(status_page_attach(0));
    status_page_set_action(NULL, "F0"), status_page_set_stage(NULL, 1), status_page_set_ready(NULL),
        status_page_close(NULL);
    assert_false(status_page_report(NULL, 1, "why"));
    assert_int_equal(status_page_leave(NULL, 3), 3);
}

static bool is_whole_(const StatusPage *parent) {
    StatusRank page;
    assert_int_equal(status_page_read(parent, 0, &page), 0);
    size_t length = strlen(page.action);
    if (length == 0) return true; // not attached yet
    return length == (page.action[0] == 'a' ? 90u : 45u) &&
           strspn(page.action, page.action[0] == 'a' ? "a" : "b") == length;
}

// A process writes actions without a pause and is killed at some point; what stands there is always one of them.
static void an_action_is_whole_whenever_it_is_read(void **state) {
    (void)state;
    char path[64], a[91] = "", b[46] = "";
    Error err = {0};
    StatusPage *parent = status_page_create(status_page_path_(path, sizeof path), 1, &err);
    memset(a, 'a', sizeof a - 1), memset(b, 'b', sizeof b - 1);
    for (int round = 0; round < 10; round++) {
        pid_t child = fork();
        if (child == 0) {
            StatusPage *rank = status_page_attach(0);
            for (;;) status_page_set_action(rank, a), status_page_set_action(rank, b);
        }
        bool whole = true;
        for (clock_t end = clock() + CLOCKS_PER_SEC / 20; whole && clock() < end;)
            for (int reads = 0; reads < 64; reads++) whole = whole && is_whole_(parent);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        assert_true(whole && is_whole_(parent));
    }
    status_page_close(parent), unlink(path);
    unsetenv(STATUS_PAGE_VARIABLE);
}

// --- mpirun's words

#define FRAME "--------------------------------------------------------------------------\n"

static const char KILLED[] =
    FRAME "mpirun noticed that process rank 2 with PID 0 on node a exited on signal 9 (Killed).\n" FRAME;
static const char ABORTED[] =
    FRAME "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 3.\n" FRAME;
static const char CODE[] =
    FRAME "Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n" FRAME FRAME
          "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
          "the job to be terminated. The first process to do so was:\n\n  Process name: [[18367,1],3]\n  Exit code:    "
          "5\n" FRAME;
static const char REMARKS[] =
    "[a:1] 1 more process has sent help message help-mpi-api.txt / mpi-abort\n"
    "[a:1] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help / error messages\n"
    "mpirun: Forwarding signal 10 to job\n";
static const char WARNING[] = FRAME "WARNING: something else that a user should read\n" FRAME;

// Feeds the text in pieces of `step` bytes and returns what came out, and the comment.
static char *passed_(const char *text, size_t step, LaunchComment *comment) {
    static char out[8192];
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    LaunchOutput output = {.to = ends[1]};
    for (size_t at = 0; at < strlen(text); at += step)
        launch_output_take(&output, text + at, strlen(text + at) < step ? strlen(text + at) : step);
    launch_output_end(&output);
    *comment = launch_output_comment(&output);
    launch_output_free(&output);
    close(ends[1]);
    ssize_t got = read(ends[0], out, sizeof out - 1);
    close(ends[0]);
    out[got < 0 ? 0 : got] = '\0';
    return out;
}

static void mpiruns_comments_are_read_and_kept_back(void **state) {
    (void)state;
    LaunchComment comment;
    for (size_t step = 1; step < 200; step += 66) {
        assert_string_equal(passed_(KILLED, step, &comment), "");
        assert_int_equal(comment.rank, 2);
        assert_int_equal(comment.signal, 9);
        assert_string_equal(passed_(CODE, step, &comment), "");
        assert_int_equal(comment.rank, 3);
        assert_int_equal(comment.code, 5);
        assert_string_equal(passed_(ABORTED, step, &comment), "");
        assert_string_equal(passed_(REMARKS, step, &comment), "");
        assert_int_equal(comment.rank, -1);
    }
}

static void everything_else_passes(void **state) {
    (void)state;
    static const char *const texts[] = {"a line\n",
                                        "",
                                        "\n\n",
                                        WARNING,
                                        FRAME "a table\n" FRAME "after\n",
                                        FRAME "a frame that is never closed\n",
                                        "-----\nshort\n-----\n"};
    LaunchComment comment;
    char both[4096];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_string_equal(passed_(texts[i], 7, &comment), texts[i]);
        assert_int_equal(comment.rank, -1);
        snprintf(both, sizeof both, "%s%s%s", KILLED, texts[i], CODE);
        if (strstr(texts[i], "never") == NULL) assert_string_equal(passed_(both, 7, &comment), texts[i]);
    }
    assert_string_equal(passed_("no newline at the end", 7, &comment), "no newline at the end\n");
}

// --- the folder

static bool gone_(const char *path) {
    for (int tries = 0; tries < 200; tries++) {
        struct timespec nap = {0, 50000000};
        if (access(path, F_OK) != 0) return true;
        nanosleep(&nap, NULL);
    }
    return false;
}

static void a_folder_goes_with_all_in_it(void **state) {
    (void)state;
    LaunchFolder folder;
    Error err = {0};
    char path[400];
    assert_int_equal(launch_folder_create(&folder, &err), 0);
    snprintf(path, sizeof path, "%s/session", folder.path);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/session/segment", folder.path);
    fclose(fopen(path, "w"));
    launch_folder_remove(&folder);
    assert_int_not_equal(access(folder.path, F_OK), 0);
}

// A stray process of the launch, which ignores everything that can be ignored.
static pid_t start_stray_(const LaunchFolder *folder) {
    pid_t child = fork();
    if (child != 0) return child;
    setenv(STATUS_PAGE_VARIABLE, folder->status_page, 1);
    execlp("sh", "sh", "-c", "trap '' TERM HUP INT; while :; do sleep 0.05; done", (char *)NULL);
    _exit(127);
}

static void strays_end_with_the_folder(void **state) {
    (void)state;
    LaunchFolder folder;
    Error err = {0};
    struct timespec nap = {0, 300000000};
    int status;
    assert_int_equal(launch_folder_create(&folder, &err), 0);
    pid_t child = start_stray_(&folder);
    nanosleep(&nap, NULL);
    assert_true(launch_folder_signal(&folder, 0) >= 1);
    launch_folder_remove(&folder);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void the_caretaker_cleans_up_after_a_killed_parent(void **state) {
    (void)state;
    int ends[2];
    LaunchFolder folder;
    assert_int_equal(pipe(ends), 0);
    pid_t parent = fork();
    if (parent == 0) {
        Error err = {0};
        if (launch_folder_create(&folder, &err) == 0 && start_stray_(&folder) > 0 &&
            write(ends[1], &folder, sizeof folder) > 0)
            pause();
        _exit(1);
    }
    assert_int_equal(read(ends[0], &folder, sizeof folder), sizeof folder);
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    assert_true(gone_(folder.path));
    assert_int_equal(launch_folder_signal(&folder, 0), 0);
    close(ends[0]), close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_board_says_who_is_where),
        cmocka_unit_test(reports_stand_in_their_order),
        cmocka_unit_test(boards_are_new_files_and_may_be_absent),
        cmocka_unit_test(an_action_is_whole_whenever_it_is_read),
        cmocka_unit_test(mpiruns_comments_are_read_and_kept_back),
        cmocka_unit_test(everything_else_passes),
        cmocka_unit_test(a_folder_goes_with_all_in_it),
        cmocka_unit_test(strays_end_with_the_folder),
        cmocka_unit_test(the_caretaker_cleans_up_after_a_killed_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
