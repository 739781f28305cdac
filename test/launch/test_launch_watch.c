// Which rank ended first, as the parent sees it. Deaths in whole launches: test_faults.py.
#include "launch/launch_watch.h"
#include "launch/processes.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { RANKS = 3 };

typedef struct Scene {
    char path[64];
    StatusPage *status_page;
    LaunchWatch watch;
    pid_t mpirun;
} Scene;

static void nap_ms_(int ms) {
    struct timespec nap = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&nap, NULL);
}

// A shell that starts what mpirun would, in a process group of its own.
static void open_(Scene *scene, const char *script) {
    Error err = {0};
    memset(scene, 0, sizeof *scene);
    snprintf(scene->path, sizeof scene->path, "/dev/shm/test_launch_watch_%d", (int)getpid());
    unlink(scene->path); // of a test that failed
    scene->status_page = status_page_create(scene->path, RANKS, &err);
    assert_non_null(scene->status_page);
    assert_int_equal(launch_watch_start(&scene->watch, RANKS, (Patience){0}, 0, &err), 0);
    scene->mpirun = fork();
    if (scene->mpirun == 0) {
        setpgid(0, 0);
        execlp("sh", "sh", "-c", script, (char *)NULL);
        _exit(127);
    }
    setpgid(scene->mpirun, scene->mpirun);
    launch_watch_children(&scene->watch, scene->mpirun);
}

static void close_(Scene *scene) {
    kill(-scene->mpirun, SIGKILL);
    waitpid(scene->mpirun, NULL, 0);
    launch_watch_free(&scene->watch);
    status_page_close(scene->status_page);
    unlink(scene->path);
}

static void look_(Scene *scene) {
    launch_watch_processes(&scene->watch, scene->status_page, 1);
}

static void look_until_met_(Scene *scene, int identified) {
    for (int tries = 0; tries < 1000; tries++) {
        int found = 0;
        look_(scene);
        for (int rank = 0; rank < RANKS; rank++) found += launch_watch_met(&scene->watch, rank);
        if (scene->watch.met == RANKS && found >= identified) return;
        nap_ms_(5);
    }
    fail_msg("%d of %d processes were met", scene->watch.met, RANKS);
}

static void end_(const Scene *scene, int which) {
    pid_t pid = scene->watch.process[which].pid;
    kill(pid, SIGKILL);
    for (int tries = 0; tries < 1000 && kill(pid, 0) == 0; tries++) nap_ms_(5); // until the shell has taken its status
}

#define SLEEP(rank) "OMPI_COMM_WORLD_RANK=" #rank " sleep 60 & "
#define WAIT        "for i in 1 2 3 4 5 6 7 8; do wait; done"

// Whoever it was, and though all have gone when the parent looks: as when mpirun kills the others.
static void the_first_of_all_is_known(void **state) {
    (void)state;
    for (int first = 0; first < RANKS; first++) {
        Scene scene;
        open_(&scene, SLEEP(0) SLEEP(1) SLEEP(2) WAIT);
        look_until_met_(&scene, RANKS);
        assert_true(launch_watch_complete(&scene.watch));
        assert_int_equal(launch_watch_dead(&scene.watch), -1);
        for (int i = 0; i < RANKS; i++) end_(&scene, (first + RANKS - i) % RANKS);
        look_(&scene);
        assert_int_equal(launch_watch_dead(&scene.watch), first);
        assert_true(scene.watch.certain);
        close_(&scene);
    }
}

// mpirun starts one after another and looks for deaths afterwards.
static void one_may_die_before_the_others_are_started(void **state) {
    (void)state;
    Scene scene;
    open_(&scene, SLEEP(0) "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; " SLEEP(1) SLEEP(2) WAIT);
    for (int tries = 0; tries < 1000 && !launch_watch_met(&scene.watch, 0); tries++) look_(&scene), nap_ms_(5);
    assert_true(scene.watch.met < RANKS);
    kill(scene.watch.process[0].pid, SIGKILL);
    for (int tries = 0; tries < 1000 && scene.watch.first < 0; tries++) look_(&scene), nap_ms_(5);
    look_until_met_(&scene, RANKS);
    end_(&scene, 1), end_(&scene, 2);
    look_(&scene);
    assert_int_equal(launch_watch_dead(&scene.watch), 0);
    assert_true(scene.watch.certain);
    close_(&scene);
}

