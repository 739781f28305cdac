// The parent's watch over its ranks: it reads their heartbeats on the board from the first moment on, and mpirun's own state.
#ifndef LAUNCH_WATCH_H
#define LAUNCH_WATCH_H

#include "watchdog.h"

typedef struct LaunchWatch {
    Watchdog *dog; // NULL: nobody is watched
    Patience patience;
    double next;                // look
    double stopped;             // since when mpirun is; 0: it runs
    char reason[WATCHDOG_TEXT]; // why the job has to end; empty while it need not
} LaunchWatch;

int launch_watch_start(LaunchWatch *watch, int ranks, Patience patience, double now, Error *err);
void launch_watch_free(LaunchWatch *watch);

// mpirun was stopped by a signal, or goes on.
void launch_watch_mpirun(LaunchWatch *watch, bool stopped, double now);

// Looks where it is time to. True once: the job has to end; how each stage stands was said in log's name, the reason is the caller's to
// say last.
bool launch_watch_look(LaunchWatch *watch, const Board *board, const Log *log, double now);

#endif
