// Decides from the ranks' reports whether a rank has fallen silent or the job makes no progress, and then lists every
// stage's action and wait. It does no I/O and reads no clock: the coordinator (coordinator.h) passes each report and
// its time.
//
// If the watchdog itself was not called for a while (a machine that slept, a debugger), all ranks seem silent, although
// their messages may still be in a buffer. The watchdog then restarts every timeout.
#pragma once

#include "status_page.h"

typedef struct Patience {
    double peer_s;     // limit for a silent rank; 0: no limit
    double progress_s; // limit for a job without progress; 0: no limit
} Patience;

typedef struct Watchdog Watchdog;

// Creates a watchdog. A rank's silence counts from its first report.
Watchdog *watchdog_create(int ranks, Patience patience, double now);
void watchdog_free(Watchdog *dog);

// Returns the seconds between reports or checks: a fifth of the shorter timeout, at most 1.
double watchdog_interval(Patience patience);

void watchdog_hear(Watchdog *dog, int rank, const RankStatus *status, double now);
void watchdog_excuse(Watchdog *dog, int rank);                    // stops the timeout of a rank that has ended
const RankStatus *watchdog_status(const Watchdog *dog, int rank); // the rank's last report

typedef enum Found { FOUND_WELL, FOUND_SILENT, FOUND_STUCK } Found;

// Checks all ranks. *rank: the rank that has been silent longest if FOUND_SILENT, else -1.
Found watchdog_look(Watchdog *dog, double now, int *rank);

enum { WATCHDOG_TEXT = 512 };

// Writes the sentence for a finding, without a remedy.
void watchdog_reason(const Watchdog *dog, Found found, int rank, double now, char text[WATCHDOG_TEXT]);
// Writes line `index` of the job's state, one line per stage: "stage 2 waits for B14 from stage 3, which is at step 12
// F21". Returns false if there is no such line.
bool watchdog_line(const Watchdog *dog, int index, double now, char text[WATCHDOG_TEXT]);

// Writes a rank's name: "rank 2 (stage 2)", or "rank 2" if the stage is -1 (unknown).
enum { WATCHDOG_NAME = 64 };
void watchdog_name(int rank, int stage, char name[WATCHDOG_NAME]);
// Returns a rank's action, or "start-up" if the rank has not reported an action.
const char *watchdog_action(const RankStatus *status);
// Writes a rank's state from its own status only: "waits for B14 from stage 3", "is at step 12 F21".
void watchdog_describe(const RankStatus *status, char text[WATCHDOG_TEXT]);
