// A program that is started by hand with a configuration of several ranks starts the ranks through mpirun on this
// machine and stays their parent. It holds the coordinator (ranks/coordinator.h), so it learns every rank's action and
// end without mpirun. It shows mpirun's own output only if no rank reported why the job failed.
//
// All files of a launch are in one folder, removed at the end: Open MPI's session and shared memory, the coordinator's
// socket, and a pipe for the ranks' stderr. If the parent is killed, a small process, the caretaker, kills the ranks
// and removes the folder. If both are killed, the next launch removes the folder.
//
// The parent forwards TERM, INT, HUP, USR1 and USR2 to the ranks as SIGUSR1, once all ranks handle it (on TERM, mpirun
// would kill the ranks). A second signal ends all ranks at once. All output of the ranks passes through the parent.
#pragma once

#include "ranks/coordinator.h"

// Environment variable of the ranks: "1" if the parent's stdout is a terminal. A rank sees only mpirun's pipe or pty.
#define LAUNCH_TERMINAL_VARIABLE "TRAINER_TTY"

// Called after a loss (a rank died or fell silent, or no rank made progress). Returns true if the ranks are to be
// started again, and may replace the arguments *argv.
typedef bool (*LaunchAgain)(void *context, const JobEnd *end, char ***argv);

// Starts this program again as job->ranks ranks with the arguments argv[1...] and waits until all ranks have ended;
// after a loss starts them again if `again` (may be NULL) returns true and no stop was requested. On failure prints the
// reason on stderr. Its signal handlers stay installed. Returns the exit code (EXIT_DONE ... EXIT_STOPPED), or -1
// with err if the ranks could not be started.
int launch_ranks(const Log *log, const Job *job, char **argv, LaunchAgain again, void *context, Error *err);

// The number of restarts left, and the rank and its action at the last loss.
typedef struct Restarts {
    int64_t left;
    int64_t furthest; // highest step trained so far
    bool again;       // there was a loss before
    int rank;
    char action[STATUS_ACTION];
} Restarts;

// Counts this loss and returns whether the ranks may be started again. A loss without a new step costs two restarts. A
// rank that is lost twice in the same action, with no new step between, is not restarted. If the result is false, `why`
// is the reason, as a sentence without a full stop.
bool restart_allowed(Restarts *restarts, const JobEnd *end, char why[256]);
