// Detection of the rank that ended first, by the parent. Deaths in complete launches: test_faults.py.
#include "launch/launch_private.h"
#include "unit.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3 };

typedef struct Scene {
    Coordinator *coordinator;
    LaunchChildren watch;
    pid_t mpirun;
} Scene;

static void nap_ms_(int ms) {
    struct timespec nap = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&nap, NULL);
}

// Starts a shell in place of mpirun, in its own process group.
static void open_(Scene *scene, const char *script) {
    Error err = {0};
    memset(scene, 0, sizeof *scene);
    Job job = {.ranks = RANKS, .one_host = true, .remedy = "go on"};
    scene->coordinator = coordinator_open(&job, &err);
    assert_non_null(scene->coordinator);
    assert_int_equal(launch_children_open(&scene->watch, RANKS, scene->coordinator, &err), 0);
    scene->mpirun = fork();
    if (scene->mpirun == 0) {
        setpgid(0, 0);
        execlp("sh", "sh", "-c", script, (char *)NULL);
        _exit(127);
    }
    setpgid(scene->mpirun, scene->mpirun);
}

static void close_(Scene *scene) {
    kill(-scene->mpirun, SIGKILL);
    waitpid(scene->mpirun, NULL, 0);
    launch_children_close(&scene->watch);
    coordinator_close(scene->coordinator);
}

static bool met_(const LaunchChildren *children, int rank) {
    for (int i = 0; i < children->count; i++)
        if (children->child[i].rank == rank) return true;
    return false;
}

static void look_(Scene *scene) { launch_children_look(&scene->watch, scene->mpirun, 1); }

static void look_until_met_(Scene *scene, int identified) {
    for (int tries = 0; tries < 1000; tries++) {
        int found = 0;
        look_(scene);
        for (int rank = 0; rank < RANKS; rank++) found += met_(&scene->watch, rank);
        if (scene->watch.count == RANKS && found >= identified) return;
        nap_ms_(5);
    }
    fail_msg("%d of %d processes were met", scene->watch.count, RANKS);
}

static void end_(const Scene *scene, int which) {
    pid_t pid = scene->watch.child[which].pid;
    kill(pid, SIGKILL);
    for (int tries = 0; tries < 1000 && kill(pid, 0) == 0; tries++) nap_ms_(5); // until the shell has reaped it
}

#define SLEEP(rank) "OMPI_COMM_WORLD_RANK=" #rank " sleep 60 & "
#define WAIT        "for i in 1 2 3 4 5 6 7 8; do wait; done"

// For any child, even if all have ended when the parent looks: mpirun kills the others after the first death.
TEST(the_first_child_to_end_is_known) {
    for (int first = 0; first < RANKS; first++) {
        Scene scene;
        open_(&scene, SLEEP(0) SLEEP(1) SLEEP(2) WAIT);
        look_until_met_(&scene, RANKS);
        assert_true(launch_children_complete(&scene.watch));
        assert_int_equal(launch_children_lost(&scene.watch), -1);
        for (int i = 0; i < RANKS; i++) end_(&scene, (first + RANKS - i) % RANKS);
        look_(&scene);
        assert_int_equal(launch_children_lost(&scene.watch), first);
        assert_true(scene.watch.sure);
        close_(&scene);
    }
}

// mpirun starts its children one after another and only then looks for deaths.
TEST(one_child_may_die_before_the_others_are_started) {
    Scene scene;
    open_(&scene, SLEEP(0) "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; " SLEEP(1) SLEEP(2) WAIT);
    for (int tries = 0; tries < 1000 && !met_(&scene.watch, 0); tries++) look_(&scene), nap_ms_(5);
    assert_true(scene.watch.count < RANKS);
    kill(scene.watch.child[0].pid, SIGKILL);
    for (int tries = 0; tries < 1000 && scene.watch.first < 0; tries++) look_(&scene), nap_ms_(5);
    look_until_met_(&scene, RANKS);
    end_(&scene, 1), end_(&scene, 2);
    look_(&scene);
    assert_int_equal(launch_children_lost(&scene.watch), 0);
    assert_true(scene.watch.sure);
    close_(&scene);
}

// The child ends before its environment or the status page has named its rank.
TEST(one_child_without_a_rank_is_the_rank_that_is_missing) {
    Scene scene;
    open_(&scene, SLEEP(0) "sleep 60 & " SLEEP(2) WAIT);
    look_until_met_(&scene, RANKS - 1);
    assert_false(launch_children_complete(&scene.watch));
    for (int which = 0; which < RANKS; which++)
        if (scene.watch.child[which].rank < 0) end_(&scene, which);
    look_(&scene);
    assert_int_equal(launch_children_lost(&scene.watch), 1);
    assert_true(scene.watch.sure);
    close_(&scene);
}

TEST(two_children_without_ranks_are_not_told_apart) {
    Scene scene;
    open_(&scene, "sleep 60 & sleep 60 & " SLEEP(2) WAIT);
    look_until_met_(&scene, 1);
    for (int which = 0; which < RANKS; which++)
        if (scene.watch.child[which].rank < 0) end_(&scene, which);
    look_(&scene);
    assert_int_equal(launch_children_lost(&scene.watch), -1);
    close_(&scene);
}

// If two children have ended before the parent first looks, their order is unknown.
TEST(a_child_that_ended_before_it_was_found_is_not_certain_to_be_the_first) {
    Scene scene;
    open_(&scene,
          "OMPI_COMM_WORLD_RANK=0 true & OMPI_COMM_WORLD_RANK=1 true & " SLEEP(2) "exec sleep 60"); // never waits
    nap_ms_(400);
    look_(&scene);
    assert_true(scene.watch.first >= 0);
    assert_false(scene.watch.sure);
    close_(&scene);
}

// A rank that reported an error has ended on purpose, so its end does not count as a death.
TEST(a_child_that_reported_did_not_die) {
    Scene scene;
    open_(&scene, SLEEP(0) SLEEP(1) SLEEP(2) WAIT);
    look_until_met_(&scene, RANKS);
    RankStatus ended = {.ending = ENDING_REPORTED, .code = 1, .text = "why"};
    coordinator_hear(scene.coordinator, scene.watch.child[0].rank, &ended, 1);
    end_(&scene, 0);
    look_(&scene);
    assert_int_equal(scene.watch.first, -1);
    end_(&scene, 2);
    look_(&scene);
    assert_int_equal(launch_children_lost(&scene.watch), scene.watch.child[2].rank);
    close_(&scene);
}

TEST(the_kernel_knows_other_processes) {
    char value[16], path[4096];
    assert_true(launch_process_variable(getpid(), "PATH", path, sizeof path));
    assert_string_equal(path, getenv("PATH"));
    assert_false(launch_process_variable(getpid(), "PAT", path, sizeof path));
    assert_false(launch_process_variable(getpid(), "PATH", value, 2));
    assert_false(launch_process_variable(1 << 30, "PATH", path, sizeof path));
}
