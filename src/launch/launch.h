// Started by hand with a configuration of several ranks, the program starts them through mpirun on this machine and
// stays as their parent. It holds the coordinator (ranks/coordinator.h), so that it knows every rank's action and how
// the rank ends, whatever mpirun does; mpirun's own output is shown only if no rank said why the job failed.
//
// All files of a launch are in one folder: Open MPI's session and shared memory, and a pipe for the stderr of ranks. It
// is removed at the end. A second small process, the caretaker, kills the ranks and removes the folder if the parent is
// killed.
//
// Signals: TERM, INT, HUP and USR1 to the parent reach the ranks as SIGUSR1 (mpirun would kill them on TERM), once all
// of them handle it; a second one ends everything at once. Everything that ranks write passes through the parent.
#pragma once

#include "ranks/coordinator.h"

// In the ranks' environment: "1" if the parent's stdout is a terminal; theirs always looks like one.
#define LAUNCH_TERMINAL_VARIABLE "TRAINER_TTY"

// Starts this program again as job->ranks ranks with the arguments argv[1...] and returns when all have ended. Returns
// the exit code (EXIT_DONE ... EXIT_STOPPED), after a message on stderr in log's name if it is not 0. -1 with err if
// the ranks could not be started. end: why, if a rank failed or was lost; or NULL.
int launch_ranks(const Log *log, const Job *job, char **argv, JobEnd *end, Error *err);
