#include "launch_mpirun.h"
#include "ranks/status_page.h"
#include "launch.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

int launch_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (int)cores : 1;
}

int launch_threads(int ranks) {
    const char *set = getenv("OMP_NUM_THREADS");
    if (set != NULL && atoi(set) > 0) return atoi(set);
    int threads = launch_cores() / ranks;
    return threads > 0 ? threads : 1;
}

// --- the environment: ours, with some entries set

typedef struct Environment {
    char **entries; // ends with NULL; owns those that were set
    size_t count, inherited;
} Environment;

static bool environment_create_(Environment *environment) {
    enum { MOST_SET = 32 };
    memset(environment, 0, sizeof *environment);
    while (environ[environment->inherited] != NULL) environment->inherited++;
    environment->entries = calloc(environment->inherited + MOST_SET, sizeof *environment->entries);
    if (environment->entries == NULL) return false;
    memcpy(environment->entries, environ, environment->inherited * sizeof *environ);
    environment->count = environment->inherited;
    return true;
}

// Programs take the first entry of a name, so an inherited one has to go.
static void set_(Environment *environment, const char *name, const char *value) {
    size_t length = strlen(name);
    char *entry = NULL;
    if (asprintf(&entry, "%s=%s", name, value) < 0) return;
    for (size_t i = 0; i < environment->inherited; i++)
        if (strncmp(environment->entries[i], entry, length + 1) == 0) {
            environment->entries[i] = environment->entries[--environment->inherited];
            environment->entries[environment->inherited] = environment->entries[--environment->count];
            environment->entries[environment->count] = NULL;
            break;
        }
    environment->entries[environment->count++] = entry;
}

static void set_unless_given_(Environment *environment, const char *name, const char *value) {
    if (getenv(name) == NULL) set_(environment, name, value);
}

static void environment_free_(Environment *environment) {
    for (size_t i = environment->inherited; i < environment->count; i++) free(environment->entries[i]);
    free(environment->entries);
}

static void mpirun_describe_(Environment *environment, int ranks, const LaunchFolder *folder) {
    char threads[16];
    snprintf(threads, sizeof threads, "%d", launch_threads(ranks));
    set_(environment, STATUS_PAGE_VARIABLE, folder->status_page);
    set_(environment, LAUNCH_TERMINAL_VARIABLE, isatty(STDOUT_FILENO) ? "1" : "0");
    set_unless_given_(environment, "OMP_NUM_THREADS", threads);
    set_unless_given_(environment, "OMP_WAIT_POLICY", "passive");
    set_(environment, "OMPI_ALLOW_RUN_AS_ROOT", "1");
    set_(environment, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // Everything Open MPI writes lies in our folder and goes with it.
    set_(environment, "OMPI_MCA_orte_tmpdir_base", folder->path);
    set_(environment, "OMPI_MCA_btl_vader_backing_directory", folder->path);
    // One machine: no ssh, no batch system, and no search for networks, which takes 0.2 of 0.35 seconds.
    set_unless_given_(environment, "OMPI_MCA_plm", "isolated");
    set_unless_given_(environment, "OMPI_MCA_ras", "^slurm,tm,gridengine,loadleveler,lsf");
    set_unless_given_(environment, "OMPI_MCA_pml", "ob1");
    set_unless_given_(environment, "OMPI_MCA_btl", "self,vader,tcp");
    // Where the kernel forbids one process to read another's memory, messages are copied through shared memory in
    // fragments. Ranks that sleep between looks want them large: 1.1 GB/s so, 0.2 at the default of 32 KB. Not larger:
    // eight of a megabyte no longer fit into a segment, and shared memory is not used at all.
    set_unless_given_(environment, "OMPI_MCA_btl_vader_max_send_size", "262144");
}

// --- mpirun and its arguments

// Debian's name for Open MPI's own first: another MPI's mpirun would start ranks that do not see each other.
static int find_mpirun_(char *path, size_t size, Error *err) {
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
                     "several ranks are started through mpirun, which is not in PATH; install Open MPI "
                     "(scripts/install_deps.sh), or set parallel.pipeline, tensor and data to 1");
}

static int find_self_(char *path, size_t size, Error *err) {
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length > 0) path[length] = '\0';
    if (length > 0 && access(path, X_OK) == 0) return 0;
    return error_set(err, EXIT_FAILED, "cannot find this program's own file to start its ranks; start it again");
}

// With fewer, mpirun does not hear ranks that join, says nothing, and everybody waits. Seen to do for 2 to 8 ranks: 36, 44, 64.
static int check_files_(int ranks, Error *err) {
    rlim_t needed = 32 + 5 * (rlim_t)ranks;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return 0;
    if (limit.rlim_max >= needed) {
        limit.rlim_cur = needed;
        if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return 0;
    }
    return error_set(err, EXIT_FAILED, "mpirun opens up to %lld files for %d ranks and may have %lld; raise ulimit -n",
                     (long long)needed, ranks, (long long)limit.rlim_max);
}

static char **arguments_(const char *self, const char *ranks, char **argv) {
    const char *first[] = {"mpirun", "-n", ranks, "--oversubscribe", "--bind-to", "none", self};
    size_t own = sizeof first / sizeof *first, count = 0;
    while (argv[count] != NULL) count++;
    char **all = calloc(own + count + 1, sizeof *all);
    if (all == NULL) return NULL;
    memcpy(all, first, sizeof first);
    for (size_t i = 1; i < count; i++) all[own + i - 1] = argv[i];
    return all;
}

static void forget_handlers_(void) {
    struct sigaction action;
    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_IGN) signal(number, SIG_DFL);
}

// In the child. The parent may have gone before it was asked to be told.
static void become_(const char *mpirun, char **arguments, char **entries, const sigset_t *mask, int results, int errors,
                    pid_t parent) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    int null = open("/dev/null", O_RDONLY); // a background group that reads the terminal would be stopped
    dup2(null, STDIN_FILENO);
    dup2(results, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    forget_handlers_();
    sigprocmask(SIG_SETMASK, mask, NULL);
    execve(mpirun, arguments, entries);
    _exit(127);
}

pid_t launch_mpirun(int ranks, char **argv, const LaunchFolder *folder, int results, int errors, Error *err) {
    char mpirun[4096], self[4096], number[16];
    Environment environment;
    if (find_mpirun_(mpirun, sizeof mpirun, err) != 0 || find_self_(self, sizeof self, err) != 0 ||
        check_files_(ranks, err) != 0)
        return -1;
    snprintf(number, sizeof number, "%d", ranks);
    char **arguments = arguments_(self, number, argv);
    if (arguments == NULL || !environment_create_(&environment)) {
        free(arguments);
        return error_set(err, EXIT_FAILED, "out of memory");
    }
    mpirun_describe_(&environment, ranks, folder);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all,
                    &before); // a signal to the child is none to the parent, whose handlers it has until exec
    pid_t parent = getpid(), child = fork();
    if (child == 0) become_(mpirun, arguments, environment.entries, &before, results, errors, parent);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    environment_free_(&environment);
    free(arguments);
    if (child < 0) error_set(err, EXIT_FAILED, "cannot start a process; too many already?");
    return child;
}
