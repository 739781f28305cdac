// Many ranks on this machine, without MPI and without a model: ranks_scale RANKS SECONDS. Every rank is a real
// supervisor (supervisor.h) of an idle process, and this program coordinates them like the parent of a job: the ranks
// start, send a heartbeat every second, and are told to end. Prints the times for this.
#include "base/clock.h"
#include "ranks/supervisor.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static double cpu_seconds_(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Runs in a child process: becomes the supervisor of an idle rank that waits to be killed.
static void be_rank_(const Job *job, int rank) {
    char text[16];
    Error err = {0};
    snprintf(text, sizeof text, "%d", rank);
    setenv("OMPI_COMM_WORLD_RANK", text, 1);
    Supervisor *supervisor = supervisor_open("ranks_scale", &err);
    bool started = supervisor != NULL && supervisor_start(supervisor, job, true, &err) == 0;
    if (!started) fprintf(stderr, "rank %d: %s\n", rank, err.text);
    StatusPage *page = supervisor_page(supervisor);
    status_page_set_stage(page, rank);
    status_page_set_ready(page);
    while (started) {
        status_page_set_action(page, "step 12 F3");
        poll(NULL, 0, 1000);
    }
    _exit(1);
}

static void listen_(Coordinator *coordinator, double until, int stop_at_open) {
    while (clock_seconds() < until && coordinator_open_ranks(coordinator) != stop_at_open) {
        struct pollfd file = {coordinator_file(coordinator), POLLIN, 0};
        poll(&file, 1, 20);
        coordinator_take(coordinator, clock_seconds());
    }
}

int main(int argc, char **argv) {
    enum { LONGEST_S = 120 };
    int ranks = argc > 1 ? atoi(argv[1]) : 64;
    double seconds = argc > 2 ? atof(argv[2]) : 2;
    Job job = {.ranks = ranks, .patience = {60, 600}, .one_host = true, .remedy = {"the job ends"}};
    Log log = {"ranks_scale", -1, -1, LOG_NORMAL};
    Error err = {0};
    char folder[] = "/tmp/ranks_scale-XXXXXX", socket[64];
    if (mkdtemp(folder) == NULL) return perror(folder), 1;
    Coordinator *coordinator = coordinator_open(&job, folder, &err);
    if (coordinator == NULL) return fprintf(stderr, "%s\n", err.text), 1;
    setenv(SUPERVISOR_FOLDER, folder, 1);
    double began = clock_seconds();
    for (int rank = 0; rank < ranks; rank++) {
        pid_t child = fork();
        if (child == 0) be_rank_(&job, rank);
        if (child < 0) return perror("fork"), 1;
    }
    listen_(coordinator, clock_seconds() + LONGEST_S, ranks);
    int heard = coordinator_open_ranks(coordinator);
    double started = clock_seconds(), cpu = cpu_seconds_();
    listen_(coordinator, started + seconds, -1);
    bool over = coordinator_look(coordinator, &log, clock_seconds());
    double busy = (cpu_seconds_() - cpu) / (clock_seconds() - started), told = clock_seconds();
    while (coordinator_open_ranks(coordinator) > 0 && clock_seconds() < told + LONGEST_S) {
        coordinator_end(coordinator);
        listen_(coordinator, clock_seconds() + 0.2, 0);
    }
    int left = coordinator_open_ranks(coordinator);
    for (int status; wait(&status) > 0;) {}
    printf("%d ranks: heard %d in %.2f s, %.1f%% of a core for their heartbeats, ended in %.2f s, %d left%s\n", ranks,
           heard, started - began, 100 * busy, clock_seconds() - told, left, over ? ", one was missed" : "");
    coordinator_close(coordinator);
    snprintf(socket, sizeof socket, "%s/coordinator", folder);
    unlink(socket), rmdir(folder);
    return heard == ranks && left == 0 && !over ? 0 : 1;
}
