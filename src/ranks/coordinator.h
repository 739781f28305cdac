// The coordinator hears from every rank's supervisor over a connection (connection.h). It tracks each rank's action and
// end, decides when the job has to end, and reports the reason. It runs in one process per job: the program that a user
// started by hand, or the supervisor of rank 0 under mpirun or srun.
//
// Its work and memory grow with the number of ranks. The work and memory of a supervisor do not.
#pragma once

#include "connection.h"
#include "watchdog.h"

typedef struct Coordinator Coordinator;

typedef struct Job {
    int ranks;
    Patience patience;
    bool one_host; // all ranks share this host: listen only on its loopback
    bool trains;   // it has steps and checkpoints, of which messages speak
    // End of a failure's message, "the job ends; continue with --resume out": [0] before this start has saved a
    // checkpoint, [1] since then.
    const char *remedy[2];
} Job;

// Creates a coordinator that listens in `folder`; NULL: over TCP, for all ranks but rank 0, which is in this process.
// NULL with err.
Coordinator *coordinator_open(const Job *job, const char *folder, Error *err);
void coordinator_close(Coordinator *coordinator);
const Invitation *coordinator_invitation(const Coordinator *coordinator); // only over TCP
int coordinator_file(const Coordinator *coordinator);                     // descriptor to poll

// Receives all pending messages, replies, and records the ranks with dead supervisors, in the order of their deaths.
void coordinator_take(Coordinator *coordinator, double now);
// Records the status of the rank in this process.
void coordinator_hear(Coordinator *coordinator, int rank, const RankStatus *status, double now);

// Checks all ranks, if the next check is due. Returns true once the job has to end. If a rank fell silent or no rank
// makes progress, first logs the state of every stage.
bool coordinator_look(Coordinator *coordinator, const Log *log, double now);
// The reason why a job ends. spoken: the failing rank reported the reason itself, and prints it unless one process
// prints for all ranks. silent: the watchdog found the cause.
typedef struct JobEnd {
    int code;
    int rank, stage; // rank that caused the end, and its stage; -1: no particular rank, unknown stage
    bool spoken, silent;
    bool saved;                 // a checkpoint was saved since this start
    bool lost;                  // a rank died or fell silent, or no rank made progress: a restart may get further
    int64_t began;              // first step trained since this start; 0: no step yet
    int64_t step;               // latest step that any rank has begun; 0: no step yet
    char action[STATUS_ACTION]; // last action of `rank`; empty: unknown
    char text[STATUS_TEXT + 256];
} JobEnd;
JobEnd coordinator_why(const Coordinator *coordinator);

// Tells all remaining supervisors to kill their ranks. Repeat until coordinator_open_ranks is 0.
void coordinator_end(Coordinator *coordinator);

bool coordinator_all_ready(const Coordinator *coordinator);          // every rank handles SIGUSR1
int coordinator_unknown(const Coordinator *coordinator, int *first); // ranks that never connected; *first: the lowest
// Returns the rank that was the last to send its first report; *first: the time of that report.
int coordinator_slowest(const Coordinator *coordinator, double *first);
int coordinator_open_ranks(const Coordinator *coordinator); // ranks heard from that have not ended
// Returns the job's exit code if all ranks left cleanly: the first nonzero code by rank, or 0. Else returns -1.
int coordinator_code(const Coordinator *coordinator);
const RankStatus *coordinator_status(const Coordinator *coordinator, int rank);
