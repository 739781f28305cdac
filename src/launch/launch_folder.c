#include "launch_folder.h"
#include "ranks/status_page.h"
#include "processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// --- processes of this launch

typedef struct Signalled {
    const LaunchFolder *folder;
    int signal, alive;
} Signalled;

static void signal_(pid_t pid, void *context) {
    Signalled *all = context;
    char status_page[sizeof all->folder->status_page];
    if (pid == getpid() || !process_variable(pid, STATUS_PAGE_VARIABLE, status_page, sizeof status_page) ||
        strcmp(status_page, all->folder->status_page) != 0)
        return;
    all->alive++;
    if (all->signal != 0) kill(pid, all->signal);
}

int launch_folder_signal(const LaunchFolder *folder, int signal) {
    Signalled all = {folder, signal, 0};
    processes_each(0, signal_, &all);
    return all.alive;
}

static void nap_ms_(int ms) {
    struct timespec nap = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&nap, NULL);
}

// --- the folder's end

static int folder_remove_entry_(const char *path, const struct stat *status, int type, struct FTW *walk) {
    (void)status, (void)type, (void)walk;
    remove(path);
    return 0;
}

static void end_launch_(const LaunchFolder *folder) {
    for (int tries = 0; tries < 100 && launch_folder_signal(folder, SIGKILL) > 0; tries++) nap_ms_(20);
    nftw(folder->path, folder_remove_entry_, 16, FTW_DEPTH | FTW_PHYS);
}

// --- the caretaker: lives as long as the parent, without its terminal, files and signals

static void let_go_(int keep) {
    setsid();
    for (int number = 1; number < NSIG; number++) signal(number, SIG_IGN); // KILL and STOP refuse
    int null = open("/dev/null", O_RDWR);
    for (int file = 0; file < 3; file++) dup2(null, file);
    DIR *files = opendir("/proc/self/fd");
    if (files == NULL) return;
    int own = dirfd(files);
    for (struct dirent *entry; (entry = readdir(files)) != NULL;) {
        int file = atoi(entry->d_name);
        if (file > 2 && file != keep && file != own) close(file);
    }
    closedir(files);
}

static void be_caretaker_(const LaunchFolder *folder, int parents_end) {
    enum { GRACE_MS = 4000, LOOK_MS = 50 };
    char byte;
    let_go_(parents_end);
    while (read(parents_end, &byte, 1) > 0) {}
    if (access(folder->path, F_OK) != 0) return; // the parent has done it
    // mpirun gets SIGTERM when its parent dies, and ends its ranks.
    for (int ms = 0; ms < GRACE_MS && launch_folder_signal(folder, 0) > 0; ms += LOOK_MS) nap_ms_(LOOK_MS);
    end_launch_(folder);
}

static int start_caretaker_(LaunchFolder *folder, Error *err) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return error_set(err, EXIT_FAILED, "cannot make a pipe; too many open files?");
    folder->caretaker = fork();
    if (folder->caretaker == 0) {
        close(ends[1]);
        be_caretaker_(folder, ends[0]);
        _exit(0);
    }
    close(ends[0]);
    folder->caretaker_end = ends[1];
    if (folder->caretaker > 0) return 0;
    close(ends[1]);
    return error_set(err, EXIT_FAILED, "cannot start a process; too many already?");
}

// --- making and removing

static int make_in_(LaunchFolder *folder, const char *base) {
    // With the parent's id in its name, so that people see whose it is.
    int length = snprintf(folder->path, sizeof folder->path, "%s/trainer-%d-XXXXXX", base, (int)getpid());
    return length < (int)sizeof folder->path && mkdtemp(folder->path) != NULL ? 0 : -1;
}

int launch_folder_create(LaunchFolder *folder, Error *err) {
    const char *temporary = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    memset(folder, 0, sizeof *folder);
    // Messages between ranks go through it, so memory is the place for it.
    if (make_in_(folder, "/dev/shm") != 0 && make_in_(folder, temporary) != 0)
        return error_set(err, EXIT_FAILED,
                         "cannot make a folder in /dev/shm or %s; set TMPDIR to one that can be written", temporary);
    snprintf(folder->status_page, sizeof folder->status_page, "%s/board", folder->path);
    if (start_caretaker_(folder, err) == 0) return 0;
    rmdir(folder->path);
    return -1;
}

void launch_folder_remove(LaunchFolder *folder) {
    end_launch_(folder);
    close(folder->caretaker_end);
    waitpid(folder->caretaker, NULL, 0);
}
