// The receiver of all messages (messages.h) of one job: it hears every rank's supervisor, knows each rank's action and
// end, decides when the job has to end, and says why. One process of a job holds it: the program that a user started by
// hand, or the supervisor of rank 0 under mpirun or srun.
//
// Its work and memory grow with the number of ranks; each supervisor's do not.
#pragma once

#include "messages.h"
#include "watchdog.h"

typedef struct Coordinator Coordinator;

typedef struct Job {
    int ranks;
    Patience patience;
    bool one_host;      // all ranks share this host: listen only on its loopback
    const char *remedy; // end of a failure's message: "the job ends; go on with --resume out"
} Job;

// Opens its channel. NULL with err.
Coordinator *coordinator_open(const Job *job, Error *err);
void coordinator_close(Coordinator *coordinator);
const Invitation *coordinator_invitation(const Coordinator *coordinator);
int coordinator_file(const Coordinator *coordinator); // to poll

// Counts the silence also of ranks that were never heard, from when the first rank knows its stage (by then all have
// met). This finds a supervisor that stopped before its first datagram. Call it only if no datagram can get lost.
void coordinator_expect_all(Coordinator *coordinator);

// Processes the datagrams received, up to a few thousand.
void coordinator_take(Coordinator *coordinator, double now);
// Takes a rank's status directly: from the supervisor in this process, or when a killed supervisor cannot report it.
void coordinator_hear(Coordinator *coordinator, int rank, const RankStatus *status, double now);

// Checks all ranks if it is time to. Returns true once the job has to end; if a rank fell silent or nothing moves, it
// has then logged the state of every stage.
bool coordinator_look(Coordinator *coordinator, const Log *log, double now);
// Why a job ends. `spoken`: the failing rank gave the reason itself, in its own words, and prints it unless one process
// prints for all ranks.
typedef struct JobEnd {
    int code;
    int rank, stage; // -1: the job
    bool spoken, silent;
    bool lost;                  // a rank died or fell silent, or nothing moved: another start may get further
    int64_t began;              // first step of this start, or 0
    int64_t step;               // last step that any rank trained; 0 before the first
    char action[STATUS_ACTION]; // the rank's action
    char text[STATUS_TEXT + 256];
} JobEnd;
JobEnd coordinator_why(const Coordinator *coordinator);

// Tells all remaining supervisors to kill their ranks. Repeat until coordinator_open_ranks is 0.
void coordinator_end(Coordinator *coordinator);

bool coordinator_all_ready(const Coordinator *coordinator);          // to handle SIGUSR1
int coordinator_unheard(const Coordinator *coordinator, int *first); // ranks that were never heard
// Returns the last rank to be heard for the first time, and that time.
int coordinator_slowest(const Coordinator *coordinator, double *first);
int coordinator_open_ranks(const Coordinator *coordinator); // ranks that were heard and have not ended
// Returns the code of a job whose ranks all ended in order, the first that is not 0; -1: some have not ended so.
int coordinator_code(const Coordinator *coordinator);
const RankStatus *coordinator_status(const Coordinator *coordinator, int rank);