// Before it has said, by its environment or on the board, which one it is.
static void one_without_a_name_is_the_one_that_is_missing(void **state) {
    (void)state;
    Scene scene;
    open_(&scene, SLEEP(0) "sleep 60 & " SLEEP(2) WAIT);
    look_until_met_(&scene, RANKS - 1);
    assert_false(launch_watch_complete(&scene.watch));
    for (int which = 0; which < RANKS; which++)
        if (scene.watch.process[which].rank < 0) end_(&scene, which);
    look_(&scene);
    assert_int_equal(launch_watch_dead(&scene.watch), 1);
    assert_true(scene.watch.certain);
    close_(&scene);
}

static void two_without_names_are_not_told_apart(void **state) {
    (void)state;
    Scene scene;
    open_(&scene, "sleep 60 & sleep 60 & " SLEEP(2) WAIT);
    look_until_met_(&scene, 1);
    for (int which = 0; which < RANKS; which++)
        if (scene.watch.process[which].rank < 0) end_(&scene, which);
    look_(&scene);
    assert_int_equal(launch_watch_dead(&scene.watch), -1);
    close_(&scene);
}

// Two that are there no longer when the parent looks for the first time may have ended in any order.
static void what_ended_before_it_was_met_is_not_certain(void **state) {
    (void)state;
    Scene scene;
    open_(&scene,
          "OMPI_COMM_WORLD_RANK=0 true & OMPI_COMM_WORLD_RANK=1 true & " SLEEP(2) "exec sleep 60"); // never waits
    nap_ms_(400);
    look_(&scene);
    assert_true(scene.watch.first >= 0);
    assert_false(scene.watch.certain);
    close_(&scene);
}

// A rank that reported said itself why it ends, and is no death.
static void one_that_reported_did_not_die(void **state) {
    (void)state;
    Scene scene;
    open_(&scene, SLEEP(0) SLEEP(1) SLEEP(2) WAIT);
    look_until_met_(&scene, RANKS);
    setenv(STATUS_PAGE_VARIABLE, scene.path, 1);
    StatusPage *rank = status_page_attach(scene.watch.process[0].rank);
    assert_true(status_page_report(rank, 1, "why"));
    end_(&scene, 0);
    look_(&scene);
    assert_int_equal(scene.watch.first, -1);
    end_(&scene, 2);
    look_(&scene);
    assert_int_equal(launch_watch_dead(&scene.watch), scene.watch.process[2].rank);
    status_page_close(rank);
    unsetenv(STATUS_PAGE_VARIABLE);
    close_(&scene);
}

static void the_kernel_knows_other_processes(void **state) {
    (void)state;
    char value[16], path[4096];
    assert_int_equal(process_parent(getpid()), getppid());
    assert_int_equal(process_parent(1 << 30), 0);
    assert_true(process_variable(getpid(), "PATH", path, sizeof path));
    assert_string_equal(path, getenv("PATH"));
    assert_false(process_variable(getpid(), "PAT", path, sizeof path));
    assert_false(process_variable(getpid(), "PATH", value, 2));
    assert_false(process_variable(1 << 30, "PATH", path, sizeof path));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_of_all_is_known),
        cmocka_unit_test(one_may_die_before_the_others_are_started),
        cmocka_unit_test(one_without_a_name_is_the_one_that_is_missing),
        cmocka_unit_test(two_without_names_are_not_told_apart),
        cmocka_unit_test(what_ended_before_it_was_met_is_not_certain),
        cmocka_unit_test(one_that_reported_did_not_die),
        cmocka_unit_test(the_kernel_knows_other_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
