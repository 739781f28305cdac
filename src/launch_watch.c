#include "launch_watch.h"

#include <signal.h>

int launch_watch_start(LaunchWatch *watch, int ranks, Patience patience, double now, Error *err) {
    *watch = (LaunchWatch){.patience = patience};
    if (patience.peer_s == 0 && patience.progress_s == 0) return 0;
    watch->dog = watchdog_create(ranks, patience, now);
    return watch->dog != NULL ? 0 : error_set(err, EXIT_FAILED, "out of memory for %d ranks", ranks);
}

void launch_watch_free(LaunchWatch *watch) {
    watchdog_free(watch->dog);
}

void launch_watch_mpirun(LaunchWatch *watch, bool stopped, double now) {
    watch->stopped = stopped ? now : 0;
}

// A rank that reported its end beats no more; it is done once its process has gone.
static void hear_(LaunchWatch *watch, const Board *board, double now) {
    BoardPage page;
    for (int rank = 0; board_read(board, rank, &page) == 0; rank++) {
        watchdog_hear(watch->dog, rank, &page, now);
        if (page.reported > 0 && page.pid > 0 && kill(page.pid, 0) != 0) watchdog_excuse(watch->dog, rank);
    }
}

static void say_all_(const LaunchWatch *watch, const Log *log, double now) {
    char text[WATCHDOG_TEXT];
    for (int i = 0; watchdog_line(watch->dog, i, now, text); i++) log_line(log, "%s", text);
}

bool launch_watch_look(LaunchWatch *watch, const Board *board, const Log *log, double now) {
    int rank;
    if (watch->dog == NULL || watch->reason[0] != '\0' || now < watch->next) return false;
    watch->next = now + watchdog_interval(watch->patience);
    hear_(watch, board, now);
    Found found = watchdog_look(watch->dog, now, &rank);
    if (found != FOUND_WELL) {
        say_all_(watch, log, now);
        watchdog_reason(watch->dog, found, rank, now, watch->reason);
        return true;
    }
    if (watch->stopped == 0 || watch->patience.peer_s == 0 || now - watch->stopped < watch->patience.peer_s)
        return false;
    snprintf(watch->reason, sizeof watch->reason,
             "mpirun has been stopped for %.0f s (train.peer_timeout_s), and no rank can be heard through it; the job "
             "ends; go on with --resume",
             now - watch->stopped);
    return true;
}
