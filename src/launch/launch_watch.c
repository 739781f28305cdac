#include "launch_watch.h"
#include "processes.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MPIRUN_ENDS_WITHIN_S = 3 }; // after a rank has died; about one is usual

int launch_watch_start(LaunchWatch *watch, int ranks, Patience patience, double now, Error *err) {
    *watch = (LaunchWatch){.patience = patience, .ranks = ranks, .first = -1};
    bool watches = patience.peer_s > 0 || patience.progress_s > 0;
    watch->ends = epoll_create1(EPOLL_CLOEXEC);
    watch->process = calloc((size_t)ranks, sizeof *watch->process);
    if (watches) watch->dog = watchdog_create(ranks, patience, now);
    if (watch->process == NULL || (watches && watch->dog == NULL))
        return error_set(err, EXIT_FAILED, "out of memory for %d ranks", ranks);
    return 0;
}

void launch_watch_free(LaunchWatch *watch) {
    for (int i = 0; i < watch->met; i++)
        if (watch->process[i].file >= 0) close(watch->process[i].file);
    if (watch->ends >= 0) close(watch->ends);
    watchdog_free(watch->dog);
    free(watch->process);
}

void launch_watch_children(LaunchWatch *watch, pid_t mpirun) {
    watch->mpirun = mpirun;
}

void launch_watch_mpirun(LaunchWatch *watch, bool stopped, double now) {
    watch->stopped = stopped ? now : 0;
}

// --- processes

static LaunchProcess *of_rank_(const LaunchWatch *watch, int rank) {
    for (int i = 0; i < watch->met; i++)
        if (watch->process[i].rank == rank) return &watch->process[i];
    return NULL;
}

bool launch_watch_met(const LaunchWatch *watch, int rank) {
    return of_rank_(watch, rank) != NULL;
}

bool launch_watch_complete(const LaunchWatch *watch) {
    return watch->met == watch->ranks && of_rank_(watch, -1) == NULL;
}

// A process that ended before its rank could be read is the one that is missing, where all others are known.
int launch_watch_dead(const LaunchWatch *watch) {
    if (watch->first < 0 || watch->process[watch->first].rank >= 0)
        return watch->first < 0 ? -1 : watch->process[watch->first].rank;
    int missing = -1;
    for (int rank = 0; watch->met == watch->ranks && rank < watch->ranks; rank++) {
        if (launch_watch_met(watch, rank)) continue;
        if (missing >= 0) return -1;
        missing = rank;
    }
    return missing;
}

static void ended_(LaunchWatch *watch, const StatusPage *status_page, int which, double now) {
    LaunchProcess *process = &watch->process[which];
    StatusRank page = {.reported = 0};
    if (process->file >= 0) close(process->file);
    process->file = -1;
    if (watch->dog != NULL && process->rank >= 0) watchdog_excuse(watch->dog, process->rank);
    if (process->rank >= 0) status_page_read(status_page, process->rank, &page);
    if (watch->first >= 0 || page.reported > 0) return;
    watch->first = which;
    watch->died = now;
}

static int take_ended_(LaunchWatch *watch, const StatusPage *status_page, double now) {
    struct epoll_event event;
    int count = 0;
    for (; watch->ends >= 0 && epoll_wait(watch->ends, &event, 1, 0) == 1; count++)
        ended_(watch, status_page, (int)event.data.u32, now);
    return count;
}

// How many of a look had gone before it.
typedef struct Look {
    LaunchWatch *watch;
    const StatusPage *status_page;
    double now;
    int late;
} Look;

static void meet_(Look *look, pid_t pid) {
    LaunchWatch *watch = look->watch;
    for (int i = 0; i < watch->met; i++)
        if (watch->process[i].pid == pid) return;
    if (watch->met == watch->ranks) return;
    LaunchProcess *process = &watch->process[watch->met];
    *process = (LaunchProcess){pid, -1, (int)syscall(SYS_pidfd_open, pid, 0)};
    bool gone = process->file < 0 && errno == ESRCH;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)watch->met++};
    if (process->file >= 0) epoll_ctl(watch->ends, EPOLL_CTL_ADD, process->file, &event);
    if (!gone) return;
    look->late++;
    ended_(watch, look->status_page, watch->met - 1, look->now);
}

