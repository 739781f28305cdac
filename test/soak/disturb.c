// Preloaded into a run of chaos.py: disturbs one process at its k-th file call below one folder.
//
//   DISTURB_FOLDER  calls on files below it count (opening, reading, writing, syncing, renaming, removing)
//   DISTURB_RANK    the process: a rank, or -1 for the program that starts the ranks
//   DISTURB_CALL    k, from 1
//   DISTURB_KIND    an errno to fail with, or "kill", "abort", "stop", "nap", "clock", or "hang", as a dead file server
//   DISTURB_LASTS   how many calls fail
//   DISTURB_ONCE    a file that the first disturbance creates; while it exists, no other process is disturbed
//   DISTURB_STEP_MS pause at each line of metrics, so that the run is long enough to be disturbed from outside; while
//                   the file DISTURB_FOLDER/hold exists, the pause goes on
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

// Looked up only once: mpirun writes in a signal handler, which may interrupt dlsym while it holds its lock.
#define LOOK_UP(result, name, parameters)                                                                              \
    static result(*real_) parameters;                                                                                  \
    if (real_ == NULL) real_ = (result(*) parameters)dlsym(RTLD_NEXT, #name)

static atomic_int calls_, begun_;
static atomic_long clock_jump_s_;

static const char *setting_(const char *name) {
    const char *value = getenv(name);
    return value != NULL ? value : "";
}

static bool chosen_(void) {
    const char *own = getenv("OMPI_COMM_WORLD_RANK");
    return setting_("DISTURB_CALL")[0] != '\0' && strncmp(program_invocation_short_name, "train_", 6) == 0 &&
           atoi(own != NULL ? own : "-1") == atoi(setting_("DISTURB_RANK"));
}

static void nap_(long ms) {
    struct timespec nap = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&nap, NULL);
}

// Returns whether this process may disturb: only one process does so per run.
static bool begin_(void) {
    if (atomic_exchange(&begun_, 1) != 0) return true;
    LOOK_UP(int, open, (const char *, int, ...));
    int file = real_(setting_("DISTURB_ONCE"), O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (file >= 0) return close(file), true;
    atomic_store(&calls_, 1 << 30);
    return false;
}

static int disturb_(void) {
    const char *kind = setting_("DISTURB_KIND");
    if (!begin_()) return 0;
    if (strcmp(kind, "kill") == 0) kill(getpid(), SIGKILL);
    if (strcmp(kind, "abort") == 0) abort();
    if (strcmp(kind, "stop") == 0) kill(getpid(), SIGSTOP);
    if (strcmp(kind, "nap") == 0) nap_(300);
    while (strcmp(kind, "hang") == 0) pause();
    if (strcmp(kind, "clock") == 0) atomic_store(&clock_jump_s_, atol(setting_("DISTURB_JUMP")));
    return atoi(kind);
}

// Counts a call; returns the errno with which it must fail, or 0 to make the call.
static int count_(void) {
    int at = atoi(setting_("DISTURB_CALL")), lasts = atoi(setting_("DISTURB_LASTS"));
    if (!chosen_()) return 0;
    int call = atomic_fetch_add(&calls_, 1) + 1;
    return call >= at && call < at + (lasts > 0 ? lasts : 1) ? disturb_() : 0;
}

static int count_path_(const char *path) {
    const char *folder = setting_("DISTURB_FOLDER");
    return folder[0] != '\0' && strncmp(path, folder, strlen(folder)) == 0 ? count_() : 0;
}

static bool file_path_(int file, char path[512]) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t length = readlink(name, path, 511);
    path[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static int count_file_(int file) {
    char path[512];
    if (strncmp(program_invocation_short_name, "train_", 6) != 0 || !file_path_(file, path)) return 0;
    if (setting_("DISTURB_STEP_MS")[0] != '\0' && strstr(path, "metrics.jsonl") != NULL) {
        char hold[512];
        snprintf(hold, sizeof hold, "%s/hold", setting_("DISTURB_FOLDER"));
        do nap_(atol(setting_("DISTURB_STEP_MS")));
        while (access(hold, F_OK) == 0);
    }
    return count_path_(path);
}

static int count_at_(int folder, const char *path) { return folder >= 0 ? count_file_(folder) : count_path_(path); }

// Defines a function of the C library that fails with the errno `failed`, or calls the library's with these values.
#define WRAP(result, name, parameters, failed, ...)                                                                    \
    result name parameters {                                                                                           \
        LOOK_UP(result, name, parameters);                                                                             \
        int why = failed;                                                                                              \
        return why != 0 ? errno = why, -1 : real_(__VA_ARGS__);                                                        \
    }
#define WRAP_OPEN(name, parameters, failed, ...)                                                                       \
    int name parameters {                                                                                              \
        LOOK_UP(int, name, parameters);                                                                                \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode_t mode = va_arg(list, mode_t);                                                                            \
        va_end(list);                                                                                                  \
        int why = failed;                                                                                              \
        return why != 0 ? errno = why, -1 : real_(__VA_ARGS__, flags, mode);                                           \
    }

WRAP_OPEN(open, (const char *path, int flags, ...), count_path_(path), path)
WRAP_OPEN(open64, (const char *path, int flags, ...), count_path_(path), path)
WRAP_OPEN(openat, (int folder, const char *path, int flags, ...), count_at_(folder, path), folder, path)
WRAP(ssize_t, read, (int file, void *to, size_t bytes), count_file_(file), file, to, bytes)
WRAP(ssize_t, pread, (int file, void *to, size_t bytes, off_t at), count_file_(file), file, to, bytes, at)
WRAP(ssize_t, write, (int file, const void *from, size_t bytes), count_file_(file), file, from, bytes)
WRAP(ssize_t, pwrite, (int file, const void *from, size_t bytes, off_t at), count_file_(file), file, from, bytes, at)
WRAP(int, fsync, (int file), count_file_(file), file)
WRAP(int, fdatasync, (int file), count_file_(file), file)
WRAP(int, mkdir, (const char *path, mode_t mode), count_path_(path), path, mode)
WRAP(int, rename, (const char *from, const char *to), count_path_(from), from, to)
WRAP(int, renameat2, (int folder, const char *from, int other, const char *to, unsigned flags), count_at_(folder, from),
     folder, from, other, to, flags)
WRAP(int, unlinkat, (int folder, const char *path, int flags), count_at_(folder, path), folder, path, flags)

static void __attribute__((constructor)) look_up_(void) { calls_ += (int)(read(-1, NULL, 0) + write(-1, NULL, 0)) + 2; }

int clock_gettime(clockid_t clock, struct timespec *time) {
    LOOK_UP(int, clock_gettime, (clockid_t, struct timespec *));
    int status = real_(clock, time);
    if (clock == CLOCK_REALTIME) time->tv_sec += atomic_load(&clock_jump_s_);
    return status;
}
