// A program that starts itself as several ranks, for test_launch.py: ranks_launch SCENARIO RANKS [MARK]. MARK
// identifies its processes.
#include "base/clock.h"
#include "launch/launch.h"
#include "ranks/supervisor.h"
#include "ranks/world.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Rank {
    World *world;
    Supervisor *supervisor;
    StatusPage *page;
    int rank;
} Rank;

static int leave_(Rank *r, int code) {
    world_leave(r->world, code);
    return supervisor_leave(r->supervisor, code);
}

static int done_(Rank *r) {
    if (r->rank == 0) printf("terminal %s threads %s\n", getenv(LAUNCH_TERMINAL_VARIABLE), getenv("OMP_NUM_THREADS"));
    return leave_(r, EXIT_DONE);
}

// Ranks of one machine map each other's segments of shared memory where Open MPI uses it, and fall back to TCP
// silently.
static int transport_(Rank *r) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024], own[16];
    int others = 0;
    snprintf(own, sizeof own, ".%d\n", r->rank);
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        others += strstr(line, "vader_segment") != NULL && strstr(line, own) == NULL;
    printf("rank %d maps %d others\n", r->rank, others);
    fflush(stdout);
    return leave_(r, EXIT_DONE);
}

// One rank fails; the other ranks would wait forever.
static int error_(Rank *r) {
    if (r->rank != 1) clock_sleep(60);
    fprintf(stderr, "a line of rank 1\n");
    Error err = {0};
    error_set(&err, EXIT_USAGE, "F3: the input is torn; mend it");
    if (!status_page_report(r->page, &err)) fprintf(stderr, "said by the rank\n");
    world_abort(r->world, EXIT_USAGE);
}

// All ranks report an error at once; the first report counts.
static int errors_(Rank *r) {
    Error err = {0};
    clock_sleep(0.1 * (world_size(r->world) - r->rank));
    error_set(&err, EXIT_FAILED, "reason of rank %d", r->rank);
    status_page_report(r->page, &err);
    return leave_(r, EXIT_FAILED);
}

// One rank ends without a word, or none does; the other ranks would wait forever.
static int end_alone_(const Rank *r, const char *how) {
    int ends = strcmp(how, "wait") == 0 ? -1 : strcmp(how, "killed") == 0 ? 2 : 1;
    if (r->rank != ends) clock_sleep(60);
    if (strcmp(how, "silent") == 0) exit(5);
    if (strcmp(how, "gone") == 0) exit(0);                 // without an error, as a library might
    if (strcmp(how, "broken") == 0) return raise(SIGPIPE); // like a rank that writes to an mpirun that has ended
    return raise(SIGKILL);
}

// main has blocked SIGUSR1, so that sigtimedwait can receive it.
static int stop_(Rank *r) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    struct timespec longest = {30, 0};
    int got = sigtimedwait(&set, NULL, &longest);
    fprintf(stderr, "rank %d got %s\n", r->rank, got == SIGUSR1 ? "SIGUSR1" : "nothing");
    return leave_(r, got == SIGUSR1 ? EXIT_STOPPED : EXIT_FAILED);
}

// Writes a line once the reader has noted the line before as a file in LINES_SEEN. Fails after a minute without it.
static int lines_(Rank *r) {
    for (int i = 0; i < 5 && r->rank == 0; i++) {
        char seen[512];
        printf("step %d\n", i);
        fflush(stdout);
        snprintf(seen, sizeof seen, "%s/%d", getenv("LINES_SEEN"), i);
        for (int waits = 0; access(seen, F_OK) != 0; clock_sleep(0.01))
            if (waits++ == 6000) return leave_(r, EXIT_FAILED);
    }
    return leave_(r, EXIT_DONE);
}

static int run_rank_(const char *name, Supervisor *supervisor, int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(Rank *);
    } scenarios[] = {{"done", done_}, {"error", error_}, {"errors", errors_},
                     {"stop", stop_}, {"lines", lines_}, {"transport", transport_}};
    Error err = {0};
    Job job = {
        .ranks = atoi(argv[2]), .patience = {10, 600}, .one_host = true, .remedy = {"the job ends; go on", "saved"}};
    Rank r = {.supervisor = supervisor};
    if (supervisor_start(supervisor, &job, true, &err) != 0) return fprintf(stderr, "%s\n", err.text), err.code;
    r.page = supervisor_page(r.supervisor);
    r.world = world_join(&argc, &argv, &err);
    if (r.world == NULL) return fprintf(stderr, "%s\n", err.text), err.code;
    r.rank = world_rank(r.world);
    status_page_set_stage(r.page, r.rank);
    status_page_set_action(r.page, "step 11 B0");
    status_page_set_action(r.page, "step 12 F3");
    world_set_status_page(r.world, r.page);
    status_page_set_ready(r.page);
    world_barrier(r.world, &err);
    if (r.rank == 0)
        fprintf(stderr, "folder %s.\n", getenv(SUPERVISOR_FOLDER) != NULL ? getenv(SUPERVISOR_FOLDER) : "none");
    world_barrier(r.world, &err); // no rank ends the job before the line is printed
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (strcmp(scenarios[i].name, name) == 0) return scenarios[i].run(&r);
    return end_alone_(&r, name);
}

int main(int argc, char **argv) {
    Log log = {"ranks_launch", -1, -1, LOG_NORMAL};
    Error err = {0};
    bool under;
    if (argc < 3) return EXIT_USAGE;
    if (strcmp(argv[1], "unlinked") == 0 && getenv(SUPERVISOR_FOLDER) != NULL)
        return fprintf(stderr, "a library is missing\n"), 7;
    Supervisor *supervisor = supervisor_open("ranks_launch", &err);
    if (supervisor == NULL || world_under_launcher(&under, &err) != 0) return log_line(&log, "%s", err.text), err.code;
    if (under) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        if (strcmp(argv[1], "early") == 0) {
            error_set(&err, EXIT_USAGE, "the input is torn; mend it");
            return supervisor_report_early(supervisor, &err) ? err.code : EXIT_FAILED;
        }
        sigprocmask(SIG_BLOCK, &set, NULL);
        return run_rank_(argv[1], supervisor, argc, argv);
    }
    Job job = {
        .ranks = atoi(argv[2]), .patience = {10, 600}, .one_host = true, .remedy = {"the job ends; go on", "saved"}};
    int code = launch_ranks(&log, &job, argv, NULL, NULL, &err);
    return err.code != 0 ? (log_line(&log, "%s", err.text), err.code) : code;
}
