// Starts mpirun and tracks the processes that it starts. Our Open MPI settings are passed in mpirun's environment; most
// of them do not override the user's. The coordinator's key is passed there too, because other users must not see it.
#include "launch_private.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/files.h"
#include "ranks/affinity.h"
#include "ranks/supervisor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// --- mpirun and its arguments

// Finds mpirun. Looks first for mpirun.openmpi (Debian): under another MPI's mpirun, ranks would not see each other.
static int mpirun_find_(char *path, size_t size, Error *err) {
    static const char *const names[] = {"mpirun.openmpi", "mpirun"};
    const char *search = getenv("PATH") != NULL ? getenv("PATH") : "/usr/local/bin:/usr/bin:/bin";
    for (int i = 0; i < 2; i++)
        for (const char *at = search; *at != '\0'; at += strspn(at, ":")) {
            int length = (int)strcspn(at, ":");
            snprintf(path, size, "%.*s/%s", length, at, names[i]);
            if (access(path, X_OK) == 0) return 0;
            at += length;
        }
    return error_set(err, EXIT_FAILED,
                     "mpirun, which starts several ranks, was not found in PATH; install Open MPI "
                     "(scripts/install_deps.sh), or set parallel.pipeline, tensor and data to 1");
}

// Checks resource limits that mpirun depends on but does not check. If the limit on open files is too low, mpirun hangs
// without a message. Limits that were measured to suffice: 36, 44 and 64 open files for 2, 4 and 8 ranks.
static int mpirun_check_limits_(int ranks, Error *err) {
    char here[4096];
    rlim_t needed = 32 + 5 * (rlim_t)ranks;
    struct rlimit limit;
    if (getcwd(here, sizeof here) == NULL)
        return error_set(err, EXIT_FAILED, "the working directory cannot be entered (%s); change to another directory",
                         strerror(errno));
    for (int i = 0; i < 2; i++) {
        bool space = i == 0;
        rlim_t least = (rlim_t)(space ? 256 : 64) << 20; // measured; mpirun does not report that it needs more
        if (getrlimit(space ? RLIMIT_AS : RLIMIT_DATA, &limit) == 0 && limit.rlim_cur < least)
            return error_set(err, EXIT_FAILED, "mpirun needs %lld MiB of %s and is limited to %lld; raise ulimit %s",
                             (long long)least >> 20, space ? "address space" : "data", (long long)limit.rlim_cur >> 20,
                             space ? "-v" : "-d");
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return 0;
    if (limit.rlim_max >= needed) {
        limit.rlim_cur = needed;
        if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return 0;
    }
    return error_set(err, EXIT_FAILED,
                     "mpirun opens up to %lld files for %d ranks and is limited to %lld; raise ulimit -n",
                     (long long)needed, ranks, (long long)limit.rlim_max);
}

static void mpirun_set_environment_(int ranks, const LaunchFolder *folder, const Invitation *invitation) {
    char secret[INVITATION_TEXT], threads[16];
    snprintf(threads, sizeof threads, "%d", affinity_threads(ranks));
    invitation_write(invitation, secret);
    const struct {
        const char *name, *value;
        bool always; // even if the user has set it
    } variables[] = {
        {SUPERVISOR_VARIABLE, secret, true},
        {SUPERVISOR_FOLDER, folder->path, true},
        {LAUNCH_TERMINAL_VARIABLE, isatty(STDOUT_FILENO) ? "1" : "0", true},
        {"OMP_NUM_THREADS", threads, false},
        {"OMP_WAIT_POLICY", "passive", false},
        // Everything that Open MPI writes is in our folder and is removed with it.
        {"OMPI_MCA_orte_tmpdir_base", folder->path, true},
        {"OMPI_MCA_btl_vader_backing_directory", folder->path, true},
        // One machine: no ssh, no batch system, no port that other hosts reach, and no search for networks. That search
        // takes 0.2 of the 0.35 seconds of a start.
        {"OMPI_MCA_plm", "isolated", false},
        {"OMPI_MCA_ras", "^slurm,tm,gridengine,loadleveler,lsf", false},
        {"OMPI_MCA_oob_tcp_if_include", "lo", false},
        {"OMPI_MCA_pml", "ob1", false},
        {"OMPI_MCA_btl", "self,vader", false},
        // If the kernel forbids a process to read another process's memory, messages are copied through shared memory
        // in fragments. Ranks sleep between polls, so large fragments are faster: 1.1 GB/s, against 0.2 GB/s at the
        // default of 32 KB. Eight fragments of 1 MB would not fit into a segment, and shared memory would be unused.
        {"OMPI_MCA_btl_vader_max_send_size", "262144", false},
    };
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        setenv(variables[i].name, variables[i].value, variables[i].always);
}

// Prepares a forked child to execute mpirun. Exits if the parent died before the child set PR_SET_PDEATHSIG.
static void mpirun_detach_(pid_t parent, int results, int words, const sigset_t *mask) {
    struct sigaction action;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    int null = open("/dev/null", O_RDONLY); // a background group that reads the terminal would be stopped
    dup2(null, STDIN_FILENO);
    dup2(results, STDOUT_FILENO);
    dup2(words, STDERR_FILENO);
    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_IGN) signal(number, SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
}

static void mpirun_execute_(const char *mpirun, char *self, int ranks, char **argv) {
    char number[16], name[] = "mpirun", option[] = "-n", more[] = "--oversubscribe", root[] = "--allow-run-as-root",
                     bind[] = "--bind-to", none[] = "none";
    char *const own[] = {name, option, number, more, root, bind, none, self};
    size_t count = sizeof own / sizeof *own, given = 0;
    snprintf(number, sizeof number, "%d", ranks);
    while (argv[given] != NULL) given++;
    char **all = xcalloc(count + given, sizeof *all);
    memcpy(all, own, sizeof own);
    memcpy(all + count, argv + 1, given * sizeof *argv); // copies the NULL at the end, too
    execv(mpirun, all);
    _exit(127);
}

pid_t launch_mpirun(int ranks, char **argv, const LaunchFolder *folder, const Invitation *invitation, int results,
                    int words, Error *err) {
    char mpirun[4096], self[4096];
    sigset_t all, before;
    if (mpirun_find_(mpirun, sizeof mpirun, err) != 0 || mpirun_check_limits_(ranks, err) != 0) return -1;
    if (!file_of_program(self, sizeof self) || access(self, X_OK) != 0)
        return error_set(err, EXIT_FAILED,
                         "cannot find this program's executable to start the ranks; start the program again");
    // Block signals: until the child has detached, it has the parent's handlers, and these must not run in it.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        mpirun_set_environment_(ranks, folder, invitation);
        mpirun_detach_(parent, results, words, &before);
        mpirun_execute_(mpirun, self, ranks, argv);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (child < 0) error_set(err, EXIT_FAILED, "cannot start a process (%s); raise ulimit -u", strerror(errno));
    return child;
}

// --- mpirun's children

int launch_children_open(LaunchChildren *children, int ranks, const Coordinator *coordinator, Error *err) {
    *children =
        (LaunchChildren){.ranks = ranks, .coordinator = coordinator, .first = -1, .ends = epoll_create1(EPOLL_CLOEXEC)};
    children->child = xcalloc((size_t)ranks, sizeof *children->child);
    return children->ends >= 0
               ? 0
               : error_set(err, EXIT_FAILED, "cannot create an epoll instance (%s); raise ulimit -n", strerror(errno));
}

void launch_children_close(LaunchChildren *children) {
    for (int i = 0; i < children->count; i++)
        if (children->child[i].file >= 0) close(children->child[i].file);
    if (children->ends >= 0) close(children->ends);
    free(children->child);
}

bool launch_children_complete(const LaunchChildren *children) {
    for (int i = 0; i < children->count; i++)
        if (children->child[i].rank < 0 && children->child[i].file >= 0) return false;
    return children->count == children->ranks;
}

static void children_meet_(LaunchChildren *children, pid_t pid) {
    for (int i = 0; i < children->count; i++)
        if (children->child[i].pid == pid) return;
    int file = (int)syscall(SYS_pidfd_open, pid, 0);
    if (children->count == children->ranks || (file < 0 && errno == ESRCH)) return; // ESRCH: the child has just ended
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)children->count};
    if (file >= 0) epoll_ctl(children->ends, EPOLL_CTL_ADD, file, &event);
    children->child[children->count++] = (LaunchChild){pid, -1, file};
}