static void meet_child_(pid_t pid, void *context) {
    Look *look = context;
    if (process_parent(pid) == look->watch->mpirun) meet_(look, pid);
}

// Ranks are met as mpirun's children, long before they know of themselves: their ids are above mpirun's, but where these began anew, and
// such ranks are met on the board.
static void meet_all_(Look *look) {
    LaunchWatch *watch = look->watch;
    StatusRank page;
    char value[16];
    if (watch->mpirun > 0) processes_each(watch->mpirun, meet_child_, look);
    for (int rank = 0; rank < watch->ranks; rank++) {
        if (status_page_read(look->status_page, rank, &page) != 0 || page.pid == 0 || launch_watch_met(watch, rank))
            continue;
        meet_(look, page.pid);
        for (int i = 0; i < watch->met; i++)
            if (watch->process[i].pid == page.pid) watch->process[i].rank = rank;
    }
    for (int i = 0; i < watch->met; i++) {
        LaunchProcess *process = &watch->process[i];
        if (process->rank >= 0 || process->file < 0) continue;
        if (process_variable(process->pid, "OMPI_COMM_WORLD_RANK", value, sizeof value)) process->rank = atoi(value);
    }
}

// Processes that were watched come out of epoll in the order in which they ended. Of several that had gone before they were looked at,
// which was the first cannot be told.
void launch_watch_processes(LaunchWatch *watch, const StatusPage *status_page, double now) {
    Look look = {watch, status_page, now, 0};
    bool known = watch->first >= 0;
    take_ended_(watch, status_page, now);
    bool watched = watch->first >= 0;
    if (!launch_watch_complete(watch)) meet_all_(&look);
    look.late += take_ended_(watch, status_page, now);
    // mpirun reacts to a death only once it has started all ranks, so that there may be fewer yet.
    if (!known) watch->certain = watched || (watch->first >= 0 && look.late == 1);
}

// --- heartbeats

static void hear_(LaunchWatch *watch, const StatusPage *status_page, double now) {
    StatusRank page;
    for (int rank = 0; status_page_read(status_page, rank, &page) == 0; rank++) {
        bool gone = page.pid > 0 && kill(page.pid, 0) != 0;
        watchdog_hear(watch->dog, rank, &page, now);
        if (gone) watchdog_excuse(watch->dog, rank);
    }
}

static bool watch_find_(LaunchWatch *watch, const StatusPage *status_page, const Log *log, double now) {
    char text[WATCHDOG_TEXT];
    int rank;
    hear_(watch, status_page, now);
    Found found = watchdog_look(watch->dog, now, &rank);
    if (found == FOUND_WELL) return false;
    for (int i = 0; watchdog_line(watch->dog, i, now, text); i++) log_line(log, "%s", text);
    watchdog_reason(watch->dog, found, rank, now, watch->reason);
    return true;
}

bool launch_watch_look(LaunchWatch *watch, const StatusPage *status_page, const Log *log, double now) {
    if (watch->reason[0] != '\0' || now < watch->next) return false;
    watch->next = now + watchdog_interval(watch->patience);
    if (watch->first >= 0) {
        if (now - watch->died < MPIRUN_ENDS_WITHIN_S) return false;
        watch->next = now + MPIRUN_ENDS_WITHIN_S;
        return true;
    }
    if (watch->dog != NULL && watch_find_(watch, status_page, log, now)) return true;
    if (watch->stopped == 0 || watch->patience.peer_s == 0 || now - watch->stopped < watch->patience.peer_s)
        return false;
    snprintf(watch->reason, sizeof watch->reason,
             "mpirun has been stopped for %.0f s (train.peer_timeout_s), and no rank can be heard through it; the job "
             "ends; go on with --resume",
             now - watch->stopped);
    return true;
}
