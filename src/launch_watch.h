// The parent's watch over its ranks: it sees their processes end, reads their heartbeats on the board from the first moment on, and
// knows whether mpirun itself was stopped.
#ifndef LAUNCH_WATCH_H
#define LAUNCH_WATCH_H

#include "watchdog.h"

typedef struct LaunchWatch {
    Watchdog *dog; // NULL: nobody is watched for silence
    Patience patience;
    double next;    // look
    double stopped; // since when mpirun is; 0: it runs
    int ranks;
    int ends;     // epoll, of `process`; readable where one has ended. -1: this kernel cannot
    int *process; // [ranks] pidfd; -1: not there yet, or gone
    bool *seen;   // [ranks] process was open
    int dead;     // the rank whose process ended first, without a word; -1: none
    double died;  // when
    bool certain; // it was seen to end before all others; not so where several had gone before they were looked at
    char reason[WATCHDOG_TEXT]; // why the job has to end; empty while it need not
} LaunchWatch;

// A watch of nobody, for launch_watch_free.
#define LAUNCH_WATCH_NONE                                                                                              \
    { .ends = -1, .dead = -1 }

int launch_watch_start(LaunchWatch *watch, int ranks, Patience patience, double now, Error *err);
void launch_watch_free(LaunchWatch *watch);

// mpirun was stopped by a signal, or goes on.
void launch_watch_mpirun(LaunchWatch *watch, bool stopped, double now);

// Whether all ranks' processes are known, so that none can end unseen.
bool launch_watch_complete(const LaunchWatch *watch);

// Looks who has come and who has ended. To be called often, and where `ends` is readable.
void launch_watch_processes(LaunchWatch *watch, const Board *board, double now);

// Looks at heartbeats where it is time to. True once: the job has to end, by our hand. Where a rank fell silent, how each stage stands was
// said in log's name; `reason` is the caller's to say last, or `dead`.
bool launch_watch_look(LaunchWatch *watch, const Board *board, const Log *log, double now);

#endif
