// The folder of a launch: removing it removes its content and ends every process that belongs to it. Complete launches:
// test_launch.py.
#include "base/clock.h"
#include "launch/launch_private.h"
#include "ranks/supervisor.h"
#include "unit.h"

#include <dlfcn.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// Returns true once no path matches the pattern, and false if one still does after 10 seconds.
static bool gone_(const char *pattern) {
    bool found = true;
    for (int tries = 0; found && tries < 200; tries++) {
        glob_t paths = {0};
        found = glob(pattern, 0, NULL, &paths) == 0;
        globfree(&paths);
        if (found) clock_sleep(0.05);
    }
    return !found;
}

// Starts a stray process of the launch that ignores TERM, HUP and INT.
static pid_t start_stray_(const LaunchFolder *folder) {
    pid_t child = fork();
    if (child != 0) return child;
    setenv(SUPERVISOR_FOLDER, folder->path, 1);
    execlp("sh", "sh", "-c", "trap '' TERM HUP INT; while :; do sleep 0.05; done", (char *)NULL);
    _exit(127);
}

TEST(strays_end_with_the_folder) {
    LaunchFolder folder;
    int status;
    assert_succeeds(launch_folder_create(&folder, 2, &unit_error));
    pid_t child = start_stray_(&folder);
    clock_sleep(0.3);
    assert_true(launch_folder_signal(&folder, 0) >= 1);
    launch_folder_remove(&folder);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// Wraps the C library's mkdtemp; can kill the process with the id in the name: 17 for trainer-17-XXXXXX.
static bool kills_parent_;
char *mkdtemp(char *name) {
    char *(*real)(char *) = (char *(*)(char *))dlsym(RTLD_NEXT, "mkdtemp"), *made = real(name);
    if (kills_parent_) kill(atoi(strstr(name, "trainer-") + strlen("trainer-")), SIGKILL);
    return made;
}

TEST(a_parent_that_is_killed_when_the_folder_is_made_leaves_none) {
    char path[64];
    pid_t parent = fork();
    if (parent == 0) {
        LaunchFolder folder;
        Error err = {0};
        kills_parent_ = true;
        launch_folder_create(&folder, 2, &err);
        _exit(1);
    }
    waitpid(parent, NULL, 0);
    snprintf(path, sizeof path, "/dev/shm/trainer-%d-*", (int)parent);
    assert_true(gone_(path));
}
