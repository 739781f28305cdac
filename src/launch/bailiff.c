#include "bailiff.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Where the network is well, mpirun ends about three seconds after the ranks.
enum { LOOK_MS = 100, GRACE_MS = 5000, LONGEST_MS = 7000, FILES = 4096 };

// The rank may be ending in the middle of anything: only calls that a signal handler may make.
static bool is_named_(pid_t pid, const char *const *names) {
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, name, sizeof name - 1);
    if (file >= 0) close(file);
    name[length > 0 ? length : 0] = '\0';
    for (; *names != NULL; names++)
        if (strncmp(name, *names, strlen(*names)) == 0) return true;
    return false;
}

// Those on the other hosts clean up when they are told to; mpirun itself does not hear a second request.
static const char *const daemons_[] = {"orted", "prted", NULL};
static const char *const starters_[] = {"mpirun", "mpiexec", "orterun", "prterun", "prte", NULL};

static bool is_launcher_(pid_t pid) {
    return is_named_(pid, daemons_) || is_named_(pid, starters_);
}

static void wait_and_end_(pid_t launcher) {
    struct timespec nap = {0, LOOK_MS * 1000000L};
    for (int ms = 0; ms < LONGEST_MS && is_launcher_(launcher); ms += LOOK_MS) {
        if (ms == GRACE_MS) kill(launcher, is_named_(launcher, daemons_) ? SIGTERM : SIGKILL);
        nanosleep(&nap, NULL);
    }
    if (is_launcher_(launcher)) kill(launcher, SIGKILL);
}

void bailiff_leave(pid_t launcher) {
    if (launcher <= 1 || !is_launcher_(launcher) || fork() != 0) return;
    // Out of the group that the launcher ends, and without the pipes by which it knows that a rank is still there.
    setsid();
    for (int file = 0; file < FILES; file++) close(file);
    wait_and_end_(launcher);
    _exit(0);
}
