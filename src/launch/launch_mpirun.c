// Starts mpirun, and keeps the folder of a launch and its caretaker. Our Open MPI settings are passed in mpirun's
// environment; most of them do not override the user's.
#include "launch_private.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/files.h"
#include "ranks/affinity.h"
#include "ranks/supervisor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// --- mpirun and its arguments

// Finds mpirun. Looks first for mpirun.openmpi (Debian): under another MPI's mpirun, ranks would not see each other.
static int find_(char *path, size_t size, Error *err) {
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
static int check_limits_(int ranks, Error *err) {
    char here[4096];
    int64_t needed = 32 + 5 * (int64_t)ranks, allowed = file_limit(needed);
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
    if (allowed >= needed) return 0;
    return error_set(err, EXIT_FAILED,
                     "mpirun opens up to %lld files for %d ranks and is limited to %lld; raise ulimit -n",
                     (long long)needed, ranks, (long long)allowed);
}

static void set_environment_(int ranks, const LaunchFolder *folder) {
    char threads[16];
    snprintf(threads, sizeof threads, "%d", affinity_threads(ranks));
    const struct {
        const char *name, *value;
        bool always; // even if the user has set it
    } variables[] = {
        {SUPERVISOR_FOLDER, folder->path, true},
        {LAUNCH_TERMINAL_VARIABLE, isatty(STDOUT_FILENO) ? "1" : "0", true},
        {"OMP_NUM_THREADS", threads, false},
        {"OMP_WAIT_POLICY", "passive", false},
        // Everything that Open MPI writes is in our folder and is removed with it.
        {"OMPI_MCA_orte_tmpdir_base", folder->path, true},
        {"OMPI_MCA_btl_vader_backing_directory", folder->path, true},
        // One machine: no ssh, no batch system, and no search for networks, which would take 0.2 of the 0.35 seconds of
        // a start.
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

pid_t launch_mpirun(int ranks, char **argv, const LaunchFolder *folder, int results, int words, Error *err) {
    char mpirun[4096], self[sizeof folder->path + 64], own[64], number[16];
    const char *const first[] = {"mpirun",    "-n",   number, "--oversubscribe", "--allow-run-as-root",
                                 "--bind-to", "none", self};
    if (find_(mpirun, sizeof mpirun, err) != 0 || check_limits_(ranks, err) != 0) return -1;
    // The ranks run the same file as this process, even if its name now belongs to another file (make during a run).
    // They find it under the program's name in the launch's folder, so their processes have that name, too.
    snprintf(own, sizeof own, "/proc/%d/exe", (int)getpid());
    snprintf(self, sizeof self, "%s/%s", folder->path, program_invocation_short_name);
    if (symlink(own, self) != 0 || access(self, X_OK) != 0)
        return error_set(err, EXIT_FAILED,
                         "cannot start this program again as %s (%s); free space there, or make the program readable",
                         self, strerror(errno));
    size_t count = sizeof first / sizeof *first, given = 0;
    snprintf(number, sizeof number, "%d", ranks);
    while (argv[given] != NULL) given++;
    const char **all = xcalloc(count + given, sizeof *all);
    memcpy(all, first, sizeof first);
    memcpy(all + count, argv + 1, given * sizeof *argv); // copies the NULL at the end, too
    // Block signals: until the child has reset them, it has the parent's handlers, and these must not run in it.
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        set_environment_(ranks, folder);
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1); // the parent has already died
        dup2(open("/dev/null", O_RDONLY | O_CLOEXEC),
             STDIN_FILENO); // a background group that reads the terminal would be stopped
        dup2(results, STDOUT_FILENO);
        dup2(words, STDERR_FILENO);
        struct sigaction action;
        for (int signals = 1; signals < NSIG; signals++)
            if (sigaction(signals, NULL, &action) == 0 && action.sa_handler != SIG_IGN) signal(signals, SIG_DFL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        execv(mpirun, (char **)all);
        _exit(127);
    }
    if (child > 0) setpgid(child, child); // also here: launch.c may kill the group before the child has run
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    free(all);
    if (child < 0) error_set(err, EXIT_FAILED, "cannot start a process (%s); raise ulimit -u", strerror(errno));
    return child;
}

// Returns whether this process holds the same socket: mpirun inherits the sockets of whoever started this program.
static bool inherited_(int socket) {
    struct stat at, own;
    bool found = false;
    DIR *files = fstat(socket, &at) == 0 ? opendir("/proc/self/fd") : NULL;
    for (struct dirent *entry; files != NULL && (entry = readdir(files)) != NULL;) {
        int file = atoi(entry->d_name);
        found = found || (file != socket && fstat(file, &own) == 0 && own.st_ino == at.st_ino);
    }
    if (files != NULL) closedir(files);
    return found;
}

// If another process sends part of a message to one of mpirun's ports, mpirun waits for the rest and no longer reads
// the ranks' output, so the ranks block. Two ports are open to other hosts and users (oob_tcp_if_include limits only
// the advertised addresses). A listening socket that is bound to a nonexistent interface refuses all connections, and
// earlier connections to the two ports are cut off. Without a port on the loopback interface, ranks may join through
// any port, so all ports stay open until every rank is ready.
void launch_close_ports(pid_t mpirun, bool ready) {
    const int nowhere = INT_MAX;
    in_port_t open[2] = {0};
    int count = 0;
    bool loopback = false;
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)mpirun);
    int process = (int)syscall(SYS_pidfd_open, mpirun, 0);
    DIR *files = process >= 0 ? opendir(path) : NULL;
    for (struct dirent *entry; files != NULL && (entry = readdir(files)) != NULL;) {
        struct sockaddr_in at = {0}; // the beginning of an address of any family
        int listens = 0, file = (int)syscall(SYS_pidfd_getfd, process, atoi(entry->d_name), 0);
        bool known = getsockname(file, (struct sockaddr *)&at, &(socklen_t){sizeof at}) == 0 &&
                     getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &(socklen_t){sizeof listens}) == 0 &&
                     !inherited_(file);
        bool joined = at.sin_family == AF_INET && at.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
        if (!known || (at.sin_family != AF_INET && at.sin_family != AF_INET6)) listens = 0, at.sin_port = 0;
        loopback = loopback || (listens && joined);
        if (listens && (ready || (loopback && !joined)))
            setsockopt(file, SOL_SOCKET, SO_BINDTOIFINDEX, &nowhere, sizeof nowhere);
        if (listens && loopback && !joined) open[count++ % 2] = at.sin_port;
        if (!listens && at.sin_port != 0 && (at.sin_port == open[0] || at.sin_port == open[1]))
            shutdown(file, SHUT_RDWR);
        if (file >= 0) close(file);
    }
    if (files != NULL) closedir(files);
    if (process >= 0) close(process);
}

