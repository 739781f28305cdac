// The supervisor of a rank is the process that the launcher started. It forks the rank at once and waits for its end,
// so it always learns how the rank ended, including the signal. It reads the rank's last action from the status page.
// It reports to the coordinator every second that the rank is alive, and kills the rank when the coordinator ends the
// job.
//
//     started by hand                          under mpirun or srun
//
//     program            coordinator           mpirun, srun
//      |-- caretaker                            |-- supervisor 0    coordinator
//      |-- mpirun                               |    |-- rank 0
//           |-- supervisor 0                    |-- supervisor 1
//           |    |-- rank 0                          |-- rank 1
//           |-- supervisor 1
//                |-- rank 1
//
// A single rank without a launcher has no supervisor process: a thread ends it if it makes no progress.
#pragma once

#include "coordinator.h"
#include "world.h"

#include <signal.h>

// Environment variable with the path of a launch's folder, if the ranks were started by hand. In this folder are the
// coordinator's socket and, under this name, a pipe for the ranks' stderr.
#define SUPERVISOR_FOLDER "TRAINER_FOLDER"
#define SUPERVISOR_ERRORS "errors"

// Environment variable with the path of a file in which a lost rank is recorded under mpirun or srun. The file has one
// line, "RANK STEP ACTION". Rank -1: no particular rank.
#define SUPERVISOR_LOSS "TRAINER_LOSS"

// A rank's action until it has joined the world (world.h).
#define SUPERVISOR_JOINING "joining the other ranks"

typedef struct Supervisor Supervisor;

// Connects to the program that started all ranks, if there is one. Call it first in main, so that the program knows of
// this rank. NULL with err if the program cannot be reached.
Supervisor *supervisor_open(const char *program, Error *err);

// Reports an error that occurred before supervisor_start to the program that started all ranks. Returns false if there
// is no such program or the report cannot be sent.
bool supervisor_report_early(Supervisor *supervisor, const Error *err);

// Starts supervision. `launched`: mpirun or srun started this process as one of job->ranks ranks. In that case the
// function forks, and returns only in the rank. Call it before any thread is started. Returns 0, or -1 with err.
int supervisor_start(Supervisor *supervisor, const Job *job, bool launched, Error *err);
StatusPage *supervisor_page(const Supervisor *supervisor);

// Collective; call it as soon as the world exists. Under mpirun or srun, rank 0 broadcasts the coordinator's addresses.
// About ten seconds later, rank 0's supervisor logs how many ranks it has not heard from. Returns 0, or -1 with err.
int supervisor_join(Supervisor *supervisor, World *world, const Log *log, Error *err);

// Handles the signals that request a stop: TERM, USR1, USR2, INT and HUP (Slurm sends USR1 with #SBATCH
// --signal=USR1@300). INT and HUP stay ignored if they were: by nohup, or in background commands of a script.
void supervisor_catch_requests(const struct sigaction *action);

// Records that the rank leaves cleanly. Call it at the end of main. Returns `code`.
int supervisor_leave(Supervisor *supervisor, int code);
void supervisor_free(Supervisor *supervisor);
