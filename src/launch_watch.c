#include "launch_watch.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MPIRUN_ENDS_WITHIN_S = 3 }; // after a rank has died; about one is usual

int launch_watch_start(LaunchWatch *watch, int ranks, Patience patience, double now, Error *err) {
    *watch = (LaunchWatch){.patience = patience, .ranks = ranks, .dead = -1};
    bool watches = patience.peer_s > 0 || patience.progress_s > 0;
    watch->ends = epoll_create1(EPOLL_CLOEXEC);
    watch->process = malloc((size_t)ranks * sizeof *watch->process);
    watch->seen = calloc((size_t)ranks, sizeof *watch->seen);
    if (watches) watch->dog = watchdog_create(ranks, patience, now);
    if (watch->process == NULL || watch->seen == NULL || (watches && watch->dog == NULL))
        return error_set(err, EXIT_FAILED, "out of memory for %d ranks", ranks);
    for (int rank = 0; rank < ranks; rank++) watch->process[rank] = -1;
    return 0;
}

void launch_watch_free(LaunchWatch *watch) {
    for (int rank = 0; watch->process != NULL && rank < watch->ranks; rank++)
        if (watch->process[rank] >= 0) close(watch->process[rank]);
    if (watch->ends >= 0) close(watch->ends);
    watchdog_free(watch->dog);
    free(watch->process);
    free(watch->seen);
}

void launch_watch_mpirun(LaunchWatch *watch, bool stopped, double now) {
    watch->stopped = stopped ? now : 0;
}

// --- processes

static void ended_(LaunchWatch *watch, const Board *board, int rank, double now) {
    BoardPage page;
    if (watch->process[rank] >= 0) close(watch->process[rank]);
    watch->process[rank] = -1;
    if (watch->dog != NULL) watchdog_excuse(watch->dog, rank);
    if (watch->dead >= 0 || board_read(board, rank, &page) != 0 || page.reported > 0) return;
    watch->dead = rank;
    watch->died = now;
}

// 1 where it has gone before it was looked at.
static int open_(LaunchWatch *watch, const Board *board, int rank, double now) {
    BoardPage page;
    if (watch->seen[rank] || board_read(board, rank, &page) != 0 || page.pid == 0) return 0;
    watch->process[rank] = (int)syscall(SYS_pidfd_open, page.pid, 0);
    watch->seen[rank] = true;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)rank};
    if (watch->process[rank] >= 0) epoll_ctl(watch->ends, EPOLL_CTL_ADD, watch->process[rank], &event);
    if (watch->process[rank] >= 0 || errno != ESRCH) return 0;
    ended_(watch, board, rank, now);
    return 1;
}

bool launch_watch_complete(const LaunchWatch *watch) {
    for (int rank = 0; rank < watch->ranks; rank++)
        if (!watch->seen[rank]) return false;
    return true;
}

static int take_ended_(LaunchWatch *watch, const Board *board, double now) {
    struct epoll_event event;
    int count = 0;
    for (; watch->ends >= 0 && epoll_wait(watch->ends, &event, 1, 0) == 1; count++)
        ended_(watch, board, (int)event.data.u32, now);
    return count;
}

// Processes that were watched come out of epoll in the order in which they ended. Of several that had gone before they were looked at,
// which was the first cannot be told.
void launch_watch_processes(LaunchWatch *watch, const Board *board, double now) {
    bool known = watch->dead >= 0;
    take_ended_(watch, board, now);
    bool watched = watch->dead >= 0;
    int late = 0;
    for (int rank = 0; rank < watch->ranks; rank++) late += open_(watch, board, rank, now);
    late += take_ended_(watch, board, now);
    // One that nobody has seen yet may have been the first.
    if (!known) watch->certain = launch_watch_complete(watch) && (watched || (watch->dead >= 0 && late == 1));
}

// --- heartbeats

static void hear_(LaunchWatch *watch, const Board *board, double now) {
    BoardPage page;
    for (int rank = 0; board_read(board, rank, &page) == 0; rank++) {
        bool gone = watch->seen[rank] && kill(page.pid, 0) != 0;
        watchdog_hear(watch->dog, rank, &page, now);
        if (gone) watchdog_excuse(watch->dog, rank);
    }
}

static bool find_(LaunchWatch *watch, const Board *board, const Log *log, double now) {
    char text[WATCHDOG_TEXT];
    int rank;
    hear_(watch, board, now);
    Found found = watchdog_look(watch->dog, now, &rank);
    if (found == FOUND_WELL) return false;
    for (int i = 0; watchdog_line(watch->dog, i, now, text); i++) log_line(log, "%s", text);
    watchdog_reason(watch->dog, found, rank, now, watch->reason);
    return true;
}

bool launch_watch_look(LaunchWatch *watch, const Board *board, const Log *log, double now) {
    if (watch->reason[0] != '\0' || now < watch->next) return false;
    watch->next = now + watchdog_interval(watch->patience);
    if (watch->dead >= 0) {
        if (now - watch->died < MPIRUN_ENDS_WITHIN_S) return false;
        watch->next = now + MPIRUN_ENDS_WITHIN_S;
        return true;
    }
    if (watch->dog != NULL && find_(watch, board, log, now)) return true;
    if (watch->stopped == 0 || watch->patience.peer_s == 0 || now - watch->stopped < watch->patience.peer_s)
        return false;
    snprintf(watch->reason, sizeof watch->reason,
             "mpirun has been stopped for %.0f s (train.peer_timeout_s), and no rank can be heard through it; the job "
             "ends; go on with --resume",
             now - watch->stopped);
    return true;
}