// Finds the children that any thread of mpirun has started, and their ranks.
static void children_find_(LaunchChildren *children, pid_t mpirun) {
    char path[512];
    long pid;
    snprintf(path, sizeof path, "/proc/%d/task", (int)mpirun);
    DIR *threads = opendir(path);
    for (struct dirent *entry; threads != NULL && (entry = readdir(threads)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)mpirun, entry->d_name);
        FILE *file = fopen(path, "re");
        while (file != NULL && fscanf(file, "%ld", &pid) == 1) children_meet_(children, (pid_t)pid);
        if (file != NULL) fclose(file);
    }
    if (threads != NULL) closedir(threads);
    for (int i = 0; i < children->count; i++) {
        LaunchChild *child = &children->child[i];
        char value[16];
        if (child->rank >= 0 || child->file < 0) continue;
        if (launch_process_variable(child->pid, "OMPI_COMM_WORLD_RANK", value, sizeof value)) child->rank = atoi(value);
    }
}

// Closes the files of children that have ended, in the order in which they ended (epoll's order). Returns their number.
static int children_take_ended_(LaunchChildren *children, double now) {
    struct epoll_event event;
    int count = 0;
    for (; epoll_wait(children->ends, &event, 1, 0) == 1; count++) {
        LaunchChild *child = &children->child[event.data.u32];
        bool reported =
            child->rank >= 0 && coordinator_status(children->coordinator, child->rank)->ending != ENDING_NONE;
        close(child->file);
        child->file = -1;
        if (children->first < 0 && !reported) children->first = (int)event.data.u32, children->when = now;
    }
    return count;
}

