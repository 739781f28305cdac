// The parent's watch over its ranks: it sees their processes end, reads their heartbeats on the board from the first moment on, and
// knows whether mpirun itself was stopped.
#ifndef LAUNCH_WATCH_H
#define LAUNCH_WATCH_H

#include "ranks/watchdog.h"

#include <sys/types.h>

// The process of a rank.
typedef struct LaunchProcess {
    pid_t pid;
    int rank; // -1: not known yet
    int file; // pidfd; -1: it has ended
} LaunchProcess;

typedef struct LaunchWatch {
    Watchdog *dog; // NULL: nobody is watched for silence
    Patience patience;
    double next;    // look
    double stopped; // since when mpirun is; 0: it runs
    int ranks;
    pid_t mpirun;           // 0: not started yet
    int ends;               // epoll, of all `file`; readable where one has ended. -1: this kernel cannot
    LaunchProcess *process; // [ranks] in the order in which they were met
    int met;
    int first;                  // `process` that ended first, without a word; -1: none
    double died;                // when
    bool certain;               // that it was the first; not so where several had gone before they were looked at
    char reason[WATCHDOG_TEXT]; // why the job has to end; empty while it need not
} LaunchWatch;

// A watch of nobody, for launch_watch_free.
#define LAUNCH_WATCH_NONE                                                                                              \
    { .ends = -1, .first = -1 }

int launch_watch_start(LaunchWatch *watch, int ranks, Patience patience, double now, Error *err);
void launch_watch_free(LaunchWatch *watch);

// Whose children the ranks are.
void launch_watch_children(LaunchWatch *watch, pid_t mpirun);

// mpirun was stopped by a signal, or goes on.
void launch_watch_mpirun(LaunchWatch *watch, bool stopped, double now);

// Whether all ranks' processes are known, so that none can end unseen.
bool launch_watch_complete(const LaunchWatch *watch);

// Whether the process of this rank is known.
bool launch_watch_met(const LaunchWatch *watch, int rank);

// The rank that ended first, without a word; -1: none, or one that is not known.
int launch_watch_dead(const LaunchWatch *watch);

// Looks who has come and who has ended. To be called often, and where `ends` is readable.
void launch_watch_processes(LaunchWatch *watch, const StatusPage *status_page, double now);

// Looks at heartbeats where it is time to. True once: the job has to end, by our hand. Where a rank fell silent, how each stage stands was
// said in log's name; `reason` is the caller's to say last, or who died.
bool launch_watch_look(LaunchWatch *watch, const StatusPage *status_page, const Log *log, double now);

#endif
