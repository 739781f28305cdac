// The folder of a launch, the processes that belong to it, and the caretaker. A process belongs to the launch if it was
// started with the folder's path in its environment, which holds whatever process its parent is now.
#include "launch_private.h"

#include "ranks/supervisor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// --- processes of this launch

bool launch_process_variable(pid_t pid, const char *name, char *value, size_t size) {
    char path[64], *entry = NULL;
    size_t capacity = 0, length = strlen(name);
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *file = fopen(path, "re");
    while (!found && file != NULL && getdelim(&entry, &capacity, '\0', file) > 0)
        found = strncmp(entry, name, length) == 0 && entry[length] == '=';
    if (found) found = snprintf(value, size, "%s", entry + length + 1) < (int)size;
    free(entry);
    if (file != NULL) fclose(file);
    return found;
}

int launch_folder_signal(const LaunchFolder *folder, int number) {
    char path[sizeof folder->path];
    int alive = 0;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes != NULL && (entry = readdir(processes)) != NULL;) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid <= 0 || pid == getpid()) continue;
        if (!launch_process_variable(pid, SUPERVISOR_FOLDER, path, sizeof path)) continue;
        if (strcmp(path, folder->path) != 0) continue;
        alive++;
        if (number != 0) kill(pid, number);
    }
    if (processes != NULL) closedir(processes);
    return alive;
}

// --- the folder's end

static int launch_remove_entry_(const char *path, const struct stat *status, int type, struct FTW *walk) {
    (void)status, (void)type, (void)walk;
    remove(path);
    return 0;
}

static void launch_folder_clear_(const LaunchFolder *folder) {
    const struct timespec nap = {0, 20000000};
    for (int tries = 0; tries < 100 && launch_folder_signal(folder, SIGKILL) > 0; tries++) nanosleep(&nap, NULL);
    nftw(folder->path, launch_remove_entry_, 16, FTW_DEPTH | FTW_PHYS);
}

void launch_folder_remove(LaunchFolder *folder) {
    launch_folder_clear_(folder);
    close(folder->caretaker_end);
    waitpid(folder->caretaker, NULL, 0);
}

// --- the caretaker: lives as long as the parent, without its terminal, files and signals

static void launch_caretaker_detach_(int keep) {
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

static int launch_caretaker_start_(LaunchFolder *folder, Error *err) {
    int ends[2];
    char byte;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return error_set(err, EXIT_FAILED, "cannot make a pipe (%s); raise ulimit -n", strerror(errno));
    folder->caretaker = fork();
    if (folder->caretaker == 0) {
        close(ends[1]);
        launch_caretaker_detach_(ends[0]);
        while (read(ends[0], &byte, 1) > 0) {}
        if (access(folder->path, F_OK) == 0) launch_folder_clear_(folder);
        _exit(0);
    }
    close(ends[0]);
    folder->caretaker_end = ends[1];
    if (folder->caretaker > 0) return 0;
    close(ends[1]);
    return error_set(err, EXIT_FAILED, "cannot start a process (%s); raise ulimit -u", strerror(errno));
}

// --- making

static int launch_folder_make_(LaunchFolder *folder, const char *base, int ranks) {
    struct statvfs space;
    // The parent's id in the name tells people which run the folder belongs to.
    int length = snprintf(folder->path, sizeof folder->path, "%s/trainer-%d-XXXXXX", base, (int)getpid());
    if (length >= (int)sizeof folder->path || statvfs(base, &space) != 0) return -1;
    // Open MPI maps a segment of 4 MiB for each rank, and crashes (SIGBUS) where there is no space for it.
    if ((uint64_t)space.f_bavail * space.f_frsize < (uint64_t)ranks * 5 << 20) return -1;
    return mkdtemp(folder->path) != NULL ? 0 : -1;
}

int launch_folder_create(LaunchFolder *folder, int ranks, Error *err) {
    const char *temporary = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    memset(folder, 0, sizeof *folder);
    // Messages between ranks go through it, so it should be in memory.
    if (launch_folder_make_(folder, "/dev/shm", ranks) != 0 && launch_folder_make_(folder, temporary, ranks) != 0)
        return error_set(err, EXIT_FAILED,
                         "no writable folder has %d MiB free for the messages of %d ranks (tried /dev/shm and %s); "
                         "make /dev/shm larger, or set TMPDIR to a folder with space",
                         5 * ranks, ranks, temporary);
    if (launch_caretaker_start_(folder, err) == 0) return 0;
    rmdir(folder->path);
    return -1;
}