// --- the folder of a launch, the processes that belong to it, and the caretaker. A process belongs to the launch if it
// was started with the folder's path in its environment, even if it has another parent by now.

int launch_folder_signal(const LaunchFolder *folder, int number) {
    char wanted[sizeof folder->path + 32], path[64], *entry = NULL;
    size_t capacity = 0;
    int alive = 0;
    snprintf(wanted, sizeof wanted, "%s=%s", SUPERVISOR_FOLDER, folder->path);
    DIR *processes = opendir("/proc");
    for (struct dirent *process; processes != NULL && (process = readdir(processes)) != NULL;) {
        pid_t pid = (pid_t)atoi(process->d_name);
        if (pid <= 0 || pid == getpid()) continue;
        snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
        FILE *file = fopen(path, "re"); // NULL: another user's process, or an ended process
        bool belongs = false;
        while (!belongs && file != NULL && getdelim(&entry, &capacity, '\0', file) > 0)
            belongs = strcmp(entry, wanted) == 0;
        if (file != NULL) fclose(file);
        alive += belongs;
        if (belongs && number != 0) kill(pid, number);
    }
    free(entry);
    if (processes != NULL) closedir(processes);
    return alive;
}

// --- the folder's end

static void clear_(const LaunchFolder *folder) {
    for (int tries = 0; tries < 100 && launch_folder_signal(folder, SIGKILL) > 0; tries++) clock_sleep(0.02);
    file_remove_tree(folder->path);
}

void launch_folder_remove(LaunchFolder *folder) {
    clear_(folder);
    close(folder->lock);
    close(folder->caretaker_end);
    waitpid(folder->caretaker, NULL, 0);
}