void launch_children_look(LaunchChildren *children, pid_t mpirun, double now) {
    bool first = children->first < 0;
    children_take_ended_(children, now);
    if (first && children->first >= 0) children->sure = true;
    if (launch_children_complete(children)) return;
    first = children->first < 0;
    children_find_(children, mpirun);
    // If several new children had already ended, the first to end is unknown.
    int late = children_take_ended_(children, now);
    if (first && children->first >= 0) children->sure = late == 1;
}

// If the first child's environment was not read in time but all other ranks were found, the child was the missing rank.
int launch_children_lost(const LaunchChildren *children) {
    int missing = -1;
    if (children->first < 0 || !children->sure) return -1;
    if (children->child[children->first].rank >= 0) return children->child[children->first].rank;
    for (int rank = 0; rank < children->ranks; rank++) {
        bool known = false;
        for (int i = 0; i < children->count; i++) known = known || children->child[i].rank == rank;
        if (!known && missing >= 0) return -1;
        if (!known) missing = rank;
    }
    return children->count == children->ranks ? missing : -1;
}

// --- the folder of a launch, the processes that belong to it, and the caretaker. A process belongs to the launch if it
// was started with the folder's path in its environment, even if it has another parent by now.

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

static void launch_folder_clear_(const LaunchFolder *folder) {
    for (int tries = 0; tries < 100 && launch_folder_signal(folder, SIGKILL) > 0; tries++) clock_sleep(0.02);
    file_remove_tree(folder->path);
}

void launch_folder_remove(LaunchFolder *folder) {
    launch_folder_clear_(folder);
    close(folder->caretaker_end);
    waitpid(folder->caretaker, NULL, 0);
}

// --- the caretaker: lives as long as the parent, without its terminal, files and signals

static void launch_caretaker_detach_(int keep) {
    setsid();
    for (int number = 1; number < NSIG; number++) signal(number, SIG_IGN); // fails for KILL and STOP
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

static void launch_folder_make_(LaunchFolder *folder, const char *base, int ranks, pid_t parent) {
    struct statvfs space;
    // The parent's id in the name tells people which run the folder belongs to.
    int length = snprintf(folder->path, sizeof folder->path, "%s/trainer-%d-XXXXXX", base, (int)parent);
    // Open MPI maps a segment of 4 MiB for each rank, and crashes (SIGBUS) where there is no space for it.
    bool fits = length < (int)sizeof folder->path && statvfs(base, &space) == 0 &&
                (uint64_t)space.f_bavail * space.f_frsize >= (uint64_t)ranks * 5 << 20;
    if (!fits || mkdtemp(folder->path) == NULL) folder->path[0] = '\0';
}

// Creates the folder in the caretaker itself, so that a process to remove it exists whenever the parent is killed.
static void launch_caretaker_run_(LaunchFolder *folder, int end, const char *temporary, int ranks, pid_t parent) {
    char byte;
    launch_caretaker_detach_(end);
    // Messages between ranks go through the folder, so it should be in memory.
    launch_folder_make_(folder, "/dev/shm", ranks, parent);
    if (folder->path[0] == '\0') launch_folder_make_(folder, temporary, ranks, parent);
    if (write(end, folder->path, sizeof folder->path) > 0)
        while (read(end, &byte, 1) > 0) {}
    if (folder->path[0] != '\0' && access(folder->path, F_OK) == 0) launch_folder_clear_(folder);
    _exit(0);
}

int launch_folder_create(LaunchFolder *folder, int ranks, Error *err) {
    const char *temporary = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    pid_t parent = getpid();
    int ends[2];
    memset(folder, 0, sizeof *folder);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return error_set(err, EXIT_FAILED, "cannot create a socket pair (%s); raise ulimit -n", strerror(errno));
    folder->caretaker = fork();
    if (folder->caretaker == 0) {
        close(ends[1]);
        launch_caretaker_run_(folder, ends[0], temporary, ranks, parent);
    }
    if (folder->caretaker < 0)
        error_set(err, EXIT_FAILED, "cannot start a process (%s); raise ulimit -u", strerror(errno));
    close(ends[0]);
    folder->caretaker_end = ends[1];
    ssize_t count = recv(ends[1], folder->path, sizeof folder->path, MSG_WAITALL); // 0 if no caretaker runs
    if (count > 0 && folder->path[0] != '\0') return 0;
    close(ends[1]);
    if (folder->caretaker < 0) return -1;
    waitpid(folder->caretaker, NULL, 0);
    return error_set(err, EXIT_FAILED,
                     "no writable folder has %d MiB free for the messages of %d ranks (tried /dev/shm and %s); "
                     "make /dev/shm larger, or set TMPDIR to a folder with space",
                     5 * ranks, ranks, temporary);
}
