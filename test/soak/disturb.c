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
#define REAL(result, name, ...)                                                                                        \
    ({                                                                                                                 \
        static result (*real_)(__VA_ARGS__);                                                                           \
        if (real_ == NULL) real_ = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);                                     \
        real_;                                                                                                         \
    })

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
    int file = REAL(int, "open", const char *, int, ...)(setting_("DISTURB_ONCE"), O_CREAT | O_EXCL | O_WRONLY, 0600);
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

#define FAIL_OR(failed, call)                                                                                          \
    int why = failed;                                                                                                  \
    return why != 0 ? errno = why, -1 : (call)

int open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = va_arg(list, mode_t);
    va_end(list);
    FAIL_OR(count_path_(path), REAL(int, "open", const char *, int, ...)(path, flags, mode));
}

int open64(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = va_arg(list, mode_t);
    va_end(list);
    FAIL_OR(count_path_(path), REAL(int, "open64", const char *, int, ...)(path, flags, mode));
}

int openat(int folder, const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = va_arg(list, mode_t);
    va_end(list);
    FAIL_OR(folder >= 0 ? count_file_(folder) : count_path_(path),
            REAL(int, "openat", int, const char *, int, ...)(folder, path, flags, mode));
}

ssize_t read(int file, void *to, size_t bytes) {
    FAIL_OR(count_file_(file), REAL(ssize_t, "read", int, void *, size_t)(file, to, bytes));
}

ssize_t pread(int file, void *to, size_t bytes, off_t at) {
    FAIL_OR(count_file_(file), REAL(ssize_t, "pread", int, void *, size_t, off_t)(file, to, bytes, at));
}

ssize_t write(int file, const void *from, size_t bytes) {
    FAIL_OR(count_file_(file), REAL(ssize_t, "write", int, const void *, size_t)(file, from, bytes));
}

ssize_t pwrite(int file, const void *from, size_t bytes, off_t at) {
    FAIL_OR(count_file_(file), REAL(ssize_t, "pwrite", int, const void *, size_t, off_t)(file, from, bytes, at));
}

int fsync(int file) { FAIL_OR(count_file_(file), REAL(int, "fsync", int)(file)); }

int fdatasync(int file) { FAIL_OR(count_file_(file), REAL(int, "fdatasync", int)(file)); }

int mkdir(const char *path, mode_t mode) {
    FAIL_OR(count_path_(path), REAL(int, "mkdir", const char *, mode_t)(path, mode));
}

int rename(const char *from, const char *to) {
    FAIL_OR(count_path_(from), REAL(int, "rename", const char *, const char *)(from, to));
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    FAIL_OR(from_folder >= 0 ? count_file_(from_folder) : count_path_(from),
            REAL(int, "renameat2", int, const char *, int, const char *, unsigned)(from_folder, from, to_folder, to,
                                                                                   flags));
}

int unlinkat(int folder, const char *path, int flags) {
    FAIL_OR(folder >= 0 ? count_file_(folder) : count_path_(path),
            REAL(int, "unlinkat", int, const char *, int)(folder, path, flags));
}

static void __attribute__((constructor)) look_up_(void) { calls_ += (int)(read(-1, NULL, 0) + write(-1, NULL, 0)) + 2; }

int clock_gettime(clockid_t clock, struct timespec *time) {
    int status = REAL(int, "clock_gettime", clockid_t, struct timespec *)(clock, time);
    if (clock == CLOCK_REALTIME) time->tv_sec += atomic_load(&clock_jump_s_);
    return status;
}
