// The supervisor of a rank: the process that the launcher started, which forks the rank at once and waits for its end.
// So it knows how the rank ends, down to the signal, whatever the rank does, and reads on the status page the action it
// was doing. It tells the coordinator every second that the rank lives, and kills it when the coordinator says that the
// job ends.
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
// A rank alone has no supervisor process: a thread ends it if nothing moves.
#pragma once

#include "coordinator.h"
#include "world.h"

// In a rank's environment: the invitation of the coordinator, if the ranks were started by hand.
#define SUPERVISOR_VARIABLE "TRAINER_SUPERVISOR"

// The pipe in the folder of a launch into which ranks that were started by hand write their stderr.
#define SUPERVISOR_FOLDER "TRAINER_FOLDER"
#define SUPERVISOR_ERRORS "errors"

// A file into which a lost rank is noted under mpirun or srun: "RANK STEP ACTION" on one line; rank -1: no particular
// one.
#define SUPERVISOR_LOSS "TRAINER_LOSS"

// A rank's action before there is a world.
#define SUPERVISOR_JOINING "joining the other ranks"

typedef struct Supervisor Supervisor;

// Starts supervision. `launched`: by mpirun or srun, as one of job->ranks ranks; then this forks and returns only in
// the rank. Call before any thread is started. NULL with err.
Supervisor *supervisor_start(const char *program, const Job *job, bool launched, Error *err);
StatusPage *supervisor_page(const Supervisor *supervisor);

// Reports to the program that started all ranks why this one fails before supervision has started. Returns false if
// there is no such program.
bool supervisor_report_early(const Error *err);

// Collective, as soon as there is a world: under mpirun or srun, the ranks learn from rank 0 where the coordinator is.
// Seconds later rank 0's supervisor says which of them it does not hear.
int supervisor_join(Supervisor *supervisor, World *world, const Log *log, Error *err);

// Ends the rank cleanly, at the end of main. Returns `code`.
int supervisor_leave(Supervisor *supervisor, int code);