// Locks the folder for as long as this process lives. Returns the descriptor, or -1.
static int lock_(const LaunchFolder *folder) {
    int lock = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock >= 0) flock(lock, LOCK_SH);
    return lock;
}

// Removes this user's folders of launches whose parent and caretaker were both killed: folders without a lock.
static void sweep_(const char *base) {
    DIR *entries = opendir(base);
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        LaunchFolder left;
        struct stat status;
        int parent, length = snprintf(left.path, sizeof left.path, "%s/%s", base, entry->d_name);
        // A living parent may not have locked its folder yet.
        if (sscanf(entry->d_name, "trainer-%d-", &parent) != 1 || length >= (int)sizeof left.path) continue;
        if (kill(parent, 0) == 0 || errno != ESRCH) continue;
        int file = open(left.path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (file < 0) continue;
        if (fstat(file, &status) == 0 && status.st_uid == geteuid() && flock(file, LOCK_EX | LOCK_NB) == 0)
            clear_(&left);
        close(file);
    }
    if (entries != NULL) closedir(entries);
}

// --- the caretaker: lives as long as the parent, without its terminal, files and signals

static void make_(LaunchFolder *folder, const char *base, int ranks, pid_t parent) {
    struct statvfs space;
    // The parent's id in the name shows which run the folder belongs to.
    int length = snprintf(folder->path, sizeof folder->path, "%s/trainer-%d-XXXXXX", base, (int)parent);
    // Open MPI maps a segment of 4 MiB for each rank, and crashes (SIGBUS) if there is no space for it.
    bool fits = length < (int)sizeof folder->path && statvfs(base, &space) == 0 &&
                (uint64_t)space.f_bavail * space.f_frsize >= (uint64_t)ranks * 5 << 20;
    if (!fits || mkdtemp(folder->path) == NULL) folder->path[0] = '\0';
}

int launch_folder_create(LaunchFolder *folder, int ranks, Error *err) {
    enum { FILES = 4096 };
    const char *temporary = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    pid_t parent = getpid();
    int ends[2];
    memset(folder, 0, sizeof *folder);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return error_set(err, EXIT_FAILED, "cannot create a socket pair (%s); raise ulimit -n", strerror(errno));
    folder->caretaker = fork();
    if (folder->caretaker == 0) {
        close(ends[1]);
        // The caretaker itself creates the folder: if the parent dies at any moment, the caretaker can remove the
        // folder.
        setsid();
        for (int number = 1; number < NSIG; number++) signal(number, SIG_IGN); // fails for KILL and STOP
        for (int file = 0; file < FILES; file++)
            if (file != ends[0]) close(file);
        for (int file = 0; file < 3; file++) open("/dev/null", O_RDWR);
        make_(folder, "/dev/shm", ranks, parent); // in memory: messages between ranks go through the folder
        if (folder->path[0] == '\0') make_(folder, temporary, ranks, parent);
        if (folder->path[0] != '\0') lock_(folder);
        char byte;
        bool told = write(ends[0], folder->path, sizeof folder->path) > 0;
        sweep_("/dev/shm");
        sweep_(temporary);
        while (told && read(ends[0], &byte, 1) > 0) {}
        if (folder->path[0] != '\0' && access(folder->path, F_OK) == 0) clear_(folder);
        _exit(0);
    }
    if (folder->caretaker < 0)
        error_set(err, EXIT_FAILED, "cannot start a process (%s); raise ulimit -u", strerror(errno));
    close(ends[0]);
    folder->caretaker_end = ends[1];
    ssize_t count = recv(ends[1], folder->path, sizeof folder->path, MSG_WAITALL); // 0 if no caretaker runs
    if (count > 0 && folder->path[0] != '\0') {
        folder->lock = lock_(folder);
        return 0;
    }
    close(ends[1]);
    if (folder->caretaker < 0) return -1;
    waitpid(folder->caretaker, NULL, 0);
    return error_set(err, EXIT_FAILED,
                     "no writable folder has %d MiB free for the messages of %d ranks (tried /dev/shm and %s); "
                     "make /dev/shm larger, or set TMPDIR to a folder with space",
                     5 * ranks, ranks, temporary);
}
