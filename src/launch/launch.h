// Started by hand with a configuration of several ranks, the program starts them through mpirun on this machine and
// stays as their parent. It owns what they leave: the board they report on, Open MPI's session files and shared memory
// all lie in one folder, which is removed at the end, whatever ended first. A second small process, the caretaker, does
// so where the parent itself is killed.
//
//     parent -- caretaker       waits for the parent's end
//        |
//      mpirun -- rank 0, 1, ...
//
// It watches over them (launch_watch.h): a rank whose heartbeat stops, or a job in which nothing moves, is ended.
//
// Signals: TERM, INT, HUP and USR1 to the parent reach the ranks as SIGUSR1 (mpirun would kill them on TERM), once all of them
// handle it; a second one ends everything at once. stdout of the ranks passes through. stderr does line by line,
// except for what mpirun has to say about ranks that failed: instead of it the parent says why, last.
#ifndef LAUNCH_H
#define LAUNCH_H

#include "base/log.h"
#include "ranks/watchdog.h"

// In the ranks' environment, "1" where the parent's stdout is a terminal; theirs always looks like one.
#define LAUNCH_TERMINAL_VARIABLE "TRAINER_TTY"

// Starts this program again as `ranks` ranks with the arguments argv[1...] and returns when all have ended. Returns the
// exit code (EXIT_DONE ... EXIT_STOPPED) after having said on stderr, in log's name, why it is not 0. -1 with err where
// the ranks could not be started.
int launch_ranks(const Log *log, int ranks, char **argv, Patience patience, Error *err);

#endif
